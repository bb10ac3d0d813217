"""Builds the image of an app for each platform, and their index."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.image import bytecode, contents, image_config, own_wheel, packages, project, requirements, sbom
from holdfast.image.base import Base, BaseSource, open_base
from holdfast.image.blobs import Blobs
from holdfast.image.layer import ImageFile, Layer, pack
from holdfast.image.oci import CONFIG, INDEX, MANIFEST, Descriptor, described
from holdfast.image.packages import Package
from holdfast.image.platform import Platform

FORMAT = 1
"""Grows with each change of the layers that are made of the same packages."""


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build."""

    app: str
    folder: Path
    base: BaseSource
    platforms: Sequence[Platform]
    version: str = ""
    requirements: Path | None = None
    extras: Sequence[str] = ()
    upgrade: bool = False
    models: Sequence[str] = ()
    excluded: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """The image of one platform, and the artifact with its bill of materials."""

    base: Base
    layers: Sequence[Layer]
    config: Descriptor
    manifest: Descriptor
    bill: sbom.Artifact


@dataclass(frozen=True)
class Built:
    """The result of a build. ``top`` is the index, or the manifest of a single platform."""

    top: Descriptor
    images: Sequence[Image]


class Dependencies(msgspec.Struct, frozen=True):
    """The layers of a project's dependencies, and the packages in them."""

    layers: tuple[Layer, ...]
    packages: tuple[Package, ...]


async def build(options: BuildOptions, blobs: Blobs, remark: Callable[[str], None]) -> Built:
    """Build an image, and keep its blobs in ``blobs``, without the base's. Raises ConfigError."""
    found = project.find(options.app, options.folder)
    files = project.files(found, options.models, options.excluded)
    images = [
        await _build_one(options, found, files, platform, blobs, remark) for platform in options.platforms
    ]
    if len(images) == 1:
        return Built(images[0].manifest, images)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [image.manifest for image in images]}
    top, data = described(index, INDEX)
    blobs.add(data)
    return Built(top, images)


async def _build_one(
    options: BuildOptions,
    found: project.Project,
    files: project.Files,
    platform: Platform,
    blobs: Blobs,
    remark: Callable[[str], None],
) -> Image:
    base = await open_base(options.base, platform)
    facts = await contents.facts(base, blobs)
    if not bytecode.made_here(facts.python_minor):
        remark(
            f"{platform}: the base has Python 3.{facts.python_minor}, for which this Python makes no byte"
            " code; the image's processes start more slowly"
        )
    own = own_wheel.files()
    needed = _dependencies(options, own, facts, platform, blobs)
    place = own_wheel.entries(own, facts.python_minor)
    layers = [
        *needed.layers,
        pack(_with_bytecode(place, facts.python_minor), blobs, "holdfast"),
        *(pack(each, blobs, f"model {name}") for name, each in sorted(files.models.items())),
        pack(_with_bytecode(files.app, facts.python_minor), blobs, "app"),
    ]
    config = image_config.make(
        base,
        facts,
        layers,
        platform,
        app=options.app,
        search_path=found.search_path,
        version=options.version,
        labels=options.labels,
    )
    return _image(options, base, layers, config, [*needed.packages, own_wheel.package(own)], platform, blobs)


def _image(
    options: BuildOptions,
    base: Base,
    layers: Sequence[Layer],
    config: dict[str, Any],
    held: Sequence[Package],
    platform: Platform,
    blobs: Blobs,
) -> Image:
    configured, config_data = described(config, CONFIG)
    manifest, manifest_data = described(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": configured,
            "layers": [layer.descriptor for layer in (*base.layers, *layers)],
        },
        MANIFEST,
        platform=platform.document(),
    )
    blobs.add(config_data)
    blobs.add(manifest_data)
    bill = sbom.attach(sbom.make(options.app, options.version, base, held), manifest, blobs)
    return Image(base, layers, configured, manifest, bill)


def _dependencies(
    options: BuildOptions, own: dict[str, bytes], facts: contents.Facts, platform: Platform, blobs: Blobs
) -> Dependencies:
    """Make the layers of a project's dependencies: each large package has its own layer, the others share
    one."""
    target = requirements.WheelTarget(platform.for_uv(facts.libc), facts.python_minor)
    source = requirements.find(options.folder, options.requirements)
    with tempfile.TemporaryDirectory(prefix="holdfast-image-") as name:
        scratch = Path(name)
        pins = _pins(options, source, own, target, scratch, blobs)
        code = bytecode.key() if bytecode.made_here(facts.python_minor) else ""
        note = blobs.note("packages", msgspec.json.encode((FORMAT, pins, target.platform, facts, code)))
        if (noted := blobs.noted(note)) is not None:
            kept = msgspec.json.decode(noted, type=Dependencies)
            if all(blobs.has(layer.descriptor.digest) for layer in kept.layers):
                return kept
        folder = scratch / "packages"
        requirements.install(pins, target, folder, scratch, options.folder)
        read = packages.read(folder, facts.python_minor, platform)
        large = {package for package, files in read.items() if packages.size(files) >= packages.LARGE_BYTES}
        rest = [ImageFile(path, content) for path, content in image_config.scaffold(facts).items()]
        for package, files in read.items():
            if package not in large:
                rest += files
        layers = [
            pack(_with_bytecode(files, facts.python_minor), blobs, f"{package.name} {package.version}")
            for package, files in read.items()
            if package in large
        ]
        layers.append(pack(_with_bytecode(rest, facts.python_minor), blobs, "packages"))
        made = Dependencies(tuple(layers), tuple(read))
    blobs.keep_note(note, made)
    return made


def _pins(
    options: BuildOptions,
    source: Path | None,
    own: dict[str, bytes],
    target: requirements.WheelTarget,
    scratch: Path,
    blobs: Blobs,
) -> str:
    """Resolve the packages to install. Equal needs get the packages of an earlier build, so that builds are
    alike; an upgrade resolves them again."""
    needs = requirements.fixed(source)
    metadata = next(data for name, data in own.items() if name.endswith("/METADATA"))
    note = blobs.note("pins", msgspec.json.encode((needs, options.extras, metadata, target)))
    noted = blobs.noted(note) if needs and not options.upgrade else None
    if noted is not None:
        return msgspec.json.decode(noted, type=str)
    pins = requirements.resolve(source, options.extras, own_wheel.write(own, scratch), target, scratch)
    blobs.keep_note(note, pins)
    return pins


def _with_bytecode(entries: Sequence[ImageFile], python_minor: int) -> list[ImageFile]:
    if not bytecode.made_here(python_minor):
        return list(entries)
    return [*entries, *bytecode.compile_all(entries)]
