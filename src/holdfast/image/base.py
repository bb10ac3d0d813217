"""Base images: from folders, archives and registries."""

from __future__ import annotations

import hashlib
import lzma
import posixpath
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from holdfast.common import record
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.image.blobs import CHUNK, Blobs
from holdfast.image.layer import Layer, compressed
from holdfast.image.oci import (
    INDEXES,
    MANIFEST,
    MANIFESTS,
    OCI_LAYERS,
    REF_NAME,
    Descriptor,
    Index,
    Manifest,
    described,
)
from holdfast.image.platform import Platform

UNREADABLE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError)
"""The errors of reading a damaged archive."""

LINKS_MAX = 40
"""Links in a row that are followed: they may lead in a circle."""

FORMS = """\
REGISTRY/NAME:TAG, oci:FOLDER, oci:FOLDER:TAG, oci-archive:FILE or docker-archive:FILE"""


@dataclass(frozen=True)
class Base:
    """An image to build on, for one platform. ``reference`` is its name in a registry, or empty. ``bring``
    fetches a layer's blob into the folder of blobs."""

    name: str
    reference: str
    digest: str
    config: dict[str, Any]
    layers: tuple[Layer, ...]
    bring: Callable[[Descriptor], Awaitable[None]] = field(repr=False)


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str]


class _Variables(msgspec.Struct, frozen=True, rename="pascal"):
    env: list[str] | None = None


class _Config(msgspec.Struct, frozen=True):
    """The fields of an image's config that are read."""

    rootfs: _RootFs
    os: str = ""
    architecture: str = ""
    variant: str = ""
    config: _Variables | None = None


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    """An image in ``manifest.json`` of ``docker save``."""

    config: str
    layers: list[str]


class BaseSource(Protocol):
    """A source of a base: an archive, a layout or a registry. ``published``: other machines know the name
    too."""

    name: str
    published: bool

    async def root(self) -> Descriptor:
        """Return the descriptor of the base's manifest or index."""

    async def document(self, descriptor: Descriptor) -> Any:
        """Return a manifest, index or config."""

    async def bring(self, descriptor: Descriptor) -> None:
        """Fetch a blob into the folder of blobs."""


async def open_base(source: BaseSource, platform: Platform) -> Base:
    """Return the image of a platform. Raises ConfigError if the base has none."""
    try:
        return await _of_platform(source, await _root(source), platform)
    except record.UNREADABLE as error:
        raise ConfigError(f"base {source.name} can't be read as an image: {error}; give {FORMS}") from None


async def _root(source: BaseSource) -> Descriptor:
    try:
        return await source.root()
    except Damaged:
        raise  # another base doesn't help
    except Unavailable as error:
        raise Unavailable(
            f"base {source.name}: {error}; name one that can be read with --base {FORMS}"
        ) from None


async def _of_platform(source: BaseSource, root: Descriptor, platform: Platform) -> Base:
    found = [each async for each in _manifests(source, root)]
    fitting = [
        each
        for each in found
        if each.media_type in MANIFESTS and platform.fits(await _platform(source, each))
    ]
    if not fitting:
        there = sorted({_shown(await _platform(source, each)) for each in found})
        raise ConfigError(f"{source.name} has no image for {platform}; it has {', '.join(there) or 'none'}")
    manifest = msgspec.convert(await source.document(fitting[0]), Manifest)
    config = await source.document(manifest.config)
    layers = manifest.layers
    diff_ids = msgspec.convert(config, _Config).rootfs.diff_ids
    _check_count(source.name, layers, diff_ids)
    for layer in layers:
        if layer.media_type not in OCI_LAYERS:
            raise ConfigError(f"{source.name} has a layer of type {layer.media_type!r}, which can't be used")
    return Base(
        source.name,
        source.name if source.published else "",
        fitting[0].digest,
        config,
        tuple(
            Layer(
                Descriptor(media_type=OCI_LAYERS[layer.media_type], digest=layer.digest, size=layer.size),
                diff_id,
                "base",
            )
            for layer, diff_id in zip(layers, diff_ids, strict=True)
        ),
        source.bring,
    )


async def _manifests(source: BaseSource, descriptor: Descriptor) -> Any:
    """Yield all manifests of an index, and of the indexes in it, without attestations."""
    if descriptor.media_type not in INDEXES:
        yield descriptor
        return
    index = msgspec.convert(await source.document(descriptor), Index)
    for each in index.manifests:
        if "vnd.docker.reference.type" in each.annotations or each.platform.get("os") == "unknown":
            continue
        async for manifest in _manifests(source, each):
            yield manifest


async def _platform(source: BaseSource, descriptor: Descriptor) -> dict[str, str]:
    if descriptor.platform:
        return descriptor.platform
    manifest = msgspec.convert(await source.document(descriptor), Manifest)
    config = msgspec.convert(await source.document(manifest.config), _Config)
    found = {"os": config.os, "architecture": config.architecture, "variant": config.variant}
    return {name: value for name, value in found.items() if value}


def _check_count(name: str, layers: Sequence[object], diff_ids: Sequence[str]) -> None:
    if len(layers) != len(diff_ids):
        raise Damaged(f"{name} names {len(layers)} layers and {len(diff_ids)} contents of layers")


def _shown(platform: dict[str, str]) -> str:
    return "/".join(platform[part] for part in ("os", "architecture", "variant") if platform.get(part))


