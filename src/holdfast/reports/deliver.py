"""Deliver one file: made while it is sent, placed whole, and found again by whoever comes next."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager

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

NOTE_S = 1.0
TRIES = 5
GO_ON = (Retry.SAFE, Retry.SAME)

Chunks = Callable[[], Iterator[Data]]
Connect = Callable[[], AbstractAsyncContextManager[Sink]]
Note = Callable[[Record], Awaitable[None]]


class Delivered(msgspec.Struct, frozen=True):
    """A file in its place. ``duplicated``: it was there before. ``sent``: bytes that were sent now, in
    ``tries``; ``gone_on``: bytes of it that the service held already."""

    record: Record
    duplicated: bool
    sent: int = 0
    gone_on: int = 0
    tries: int = 1


async def deliver_file(
    parcel: FileToDeliver,
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
    """Deliver one file, in several tries if need be.

    Args:
        parcel: the file.
        chunks: makes its bytes, the same each time it is called; it runs in a thread of its own.
        connect: gives a connection to the destination, exclusively.
        clock: for pauses, ids and the pace.
        record: what is known of this parcel from before.
        note: keeps what is known now; awaited before the next step is taken.
        progress: is told how many bytes of the file are made, and sent unless the service had them; it begins
            anew with each try.
        pace: is told how many bytes are to be sent, and returns the seconds to wait before.
        leave: whether somebody may go on with what is half-sent when this gives up.
        tries: how often to try while no try gets any further.
        backoff: pauses between tries.

    Raises the error of the last try, or one that no other try can help. What is half-sent then is left to be
    gone on with if it can be and is to be, else removed. It is removed too if the destination is full, as
    others need the room, and if this is cancelled; but not by one that can't keep the record any more, since
    what the destination holds may then be another's.
    """
    work = _Work(parcel, chunks, connect, clock, record, note, progress, pace)
    return await work.run(tries, backoff or Backoff(), leave=leave)


class _Work:
    """One parcel's delivery."""

    def __init__(
        self,
        parcel: FileToDeliver,
        chunks: Chunks,
        connect: Connect,
        clock: Clock,
        record: Record | None,
        note: Note | None,
        progress: Callable[[int], None] | None,
        pace: Callable[[int], float] | None,
    ) -> None:
        self._parcel = parcel
        self._chunks = chunks
        self._connect = connect
        self._clock = clock
        self._record = record
        self._note = note
        self._progress = progress
        self._pace = pace
        self._noted_at = 0.0
        self._sent = 0
        self._gone_on = 0
        self._reached = 0  # the furthest mark

    async def run(self, tries: int, backoff: Backoff, *, leave: bool) -> Delivered:
        failures, tried = 0, 0
        while True:
            tried += 1
            reached = self._reached
            try:
                async with self._connect() as sink:
                    duplicated = await self._deliver(sink)
                assert self._record is not None
                return Delivered(self._record, duplicated, self._sent, self._gone_on, tried)
            except HoldfastError as error:
                failures = 1 if self._reached > reached else failures + 1
                if error.retry not in GO_ON or failures >= tries:
                    if not leave and not isinstance(error, Fenced):
                        await self._remove()
                    raise
            await self._clock.sleep(backoff.delay_s(failures, self._clock.random()))

    async def _remove(self) -> None:
        """Remove what is half-sent, as far as the destination answers."""
        record = self._record
        if record is None or record.stage in (DeliveryStage.PLACED, DeliveryStage.DONE):
            return
        with contextlib.suppress(HoldfastError):
            async with self._connect() as sink:
                for token in record.removable:
                    await sink.discard(record.name, token)

    async def _deliver(self, sink: Sink) -> bool:
        """One try; returns whether it was delivered before."""
        step = decide(self._parcel, self._record, await self._found(sink))
        if step is DeliveryStep.LOOK:
            step = DeliveryStep.FINISH if await self._stands(sink) else DeliveryStep.RESUME
        if step is DeliveryStep.NOTHING:
            return True
        if step is not DeliveryStep.FINISH:
            upload, mark = await self._begin(sink, step)
            file = await self._send(sink, upload, mark)
            self._record = self._changed(
                stage=DeliveryStage.PLACED, tokens=(), marks=(), version=file.version
            )
        await self._accompany(sink)
        return step is DeliveryStep.FINISH

    async def _found(self, sink: Sink) -> RemoteFile | None:
        """Find what stands under the parcel's name, as far as it matters and the service tells."""
        if self._record is None or self._record.stage is DeliveryStage.SENDING:
            return None
        try:
            return await sink.stat(self._parcel.name)
        except ConfigError:  # one who may only put
            return RemoteFile(self._parcel.name, UNKNOWN_SIZE)

    async def _stands(self, sink: Sink) -> bool:
        """Return whether the file in its place has the content of the one that was being placed."""
        assert self._record is not None
        digest = hashlib.sha256()
        try:
            async for chunk in sink.read(self._parcel.name):
                digest.update(chunk)
        except (FileNotFoundError, ConfigError):  # gone, or not ours to read
            return False
        return digest.hexdigest() == self._record.sha256

    async def _begin(self, sink: Sink, step: DeliveryStep) -> tuple[Upload, Mark | None]:
        """Open an upload, or take over what is left of one; with the place to go on from."""
        parcel, record = self._parcel, self._record
        part = parcel.name if parcel.in_place else temporary(parcel.name, self._clock.new_id()[-12:])
        left = record.removable if record is not None else ()
        if step is DeliveryStep.RESUME and record is not None and not parcel.in_place:
            # Both names are known before the one turns into the other.
            await self._keep(
                msgspec.structs.replace(record, stage=DeliveryStage.SENDING, tokens=(*left, part))
            )
            for token in left:
                upload = await sink.resume(parcel.name, part, token, replace=parcel.replace)
                if upload is None:
                    continue
                mark = best(record.marks, upload.held, upload.grain)
                if mark is not None:
                    await upload.skip(mark.size)
                    await self._keep_token(upload)
                    return upload, mark
                await upload.abort()
        elif record is not None and left:
            await self._keep(record)  # another attempt may have it in its place by now
        for token in left:
            await sink.discard(record.name if record is not None else parcel.name, token)
        fresh = Record(parcel.name, parcel.content, tokens=(part,) if sink.can_rename else ())
        if fresh.tokens or left:
            await self._keep(fresh)
        else:
            self._record = fresh  # it tells nothing that whoever comes next could find
        upload = await sink.open(parcel.name, part, replace=parcel.replace)
        if parcel.in_place:
            try:
                await self._keep(self._changed(opened=True))
            except BaseException as error:
                await asyncio.shield(self._let_go(sink, upload, error))
                raise
        return upload, None

    async def _send(self, sink: Sink, upload: Upload, mark: Mark | None) -> RemoteFile:
        """Send it all and place it; else leave or remove what was sent."""
        try:
            sums = await self._write(upload, mark)
            await self._keep(
                self._changed(stage=DeliveryStage.PLACING, size=sums.size, sha256=sums.sha256, md5=sums.md5)
            )
            return await upload.commit(sums.sha256, read_back=self._parcel.read_back)
        except BaseException as error:
            await asyncio.shield(self._let_go(sink, upload, error))
            raise

    async def _let_go(self, sink: Sink, upload: Upload, error: BaseException) -> None:
        """Leave what was sent, for it can be gone on with or is another attempt's by now; else remove it."""
        may_go_on = isinstance(error, HoldfastError) and error.retry in GO_ON
        waits = may_go_on and not isinstance(error, Damaged | NoRoom) and not self._parcel.in_place
        if waits or not await self._is_ours():
            await upload.leave()
            return
        await upload.abort()
        if self._parcel.in_place:
            with contextlib.suppress(Exception):  # the error that ended it is the one to tell
                if await sink.stat(self._parcel.name) is None:  # one that comes later is the customer's
                    await self._keep(self._changed(opened=False))

    async def _is_ours(self) -> bool:
        """Return whether the record can still be kept: who can't may have been replaced by another attempt,
        which holds what it holds by the same token."""
        assert self._record is not None
        try:
            await self._keep(self._record)
        except Exception:  # noqa: BLE001 (whatever keeps it)
            return False
        return True

    async def _write(self, upload: Upload, mark: Mark | None) -> _Sums:
        """Write what is made, from ``mark`` on."""
        sums = _Sums(with_md5=Companion.MD5 in self._parcel.companions)
        step = marks_every(upload.grain)
        skipped = mark.size if mark is not None else 0
        self._gone_on += skipped
        async with pieces(self._chunks) as pipe:
            async for piece in pipe:
                for part in _cut(piece, sums.size, step, skipped):
                    if sums.size < skipped:
                        sums.add(part)
                        if mark is not None and sums.size == skipped and sums.sha256 != mark.sha256:
                            raise await self._made_differently()
                    else:
                        await self._write_part(upload, part, sums)
                        if sums.size % step == 0:
                            await self._mark(upload, Mark(sums.size, sums.sha256))
                    if self._progress is not None:
                        self._progress(sums.size)
        if sums.size < skipped:
            raise await self._made_differently()
        return sums

    async def _write_part(self, upload: Upload, part: Data, sums: _Sums) -> None:
        """Write and sum up at once, as both leave the interpreter free."""
        if self._pace is not None:
            wait_s = self._pace(len(part))
            if wait_s > 0:
                await self._clock.sleep(wait_s)
        writing = asyncio.ensure_future(upload.write(part))
        try:
            await asyncio.sleep(0)
            sums.add(part)
            await writing
        finally:
            writing.cancel()
        self._sent += len(part)

    async def _made_differently(self) -> Damaged:
        """The bytes are not those that were sent before: none of these may be gone on with."""
        await self._keep(self._changed(marks=()))
        return Damaged(f"{self._parcel.name!r} is made of other bytes than before: it is sent anew")

    async def _accompany(self, sink: Sink) -> None:
        """Write what belongs beside the file, which is in its place."""
        assert self._record is not None
        names = [self._parcel.name + kind.value for kind in self._parcel.companions]
        parts = names if self._parcel.in_place else [temporary(n, self._clock.new_id()[-12:]) for n in names]
        # One that was written in place is the file itself.
        left = tuple(token for token in self._record.tokens if token != self._parcel.name)
        if left or parts:
            await self._keep(self._changed(stage=DeliveryStage.PLACED, tokens=(*left, *parts), marks=()))
        for token in left:
            await sink.discard(self._parcel.name, token)
        for kind, name, part in zip(self._parcel.companions, names, parts, strict=True):
            body = companion(kind, self._record)
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
        assert self._record is not None
        self._reached = max(self._reached, mark.size)
        marks = (*self._record.marks, mark)[-MARKS_MAX:]
        tokens = (upload.token,) if upload.token else self._record.tokens
        record = self._changed(marks=marks, tokens=tokens)
        now = self._clock.monotonic()
        if tokens == self._record.tokens and now < self._noted_at + NOTE_S:
            self._record = record
            return
        await self._keep(record)

    async def _keep_token(self, upload: Upload) -> None:
        await self._keep(self._changed(tokens=(upload.token,)))

    def _changed(self, **fields: object) -> Record:
        assert self._record is not None
        return msgspec.structs.replace(self._record, **fields)

    async def _keep(self, record: Record) -> None:
        if self._note is not None:
            noting = asyncio.ensure_future(self._note(record))
            try:
                await asyncio.wait([noting])
            except asyncio.CancelledError:
                # Broken off, nobody would know whether it is kept: it could seem to be another's.
                await asyncio.wait([noting])
                if not noting.cancelled():
                    noting.exception()
                raise
            noting.result()
        self._record = record
        self._noted_at = self._clock.monotonic()


class _Sums:
    """Size and checksums of what was made so far."""

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
    """A piece that comes after ``size`` bytes, cut at marks and where it was left off."""
    rest = memoryview(piece)
    while rest:
        room = step - size % step
        if size < skipped:
            room = min(room, skipped - size)
        part = rest[:room]
        rest = rest[len(part) :]
        size += len(part)
        yield part
