"""Images from a registry, and to one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import NotKnown, OperationRefused
from holdfast.image.base import Base
from holdfast.image.blobs import Blobs
from holdfast.image.builder import Built, Image
from holdfast.image.oci import INDEX, INDEXES, MANIFESTS, Descriptor, Index, document
from holdfast.image.reference import Reference
from holdfast.image.registry import RegistryClient

AT_ONCE = 3
"""Blobs that are pushed at the same time."""


class RegistryBase:
    """A base in a registry."""

    published = True

    def __init__(self, reference: Reference, registry: RegistryClient, blobs: Blobs) -> None:
        self.name = str(reference)
        self.reference = reference
        self._registry = registry
        self._blobs = blobs

    async def root(self) -> Descriptor:
        """Return the present manifest or index of the tag or digest."""
        reference = self.reference
        descriptor, data = await self._registry.manifest(
            reference.repository, reference.digest or reference.tag
        )
        self._blobs.add(data)
        return descriptor

    async def document(self, descriptor: Descriptor) -> Any:
        if not self._blobs.has(descriptor.digest):
            if descriptor.media_type in (*INDEXES, *MANIFESTS):
                _, data = await self._registry.manifest(self.reference.repository, descriptor.digest)
                self._blobs.add(data)
            else:
                await self.bring(descriptor)
        return msgspec.json.decode(self._blobs.read(descriptor.digest))

    async def bring(self, descriptor: Descriptor) -> None:
        await self._registry.pull_blob(self.reference.repository, descriptor)


@dataclass
class Pushed:
    """The counts of a push: blobs that were there, that were mounted from another repository, and that were
    sent; and all bytes sent."""

    there: int = 0
    mounted: int = 0
    sent: int = 0
    bytes: int = 0


async def push(
    built: Built, target: Reference, registry: RegistryClient, blobs: Blobs, base_at: Reference | None
) -> Pushed:
    """Push an image: its blobs, then its manifests, then its tag, so that a pull by the tag gets the whole
    image or the earlier one. ``base_at``: the base's place in a registry, if it has one."""
    pushed = Pushed()
    mount_from = base_at.repository if base_at and base_at.registry == target.registry else ""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def bring_there(descriptor: Descriptor, base: Base | None) -> None:
        async with at_once:
            if await registry.has_blob(target.repository, descriptor.digest):
                pushed.there += 1
            elif (
                base and mount_from and await registry.mount(target.repository, descriptor.digest, mount_from)
            ):
                pushed.mounted += 1
            else:
                if base:
                    await base.bring(descriptor)
                await registry.push_blob(target.repository, descriptor, blobs.path(descriptor.digest))
                pushed.sent += 1

    try:
        async with asyncio.TaskGroup() as group:
            for descriptor, base in _blobs_of(built).values():
                group.create_task(bring_there(descriptor, base))
    except BaseExceptionGroup as errors:  # before 3.11.4, except* makes a group of errors raised in it
        raise errors.exceptions[0] from None
    for image in built.images:
        await _put(image.manifest, image.manifest.digest, target, registry, blobs)
    if len(built.images) > 1:
        await _put(built.top, built.top.digest, target, registry, blobs)
    for image in built.images:
        await _attach(image, target, registry, blobs)
    await _put(built.top, target.tag, target, registry, blobs)
    pushed.bytes = registry.sent_bytes
    return pushed


def _blobs_of(built: Built) -> dict[str, tuple[Descriptor, Base | None]]:
    """Return the blobs that must be there before the manifests, by digest; the base's blobs with the base."""
    wanted: dict[str, tuple[Descriptor, Base | None]] = {}
    for image in built.images:
        wanted |= {layer.descriptor.digest: (layer.descriptor, image.base) for layer in image.base.layers}
        ours = (*(layer.descriptor for layer in image.layers), image.config, *image.bill.blobs)
        wanted |= {descriptor.digest: (descriptor, None) for descriptor in ours}
    return wanted


async def _put(
    descriptor: Descriptor, name: str, target: Reference, registry: RegistryClient, blobs: Blobs
) -> bool:
    data = blobs.read(descriptor.digest)
    return await registry.put_manifest(target.repository, name, descriptor.media_type, data)


async def _attach(image: Image, target: Reference, registry: RegistryClient, blobs: Blobs) -> None:
    """Push the bill of materials. A registry that doesn't list such artifacts itself gets an index of them,
    under a tag made of the image's digest, as OCI specifies."""
    bill = image.bill.manifest
    if await _put(bill, bill.digest, target, registry, blobs):
        return
    tag = image.manifest.digest.replace(":", "-")
    known: list[Descriptor] = []
    with contextlib.suppress(NotKnown):
        _, data = await registry.manifest(target.repository, tag)
        try:
            known = msgspec.json.decode(data, type=Index).manifests
        except UNREADABLE as error:
            raise OperationRefused(
                f"{registry.host} has no index of OCI's form under the tag {tag} of {target.repository},"
                f" where the bill of materials belongs: {error}; delete that tag, and push again"
            ) from None
    if bill.digest not in {each.digest for each in known}:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*known, bill]}
        await registry.put_manifest(target.repository, tag, INDEX, document(index))
