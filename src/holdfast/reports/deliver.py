"""Deliver one file: make it while it is sent, place it whole, and resume it after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, NoRoom, Retry
from holdfast.extend import Clock
from holdfast.extend.tools import Backoff
from holdfast.reports.deliver_pipe import pieces
from holdfast.reports.deliver_plan import (
    MARKS_MAX,
    Companion,
    DeliveryStage,
    DeliveryStep,
    FileToDeliver,
    Mark,
    Record,
    best,
    companion,
    decide,
    marks_every,
)
from holdfast.reports.ports.sink import UNKNOWN_SIZE, Data, RemoteFile, Sink, Upload
from holdfast.reports.rules.remote_name import temporary
from holdfast.reports.sink_base import sha256_of

NOTE_S = 1.0
"""Seconds between records of new marks, at least."""

TRIES = 5
GO_ON = (Retry.SAFE, Retry.SAME)

Chunks = Callable[[], Iterator[Data]]
Connect = Callable[[], AbstractAsyncContextManager[Sink]]
Note = Callable[[Record], Awaitable[None]]


class Delivered(msgspec.Struct, frozen=True):
    """A file in its place. ``duplicated``: it was there before. ``sent``: bytes that were sent now, in
    ``tries`` tries; ``gone_on``: bytes that the service held already."""

    record: Record
    duplicated: bool
    sent: int = 0
    gone_on: int = 0
    tries: int = 1


async def deliver_file(
    file: FileToDeliver,
    chunks: Chunks,
    connect: Connect,
    clock: Clock,
    *,
    record: Record | None = None,
    note: Note | None = None,
    progress: Callable[[int], None] | None = None,
    pace: Callable[[int], float] | None = None,
    leave: bool = True,
    tries: int = TRIES,
    backoff: Backoff | None = None,
) -> Delivered:
    """Deliver one file, in several tries if needed.

    Args:
        chunks: makes the file's bytes, the same at each call; it runs in a thread of its own.
        connect: opens a connection to the destination, for this delivery alone.
        record: the record that an earlier delivery of the file kept.
        note: keeps the record; awaited before the next step.
        progress: gets the bytes of the file that this try has made, and sent unless the service held them.
        pace: gets the bytes that are about to be sent, and returns the seconds to wait before.
        leave: whether a later delivery may resume the upload if this one fails.
        tries: the limit of tries in a row that send nothing further.
        backoff: pauses between tries.

    Raises the error of the last try, or one that another try can't help. The upload is left if it can be
    resumed and ``leave`` is true, else removed. It is also removed if the destination is full, as other files
    need the room, and if this is cancelled. It is never removed if the record can't be kept any longer, since
    the upload may then belong to another attempt.
    """
    work = _Delivery(file, chunks, connect, clock, record, note, progress, pace)
    return await work.run(tries, backoff or Backoff(), leave=leave)


@dataclass(slots=True)
class _Delivery:
    file: FileToDeliver
    chunks: Chunks
    connect: Connect
    clock: Clock
    record: Record | None
    note: Note | None
    progress: Callable[[int], None] | None
    pace: Callable[[int], float] | None
    noted_at: float = 0.0
    sent: int = 0
    gone_on: int = 0
    reached: int = 0  # the furthest mark

    async def run(self, tries: int, backoff: Backoff, *, leave: bool) -> Delivered:
        failures, tried = 0, 0
        while True:
            tried += 1
            reached = self.reached
            try:
                async with self.connect() as sink:
                    duplicated = await self._deliver(sink)
                assert self.record is not None
                return Delivered(self.record, duplicated, self.sent, self.gone_on, tried)
            except HoldfastError as error:
                failures = 1 if self.reached > reached else failures + 1
                if error.retry not in GO_ON or failures >= tries:
                    if not leave and not isinstance(error, Fenced):
                        await self._remove()
                    raise
            await self.clock.sleep(backoff.delay_s(failures, self.clock.random()))

    async def _remove(self) -> None:
        """Remove the upload, if the destination answers."""
        record = self.record
        if record is None or record.stage in (DeliveryStage.PLACED, DeliveryStage.DONE):
            return
        with contextlib.suppress(HoldfastError):
            async with self.connect() as sink:
                for token in record.removable:
                    await sink.discard(record.name, token)

    async def _deliver(self, sink: Sink) -> bool:
        """Try once, and return whether the file was delivered before."""
        step = decide(self.file, self.record, await self._found(sink))
        if step is DeliveryStep.LOOK:
            step = DeliveryStep.FINISH if await self._stands(sink) else DeliveryStep.RESUME
        if step is DeliveryStep.NOTHING:
            return True
        if step is not DeliveryStep.FINISH:
            upload, mark = await self._begin(sink, step)
            file = await self._send(sink, upload, mark)
            self.record = self._changed(stage=DeliveryStage.PLACED, tokens=(), marks=(), version=file.version)
        await self._accompany(sink)
        return step is DeliveryStep.FINISH

    async def _found(self, sink: Sink) -> RemoteFile | None:
        """Return the file at the destination, if it matters and this user may look."""
        if self.record is None or self.record.stage is DeliveryStage.SENDING:
            return None
        try:
            return await sink.stat(self.file.name)
        except ConfigError:  # this user may only put
            return RemoteFile(self.file.name, UNKNOWN_SIZE)

    async def _stands(self, sink: Sink) -> bool:
        """Return whether the file in its place is the one that was being placed."""
        assert self.record is not None
        try:
            return await sha256_of(sink.read(self.file.name)) == self.record.sha256
        except (FileNotFoundError, ConfigError):  # gone, or this user may not read it
            return False

    async def _begin(self, sink: Sink, step: DeliveryStep) -> tuple[Upload, Mark | None]:
        """Resume an upload, or open a new one; return it with the mark to go on from."""
        wanted, record = self.file, self.record
        part = wanted.name if wanted.in_place else temporary(wanted.name, self.clock.new_id()[-12:])
        left = record.removable if record is not None else ()
        if step is DeliveryStep.RESUME and record is not None and not wanted.in_place:
            # Both names are recorded before the upload is renamed.
            await self._keep(
                msgspec.structs.replace(record, stage=DeliveryStage.SENDING, tokens=(*left, part))
            )
            for token in left:
                upload = await sink.resume(wanted.name, part, token, replace=wanted.replace)
                if upload is None:
                    continue
                mark = best(record.marks, upload.held, upload.grain)
                if mark is not None:
                    await upload.skip(mark.size)
                    await self._keep_token(upload)
                    return upload, mark
                await upload.abort()
        elif record is not None and left:
            await self._keep(record)  # raises if another attempt owns the file by now
        for token in left:
            await sink.discard(record.name if record is not None else wanted.name, token)
        fresh = Record(wanted.name, wanted.content, tokens=(part,) if sink.can_rename else ())
        if fresh.tokens or left:
            await self._keep(fresh)
        else:
            self.record = fresh  # it names nothing at the destination yet
        upload = await sink.open(wanted.name, part, replace=wanted.replace)
        if wanted.in_place:
            try:
                await self._keep(self._changed(opened=True))
            except BaseException as error:
                await asyncio.shield(self._let_go(sink, upload, error))
                raise
        return upload, None

    async def _send(self, sink: Sink, upload: Upload, mark: Mark | None) -> RemoteFile:
        """Send the file and place it. On an error, leave or remove the upload."""
        try:
            sums = await self._write(upload, mark)
            await self._keep(
                self._changed(stage=DeliveryStage.PLACING, size=sums.size, sha256=sums.sha256, md5=sums.md5)
            )
            return await upload.commit(sums.sha256, read_back=self.file.read_back)
        except BaseException as error:
            await asyncio.shield(self._let_go(sink, upload, error))
            raise

    async def _let_go(self, sink: Sink, upload: Upload, error: BaseException) -> None:
        """Leave an upload that can be resumed, or that belongs to another attempt by now; remove any
        other."""
        may_go_on = isinstance(error, HoldfastError) and error.retry in GO_ON
        waits = may_go_on and not isinstance(error, Damaged | NoRoom) and not self.file.in_place
        if waits or not await self._owns_upload():
            await upload.leave()
            return
        await upload.abort()
        if self.file.in_place:
            with contextlib.suppress(Exception):  # the first error is raised
                if await sink.stat(self.file.name) is None:  # a file that comes later is the customer's
                    await self._keep(self._changed(opened=False))

    async def _owns_upload(self) -> bool:
        """Return whether the record can still be kept. If not, another attempt may own the upload by now."""
        assert self.record is not None
        try:
            await self._keep(self.record)
        except Exception:  # noqa: BLE001 (``note`` may raise any error)
            return False
        return True

    async def _write(self, upload: Upload, mark: Mark | None) -> _Sums:
        """Make the file, write it from ``mark`` on, and return its sums."""
        sums = _Sums(with_md5=Companion.MD5 in self.file.companions)
        step = marks_every(upload.grain)
        skipped = mark.size if mark is not None else 0
        self.gone_on += skipped
        async with pieces(self.chunks) as pipe:
            async for piece in pipe:
                for part in _cut(piece, sums.size, step, skipped):
                    if sums.size < skipped:
                        sums.add(part)
                        if mark is not None and sums.size == skipped and sums.sha256 != mark.sha256:
                            raise await self._content_changed()
                    else:
                        await self._write_part(upload, part, sums)
                        if sums.size % step == 0:
                            await self._mark(upload, Mark(sums.size, sums.sha256))
                    if self.progress is not None:
                        self.progress(sums.size)
        if sums.size < skipped:
            raise await self._content_changed()
        return sums

    async def _write_part(self, upload: Upload, part: Data, sums: _Sums) -> None:
        """Write and hash at the same time: both release the interpreter."""
        if self.pace is not None:
            wait_s = self.pace(len(part))
            if wait_s > 0:
                await self.clock.sleep(wait_s)
        writing = asyncio.ensure_future(upload.write(part))
        try:
            await asyncio.sleep(0)
            sums.add(part)
            await writing
        finally:
            writing.cancel()
        self.sent += len(part)

    async def _content_changed(self) -> Damaged:
        """Drop the marks: the file's bytes differ from the bytes that were sent before."""
        await self._keep(self._changed(marks=()))
        return Damaged(f"{self.file.name!r} has other bytes than before: it is sent from its beginning")

    async def _accompany(self, sink: Sink) -> None:
        """Write the companions of the file, which is in its place."""
        assert self.record is not None
        names = [self.file.name + kind.value for kind in self.file.companions]
        parts = names if self.file.in_place else [temporary(n, self.clock.new_id()[-12:]) for n in names]
        # An upload in place is the file itself.
        left = tuple(token for token in self.record.tokens if token != self.file.name)
        if left or parts:
            await self._keep(self._changed(stage=DeliveryStage.PLACED, tokens=(*left, *parts), marks=()))
        for token in left:
            await sink.discard(self.file.name, token)
        for kind, name, part in zip(self.file.companions, names, parts, strict=True):
            body = companion(kind, self.record)
            upload = await sink.open(name, part)
            try:
                if body:
                    await upload.write(body)
                await upload.commit(hashlib.sha256(body).hexdigest())
            except BaseException:
                await asyncio.shield(upload.abort())
                raise
        await self._keep(self._changed(stage=DeliveryStage.DONE, tokens=()))

    async def _mark(self, upload: Upload, mark: Mark) -> None:
        assert self.record is not None
        self.reached = max(self.reached, mark.size)
        marks = (*self.record.marks, mark)[-MARKS_MAX:]
        tokens = (upload.token,) if upload.token else self.record.tokens
        record = self._changed(marks=marks, tokens=tokens)
        now = self.clock.monotonic()
        if tokens == self.record.tokens and now < self.noted_at + NOTE_S:
            self.record = record
            return
        await self._keep(record)

    async def _keep_token(self, upload: Upload) -> None:
        await self._keep(self._changed(tokens=(upload.token,)))

    def _changed(self, **fields: object) -> Record:
        assert self.record is not None
        return msgspec.structs.replace(self.record, **fields)

    async def _keep(self, record: Record) -> None:
        if self.note is not None:
            noting = asyncio.ensure_future(self.note(record))
            try:
                await asyncio.wait([noting])
            except asyncio.CancelledError:
                # Else nothing would show whether the record is kept: it could look like another attempt's.
                await asyncio.wait([noting])
                if not noting.cancelled():
                    noting.exception()
                raise
            noting.result()
        self.record = record
        self.noted_at = self.clock.monotonic()


class _Sums:
    """Size and checksums of the bytes so far."""

    def __init__(self, *, with_md5: bool) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False) if with_md5 else None

    def add(self, data: Data) -> None:
        self._sha256.update(data)
        if self._md5 is not None:
            self._md5.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str:
        return self._md5.hexdigest() if self._md5 is not None else ""


def _cut(piece: Data, size: int, step: int, skipped: int) -> Iterator[Data]:
    """Cut a piece that comes after ``size`` bytes, at the marks and at ``skipped``."""
    rest = memoryview(piece)
    while rest:
        room = step - size % step
        if size < skipped:
            room = min(room, skipped - size)
        part = rest[:room]
        rest = rest[len(part) :]
        size += len(part)
        yield part