class Layout:
    """An image in a folder or an archive of OCI's layout."""

    published = False

    def __init__(self, name: str, place: Path, tag: str, blobs: Blobs) -> None:
        self.name = name
        self._place = place
        self._tag = tag
        self._blobs = blobs

    async def root(self) -> Descriptor:
        """Return the tag's image, or the only one."""
        all_there = msgspec.json.decode(self._read("index.json"), type=Index).manifests
        images = [each for each in all_there if not each.artifact_type]
        if self._tag:
            images = [each for each in images if each.annotations.get(REF_NAME, "") == self._tag]
        if len(images) != 1:
            tags = ", ".join(each.annotations.get(REF_NAME, each.digest) for each in all_there)
            raise ConfigError(f"{self.name} must mean one image, and means {len(images)}; tags are {tags}")
        return images[0]

    async def document(self, descriptor: Descriptor) -> Any:
        await self.bring(descriptor)
        return msgspec.json.decode(self._blobs.read(descriptor.digest))

    async def bring(self, descriptor: Descriptor) -> None:
        if not self._blobs.has(descriptor.digest):
            with _opened(self._place, f"blobs/{descriptor.digest.replace(':', '/')}", self.name) as file:
                self._blobs.copy(file, descriptor.digest)

    def _read(self, path: str) -> bytes:
        with _opened(self._place, path, self.name) as file:
            return file.read()


class DockerArchive:
    """An image in an archive that ``docker save`` wrote."""

    published = False

    def __init__(self, name: str, place: Path, blobs: Blobs) -> None:
        self.name = name
        self._place = place
        self._blobs = blobs

    async def root(self) -> Descriptor:
        """Compress the layers, and return the image's descriptor."""
        with _opened(self._place, "manifest.json", self.name) as file:
            images = msgspec.json.decode(file.read(), type=list[_Saved])
        if len(images) != 1:
            raise ConfigError(f"{self.name} holds {len(images)} images; save one alone")
        (saved,) = images
        with _opened(self._place, saved.config, self.name) as file:
            config = file.read()
        diff_ids = msgspec.json.decode(config, type=_Config).rootfs.diff_ids
        _check_count(self.name, saved.layers, diff_ids)
        layers = [
            compressed(diff_id, self._copier(path, diff_id), self._blobs, "base").descriptor
            for path, diff_id in zip(saved.layers, diff_ids, strict=True)
        ]
        described_config = Descriptor(
            media_type="application/vnd.oci.image.config.v1+json",
            digest=self._blobs.add(config),
            size=len(config),
        )
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described_config, "layers": layers}
        descriptor, data = described(manifest, MANIFEST)
        self._blobs.add(data)
        return descriptor

    async def document(self, descriptor: Descriptor) -> Any:
        return msgspec.json.decode(self._blobs.read(descriptor.digest))

    async def bring(self, descriptor: Descriptor) -> None:
        """Do nothing: all blobs are here."""

    def _copier(self, path: str, diff_id: str) -> Callable[[IO[bytes]], None]:
        def copy(target: IO[bytes]) -> None:
            seen = hashlib.sha256()
            with _opened(self._place, path, self.name) as file:
                while data := file.read(CHUNK):
                    seen.update(data)
                    target.write(data)
            if f"sha256:{seen.hexdigest()}" != diff_id:
                raise Damaged(f"{path} in {self.name} is not what its image names: save it again")

        return copy


def _opened(place: Path, path: str, name: str) -> IO[bytes]:
    """Open a file in a folder or an archive. Raises ConfigError."""
    try:
        if place.is_dir():
            return (place / path).open("rb")
        with tarfile.open(place, "r:*") as archive:
            file = archive.extractfile(_member(archive, path))
            if file is None:
                raise KeyError(path)
            return _copied(file)
    except (KeyError, *UNREADABLE) as error:
        raise ConfigError(f"{name} can't be read as an image: {path}: {error}; give {FORMS}") from None


def _member(archive: tarfile.TarFile, path: str) -> tarfile.TarInfo:
    """Return the member of an archive at a path, after links: older archives link a layer that they hold
    twice."""
    for _ in range(LINKS_MAX):
        member = archive.getmember(path)
        if not member.issym():
            return member
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
    raise KeyError(f"more than {LINKS_MAX} links follow one another")


def _copied(file: IO[bytes]) -> IO[bytes]:
    """Return a copy that stays open when the archive is closed."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 # the reader closes it
    shutil.copyfileobj(file, copy, CHUNK)
    copy.seek(0)
    return copy


def local(name: str, blobs: Blobs) -> BaseSource | None:
    """Return the folder or archive of a base's name; None for a name in a registry."""
    kind, colon, place = name.partition(":")
    if colon and kind in ("oci", "oci-archive"):
        path, _, tag = place.partition(":")
        return Layout(name, Path(path), tag, blobs)
    if colon and kind == "docker-archive":
        return DockerArchive(name, Path(place), blobs)
    return None


def entries(layer: Path, media_type: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each file of a layer, with its archive."""
    with layer.open("rb") as packed:
        file: Any = packed
        if media_type.endswith("+zstd"):
            file = _zstd(packed)
        with tarfile.open(fileobj=file, mode="r|gz" if media_type.endswith("+gzip") else "r|") as archive:
            for member in archive:
                yield archive, member


def _zstd(file: IO[bytes]) -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression.zstd import ZstdFile  # noqa: PLC0415
        else:
            from backports.zstd import ZstdFile  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "a layer of the base is compressed with zstd: pip install 'holdfast-streams[image]', which has"
            " the library"
        ) from None
    return ZstdFile(file)
