"""Dead letters in a file of JSON lines, which only grows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import Unavailable
from holdfast.ports.backup import Kept
from holdfast.ports.queue import DeadLetter
from holdfast.system.files import OWNER, Access, make_file, sync_names


class BackupLine(msgspec.Struct):
    """A letter as a line has it; ``body`` in base64."""

    app: str
    type: str
    id: str
    trace_id: str
    at: float
    reason: str
    detail: str
    attributes: dict[str, str]
    body: bytes


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BackupLine).decode


class FileBackup:
    """The file ``path``, made at the first letter."""

    def __init__(self, path: Path, access: Access = OWNER) -> None:
        self._path = path
        self._access = access

    async def add(self, letters: Sequence[Kept]) -> int:
        return await asyncio.to_thread(self._add, letters)

    async def dead_letters(self, app: str) -> AsyncIterator[Kept]:
        found = {kept.identity: kept for kept in await asyncio.to_thread(self._read) if kept.app == app}
        for kept in sorted(found.values(), key=lambda kept: (kept.dead_letter.at, kept.dead_letter.id)):
            yield kept

    async def close(self) -> None:
        pass

    def _add(self, letters: Sequence[Kept]) -> int:
        known = {kept.identity for kept in self._read()}
        new = {kept.identity: _line(kept) for kept in letters if kept.identity not in known}
        if not new:
            return 0
        try:
            make_file(self._path, self._access)
            with self._path.open("ab+") as file:
                if file.tell() and _last_byte(file.fileno(), file.tell()) != b"\n":
                    file.write(b"\n")  # a crash cut the last line off
                file.write(b"".join(new.values()))
                file.flush()
                os.fsync(file.fileno())
            sync_names(self._path.parent)  # the file may be new
        except OSError as error:
            raise Unavailable(f"{self._path} can't be written: {error.strerror}") from error
        return len(new)

    def _read(self) -> list[Kept]:
        try:
            return list(_kept(self._path.read_bytes()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"{self._path} can't be read: {error.strerror}") from error


def _kept(data: bytes) -> Iterator[Kept]:
    for text in data.splitlines():
        try:
            line = _decode(text)
        except UNREADABLE:
            continue  # it was cut off, and its letter is added again
        letter = DeadLetter(
            id=line.id,
            body=line.body,
            reason=line.reason,
            attributes=line.attributes,
            detail=line.detail,
            key=line.trace_id,
            at=line.at,
        )
        yield Kept(line.app, line.type, letter)


def _line(kept: Kept) -> bytes:
    letter = kept.dead_letter
    line = BackupLine(
        kept.app,
        kept.type,
        letter.id,
        letter.key,
        letter.at,
        letter.reason,
        letter.detail,
        letter.attributes,
        letter.body,
    )
    return _encode(line) + b"\n"


def _last_byte(file: int, size: int) -> bytes:
    return os.pread(file, 1, size - 1)
