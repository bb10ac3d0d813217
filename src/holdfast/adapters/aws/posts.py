"""POST requests to one place over kept-alive connections, at half of what a client for all of HTTP costs.

A poller makes hundreds of small calls a second, all alike. What they need of HTTP/1.1 is little: a head, a
body of known length or in chunks, and the next request on the same connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import cast

from multidict import CIMultiDict
from yarl import URL

HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 64 * 1024


class Unreached(OSError):
    """No connection could be had: nothing was sent."""


class Broken(OSError):
    """The connection ended before the answer, or the answer is no HTTP: what was sent may have an effect."""


class Answered:
    """An answer: status, headers (in any case) and body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Posts:
    """Posts to ``url``. ``tls`` is None for plain HTTP; a connection is used again for ``keep_s`` after its
    last answer; a new one may take ``connect_s``."""

    def __init__(self, url: URL, tls: ssl.SSLContext | None, *, keep_s: float, connect_s: float) -> None:
        self._host = url.raw_host or ""
        self._port = url.port or (443 if tls else 80)
        self._tls = tls
        self._keep_s = keep_s
        self._connect_s = connect_s
        self._first = f"POST {url.raw_path_qs} HTTP/1.1\r\nUser-Agent: holdfast\r\n"
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def post(self, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answered:
        """Send one request and return its answer. ``headers`` hold the host and say nothing of the length.

        Raises Unreached, Broken, TimeoutError, ValueError for a header of several lines."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers):
            raise ValueError("a header has a line break")
        head = f"{self._first}{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1")
        connection = self._kept() or await self._connected()
        answered = False
        try:
            answer = await connection.exchange(head + body, timeout_s)
            answered = True
            return answer
        finally:
            if answered and connection.reusable:
                self._idle.append(connection)
            else:
                connection.abort()

    def close(self) -> None:
        """Drop all connections; requests under way fail."""
        for connection in list(self._all):
            connection.abort()

    def _kept(self) -> _Connection | None:
        """The connection used last, if it may be used again: the others get old and are dropped."""
        oldest = asyncio.get_running_loop().time() - self._keep_s
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.answered_at > oldest:
                return connection
            connection.abort()
        return None

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._all),
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError as error:
            raise Unreached(f"no connection in {self._connect_s:g} s") from error
        except OSError as error:
            raise Unreached(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, all_: set[_Connection]) -> None:
        self._loop = loop
        self._all = all_
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._answer: _Answer | None = None
        self._waiting: asyncio.Future[Answered] | None = None
        self.reusable = True
        self.answered_at = 0.0

    async def exchange(self, request: bytes, timeout_s: float) -> Answered:
        if self._transport is None:
            raise Broken("the connection ended")
        self._waiting = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, TimeoutError(f"no answer in {timeout_s:g} s"))
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            timer.cancel()

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # --- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        self._got += data
        try:
            self._read()
        except (ValueError, IndexError) as error:
            self._fail(Broken(f"the answer is no HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        self._all.discard(self)
        self._fail(Broken(str(error) if error else "the connection ended before the answer"))

    # --- how it is done

    def _read(self) -> None:
        if self._waiting is None or self._waiting.done():
            self.abort()  # nobody asked
            return
        while self._answer is None:
            end = self._got.find(HEAD_END)
            if end < 0:
                if len(self._got) > HEAD_BYTES_MAX:
                    raise ValueError(f"a head of more than {HEAD_BYTES_MAX} bytes")
                return
            answer = _Answer(self._got[:end].decode("latin-1"))
            del self._got[: end + len(HEAD_END)]
            if answer.status >= 200:  # others only announce it
                self._answer = answer
        body = self._answer.body(self._got)
        if body is None:
            return
        answer, self._answer = self._answer, None
        self.reusable = answer.keeps and not self._got
        self.answered_at = self._loop.time()
        self._waiting.set_result(Answered(answer.status, answer.headers, body))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class _Answer:
    """The head of an answer, and its body as far as that has come. Raises ValueError, IndexError."""

    def __init__(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(first[:50])
        self.status = int(status)
        self.headers = CIMultiDict(
            [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        )
        self.keeps = version != "HTTP/1.0" and self.headers.get("Connection", "").lower() != "close"
        self._chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        length = self.headers.get("Content-Length")
        if length is None and not self._chunked and self.status >= 200 and self.status != 204:
            raise ValueError("neither a length nor chunks")
        self._length = int(length or 0)
        self._chunks = bytearray()

    def body(self, got: bytearray) -> bytes | None:
        """Take the body from what was got; None as long as it isn't all there."""
        if not self._chunked:
            if len(got) < self._length:
                return None
            body = bytes(got[: self._length])
            del got[: self._length]
            return body
        while (end := got.find(b"\r\n")) >= 0:
            size = int(got[:end].split(b";")[0], 16)
            if size == 0:
                return self._trailers(got, end)
            if len(got) < end + 2 + size + 2:
                return None
            self._chunks += got[end + 2 : end + 2 + size]
            del got[: end + 2 + size + 2]
        return None

    def _trailers(self, got: bytearray, end: int) -> bytes | None:
        stop = got.find(HEAD_END, end)  # at once, or after trailers
        if stop < 0:
            return None
        del got[: stop + len(HEAD_END)]
        return bytes(self._chunks)
