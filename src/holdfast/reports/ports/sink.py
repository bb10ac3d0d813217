"""The sink: a customer's destination, to which files are written each whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeAlias

import msgspec

Data: TypeAlias = bytes | memoryview

UNKNOWN_SIZE = -1
"""The size of a file where the service doesn't report sizes."""


class RemoteFile(msgspec.Struct, frozen=True):
    """A finished file. ``size`` may be UNKNOWN_SIZE. ``version`` is the service's own mark of the content:
    equal marks mean equal content. It is empty where the service has no marks."""

    name: str
    size: int
    version: str = ""


class Upload(Protocol):
    """The upload of one file. Readers of the destination don't see the file before ``commit``.

    Attributes:
        token: the name by which another process finds the upload at the service (``resume``, ``discard``);
            empty while the service holds nothing. Record it when the upload is opened, and when it changes.
        held: bytes that the service held when the upload was resumed; 0 for a new one.
        grain: ``skip`` takes multiples of this.
    """

    token: str
    held: int
    grain: int

    async def skip(self, size: int) -> None:
        """Keep the first ``size`` bytes that the service holds, and go on after them. It is called once,
        first, on each resumed upload. ``size`` is at least 1, at most ``held``, and a multiple of ``grain``;
        if no size fits, abort the upload and open another."""

    async def write(self, data: Data) -> None:
        """Send the next bytes, and return when more may come; the bytes may be on their way still, so they
        must not change. Raises Unavailable, or ConfigError if the service refuses them.

        If a service may refuse a block and accept later ones, the file's size hides the hole. Then, at each
        multiple of ``marks_every(grain)`` bytes, this returns only once all earlier blocks are accepted."""

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        """Put the file in its place, once the service holds all bytes, on disk where it can say so.

        The size is compared, and the content with ``sha256`` (hex) where the service computes a checksum;
        with ``read_back`` always, by reading the file if needed. Raises Damaged if they differ or if another
        process took over the upload, AlreadyThere if the file must not be replaced, Unavailable, and
        OutcomeUnknown if the file may be in its place."""

    async def abort(self) -> None:
        """Give up, and remove the upload from the service as far as possible. Never raises; does nothing
        after ``commit``."""

    async def leave(self) -> None:
        """Release the upload, and leave its bytes at the service for ``resume``. Never raises."""


class Sink(Protocol):
    """One connection to one destination: one upload at a time, in one event loop.

    Names are relative to the destination's folder, and checked (``rules.remote_name``); missing folders are
    made. ``temporary`` is the name of the unfinished file, in the same folder; each upload has its own. It
    may equal the file's name, for services that can't rename: then readers see the unfinished file.

    All methods raise InvalidMessage for a bad name, LoginRefused, ConfigError for a call that isn't allowed,
    and Unavailable.

    Attributes:
        can_resume: another process can resume an upload.
        can_rename: a file is written under its temporary name. False where the service itself shows complete
            files only.
    """

    can_resume: bool
    can_rename: bool

    async def stat(self, name: str) -> RemoteFile | None:
        """Return the finished file, or None. Raises ConfigError if this user may not look."""

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> Upload:
        """Begin to write a file. Without ``replace``, this or the commit raises AlreadyThere if it exists."""

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> Upload | None:
        """Take over the upload ``token``; return None if the service holds nothing of it. Its former owner
        can't commit it any longer, unless the bytes are the same."""

    async def discard(self, name: str, token: str) -> None:
        """Remove the upload ``token`` of the file ``name``, if there is one."""

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield a finished file's bytes. Raises FileNotFoundError."""

    async def close(self) -> None:
        """Release the connection. Running calls fail, and uncommitted uploads are left."""
