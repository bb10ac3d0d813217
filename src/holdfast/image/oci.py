"""Documents of OCI images: descriptors, media types and digests."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
LAYER_ZSTD = f"{LAYER}+zstd"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

INDEXES = (INDEX, DOCKER_INDEX)
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)

OCI_LAYERS = {
    LAYER: LAYER,
    LAYER_GZIP: LAYER_GZIP,
    LAYER_ZSTD: LAYER_ZSTD,
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": LAYER_ZSTD,
}
"""OCI's media type of a layer, by its media type in OCI or Docker: the bytes are the same."""

REF_NAME = "org.opencontainers.image.ref.name"
IMAGE_NAME = "io.containerd.image.name"
"""The annotation from which podman, Docker and containerd take the name of a loaded image."""


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A description of a blob: its media type, its digest and its size."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    platform: dict[str, Any] = {}
    annotations: dict[str, str] = {}


class Index(msgspec.Struct, frozen=True):
    """A list of images: ``index.json`` of a layout, or an index of platforms."""

    manifests: list[Descriptor]


class Manifest(msgspec.Struct, frozen=True):
    """The parts of an image: its config and its layers."""

    config: Descriptor
    layers: list[Descriptor]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def document(value: Any) -> bytes:
    """Return the bytes of a document. Equal content gives equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def described(value: Any, media_type: str, **more: Any) -> tuple[Descriptor, bytes]:
    """Return a document's descriptor and its bytes."""
    data = document(value)
    return Descriptor(media_type=media_type, digest=digest_of(data), size=len(data), **more), data
