"""Writes images as folders or archives of the OCI layout, for other tools."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast.image import sbom
from holdfast.image.blobs import Blobs
from holdfast.image.builder import Built
from holdfast.image.layer import ImageFile
from holdfast.image.layer import write as write_archive
from holdfast.image.oci import IMAGE_NAME, REF_NAME, Index, document
from holdfast.image.reference import Reference
from holdfast.system.files import UMASK, whole_file

_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


async def write(built: Built, target: Reference, place: Path, blobs: Blobs) -> None:
    """Write an image to a folder, or to an archive with a name in ``.tar``. Raises ConfigError if the folder
    has other files, or can't be written."""
    for image in built.images:
        for layer in image.base.layers:
            await image.base.bring(layer.descriptor)
    try:
        _write(built, target, place, blobs)
    except OSError as error:
        raise ConfigError(f"--output {place} can't be written: {error}; name another place") from None


def _write(built: Built, target: Reference, place: Path, blobs: Blobs) -> None:
    # Programs such as podman refuse archives with more than one image.
    with_bills = place.suffix != ".tar"
    index = document(_index(built, target, with_bills=with_bills))
    digests = set(_digests(built, with_bills=with_bills))
    names = {f"blobs/{digest.replace(':', '/')}": blobs.path(digest) for digest in digests}
    if place.suffix == ".tar":
        place.parent.mkdir(parents=True, exist_ok=True)
        contents = [ImageFile("oci-layout", _LAYOUT), ImageFile("index.json", index)]
        named = place.resolve()  # a link to an archive stays one
        with whole_file(named, UMASK, part=f".{named.name}.part-", durable=False) as file:
            write_archive([*contents, *(ImageFile(*each) for each in sorted(names.items()))], file)
    else:
        _check_folder(place, target)
        _write_folder(place, names, index)


def _index(built: Built, target: Reference, *, with_bills: bool) -> dict[str, object]:
    named = msgspec.structs.replace(built.top, annotations={REF_NAME: target.tag, IMAGE_NAME: str(target)})
    bills = [image.bill.manifest for image in built.images] if with_bills else []
    return {"schemaVersion": 2, "manifests": [named, *bills]}


def _digests(built: Built, *, with_bills: bool) -> Iterator[str]:
    yield built.top.digest
    for image in built.images:
        yield from (image.manifest.digest, image.config.digest)
        yield from (layer.descriptor.digest for layer in (*image.base.layers, *image.layers))
        if with_bills:
            yield from (blob.digest for blob in (image.bill.manifest, *image.bill.blobs))


def _check_folder(place: Path, target: Reference) -> None:
    if not place.exists() or not any(place.iterdir()):
        return
    try:
        index = msgspec.json.decode((place / "index.json").read_bytes(), type=Index)
    except (FileNotFoundError, msgspec.DecodeError):
        raise ConfigError(f"--output {place} has other files; name a new folder") from None
    # Our bills of materials have no tag. Another entry without a tag is an image of another program.
    images = [each for each in index.manifests if each.artifact_type != sbom.TYPE]
    tags = {each.annotations.get(REF_NAME, "") for each in images}
    if "" in tags:
        raise ConfigError(f"--output {place} holds images without a tag; name a new folder")
    if tags != {target.tag}:
        raise ConfigError(
            f"--output {place} holds images of other tags: {', '.join(sorted(tags))}; name a new folder"
        )
    names = {name for each in images if (name := each.annotations.get(IMAGE_NAME))}
    if others := names - {str(target)}:  # other tools may write a tag alone
        raise ConfigError(
            f"--output {place} holds images of other names: {', '.join(sorted(others))}; name a new folder"
        )


def _write_folder(place: Path, names: dict[str, Path], index: bytes) -> None:
    folder = place / "blobs/sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (place / "oci-layout").write_bytes(_LAYOUT)  # first: by it a later build leaves the folder out
    for name, source in names.items():
        target = place / name
        if not target.exists() or target.stat().st_size != source.stat().st_size:
            shutil.copyfile(source, target)
    (place / "index.json").write_bytes(index)
    for blob in folder.iterdir():  # of an earlier build of the same tag
        if f"blobs/sha256/{blob.name}" not in names:
            blob.unlink()
