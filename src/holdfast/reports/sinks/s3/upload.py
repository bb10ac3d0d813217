"""The upload of one file into a bucket, in parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, Damaged, HoldfastError, OutcomeUnknown, TooLarge, Unavailable
from holdfast.extend.s3 import MultipartUpload, Spot
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.sink_base import UploadBase, already_there

if TYPE_CHECKING:
    from holdfast.reports.sinks.s3.sink import S3Sink

PARTS_MAX = 10_000
AT_ONCE = 3
LEAVE_S = 5.0


class S3Upload(UploadBase):
    """The upload of one file."""

    def __init__(
        self,
        sink: S3Sink,
        name: str,
        spot: Spot,
        part_bytes: int,
        *,
        replace: bool,
        token: str = "",
        tags: Sequence[str] = (),
    ) -> None:
        super().__init__(name, token, replace=replace, held=len(tags) * part_bytes)
        self.grain = part_bytes
        self._sink = sink
        self._multipart = MultipartUpload(sink.call, spot, token)
        self._spot = spot
        self._tags = list(tags)
        self._part: memoryview | None = None  # the next one
        self._filled = 0
        self._free: list[memoryview] = []
        self.parts: list[asyncio.Task[str]] = []
        self._room = asyncio.Semaphore(AT_ONCE)
        self._over = False

    async def skip(self, size: int) -> None:
        await super().skip(size)
        del self._tags[size // self.grain :]

    async def write(self, data: Data) -> None:
        rest = memoryview(data)
        while rest:
            if self._part is None:
                self._part = self._free.pop() if self._free else memoryview(bytearray(self.grain))
            piece = rest[: self.grain - self._filled]
            rest = rest[len(piece) :]
            self._part[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            self.sent_bytes += len(piece)
            if self._filled == self.grain:
                await self._send(self._take())

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        last = self._take()
        if not self.token:
            await self._put(last)
        else:
            if last:
                await self._send(last)
            await self._complete(self._tags + list(await asyncio.gather(*self.parts)))
        self._over = True
        return await self._checked()

    async def abort(self) -> None:
        if not self._over:
            await self._stop(0.0)
            with contextlib.suppress(HoldfastError):  # the bucket's lifecycle rule removes the rest
                await self._sink.discard(self.name, self.token)

    async def leave(self) -> None:
        if not self._over:
            await self._stop(LEAVE_S)

    def _take(self) -> memoryview:
        """Return the buffered bytes as the next part, and empty the buffer."""
        part = memoryview(b"") if self._part is None else self._part[: self._filled]
        self._part, self._filled = None, 0
        return part

    async def _send(self, part: memoryview) -> None:
        """Begin to put the next part, once fewer than AT_ONCE parts are being put."""
        if not self.token:
            await self._multipart.begin(self._sink.headers)
            self.token = self._multipart.token
        number = len(self._tags) + len(self.parts) + 1
        if number > PARTS_MAX:
            raise TooLarge(
                f"{self.name!r} takes over {PARTS_MAX} parts of {self.grain}: set larger ones (part_bytes)"
            )
        await self._room.acquire()
        for task in self.parts:
            if task.done():
                task.result()  # raises the error of a failed part
        task = asyncio.create_task(self._put_part(number, part))
        task.add_done_callback(lambda _: self._release(part))
        self.parts.append(task)

    def _release(self, part: memoryview) -> None:
        if len(part) == self.grain:
            self._free.append(part)
        self._room.release()

    async def _put_part(self, number: int, part: memoryview) -> str:
        try:
            return await self._multipart.put_part(number, part)
        except OutcomeUnknown as error:  # a part may be put again
            raise Unavailable(str(error)) from error
        except FileNotFoundError:
            raise self.taken_over() from None

    async def _put(self, body: memoryview) -> None:
        headers = self._sink.headers | self._condition()
        await self._place(
            partial(self._sink.call, "PutObject", self._spot, "PUT", headers=headers, body=body)
        )

    async def _complete(self, tags: Sequence[str]) -> None:
        try:
            await self._place(partial(self._multipart.complete, tags, self._condition()))
        except FileNotFoundError:
            raise self.taken_over() from None

    async def _place(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make the call after which the file is in its place."""
        from holdfast.extend.s3 import AwsRefused  # noqa: PLC0415

        if not self.replace:
            await self._sink.check_absent(self.name)  # for services that ignore the condition
        try:
            await call()
        except AwsRefused as error:
            if error.code == "PreconditionFailed":
                raise already_there(self.name) from None
            if error.code in ("ConditionalRequestConflict", "InvalidPart"):
                raise Unavailable(str(error)) from error
            raise

    async def _checked(self) -> RemoteFile:
        try:
            found = await self._sink.stat(self.name)
        except ConfigError:  # this user may only put; the parts' checksums were compared
            return RemoteFile(self.name, self.sent_bytes)
        if found is None:
            raise Damaged(f"the bucket has no {self.name!r}, and {self.sent_bytes} bytes were sent")
        self.check_size(found.size)
        return found

    async def _stop(self, patience_s: float) -> None:
        self._over = True
        if self.parts:
            _, late = await asyncio.wait(self.parts, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*self.parts, return_exceptions=True)

    def _condition(self) -> dict[str, str]:
        return {} if self.replace else {"If-None-Match": "*"}
