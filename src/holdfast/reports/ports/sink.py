"""The sink: a customer's destination, to which files are written each whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeAlias

import msgspec

Data: TypeAlias = bytes | memoryview

IN_PLACE = "where a server can't, order the option in_place, and a companion that tells when it is complete"
"""How the error of a service that refuses to rename ends."""


UNTOLD = -1
"""The size of a file where the service doesn't tell it."""


class RemoteFile(msgspec.Struct, frozen=True):
    """A finished file. ``size`` is UNTOLD where the service doesn't tell it. ``version`` is the service's own
    mark of its content, the same only while that is the same; empty where it has none."""

    name: str
    size: int
    version: str = ""


class Upload(Protocol):
    """One file on its way. Nobody who reads the destination sees it before ``commit``.

    Attributes:
        token: by which another process finds what the service holds of it (``resume``, ``discard``); empty
            while it holds nothing. To be recorded, when it is opened and whenever it has changed.
        held: bytes that the service held when the upload was resumed; 0 for a new one.
        grain: ``skip`` takes multiples of this.
    """

    token: str
    held: int
    grain: int

    async def skip(self, size: int) -> None:
        """Count on the first ``size`` bytes that the service holds, and go on after them: once, first of all,
        on every upload that was resumed. At least 1, at most ``held``, and a multiple of ``grain``; where
        that can't be, abort it and open another."""

    async def write(self, data: Data) -> None:
        """Send the next bytes; returns when more may come, which may be before they are sent. What is given
        away must not change. Raises Unavailable, or ConfigError where the service won't take them.

        A service that may refuse a piece and take those after it would tell a size that hides the hole: at
        each multiple of ``marks_every(grain)`` bytes this returns only when all before it is taken."""

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        """Make it the file, once the service holds all that was sent, on disk where it can say so.

        Its size is compared, and its content with ``sha256`` (hex) where the service tells a checksum; with
        ``read_back`` everywhere, if need be by reading the file back. Raises Damaged if they differ or
        another process took the upload over, AlreadyThere if there is a file that was not to be replaced,
        Unavailable, and OutcomeUnknown if the file may be there: look."""

    async def abort(self) -> None:
        """Give it up and remove what the service holds of it, as well as that can be done now. Never raises;
        nothing to do after ``commit``."""

    async def leave(self) -> None:
        """Let go of it, and leave what the service holds for ``resume``. Never raises."""


class Sink(Protocol):
    """One connection to one destination: one upload at a time, in one event loop.

    Names are relative to the destination's folder, and checked (``core.remote_name``); folders that lack are
    made. ``temporary`` is the name, in the same folder, for what isn't finished; each upload has its own. It
    may be the file's name itself, for services that can't rename: then readers see what isn't finished.

    All raise InvalidMessage for a name that can't be, LoginRefused, ConfigError for what isn't allowed, and
    Unavailable.

    Attributes:
        can_resume: what a dead process left of an upload can be gone on with.
        can_rename: a file is written under its temporary name. False where the service itself shows nothing
            but complete files.
        has_checksum: the service vouches for the content: it tells or compares a checksum of it.
        keeps_first: with ``replace=False`` the service itself sees to it that the first of two stands. False
            where a look before the commit must do.
    """

    can_resume: bool
    can_rename: bool
    has_checksum: bool
    keeps_first: bool

    async def stat(self, name: str) -> RemoteFile | None:
        """The finished file of that name, if there is one. Raises ConfigError where nobody is told."""

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> Upload:
        """Begin to write a file. Without ``replace`` it must not take the place of another; AlreadyThere may
        be raised here or by the commit."""

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> Upload | None:
        """Take over what the service holds of the upload ``token``; None if that is nothing. Whoever held
        it can't commit it any more, unless it holds the very same bytes."""

    async def discard(self, name: str, token: str) -> None:
        """Remove what the upload ``token`` of the file ``name`` left, if anything."""

    def read(self, name: str) -> AsyncIterator[bytes]:
        """A finished file's bytes. Raises FileNotFoundError."""

    async def close(self) -> None:
        """Release the connection. Calls under way fail, and what is written and not committed is left."""
