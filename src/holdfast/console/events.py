"""News for browsers, by server-sent events.

A stream of events tells which topics have changed, never what has changed: the browser then loads the parts
of its page that show them. A stream that can't be written as fast as topics change gets the latest state of
each topic, so what waits for it never grows beyond one entry a topic.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterable

from aiohttp import web

from holdfast.console.access import Admission, Caller, caller_of
from holdfast.http.problem import RequestRefused
from holdfast.ports.clock import Clock

STREAMS_MAX = 256
BEAT_S = 15.0
"""After how long without news a stream gets a line, so that proxies and browsers know that it lives."""

LOOK_S = 2.0
"""How often a stream looks whether its caller may still read."""

WRITE_S = 10.0
"""How long a browser may take to read what was written."""

SEND_BYTES = 16 * 1024
"""How much the kernel keeps of what a browser has not read yet. Without this it would be megabytes: hours of
news, which a browser that reads no more would hold here all that time."""

RETRY_MS = (1_000, 5_000)
PAUSE_S = 1.0
"""The shortest pause between news. What changes meanwhile is told together: with many open pages it is the
number of writes that takes time."""

PAUSE_PER_STREAM_S = 0.02
"""How much longer that pause becomes with each stream: many open pages together ask no more than this."""


class EventStream:
    """One browser's stream of events.

    Attributes:
        waiting: the revision of each topic that has yet to be written.
        woken: set when something waits or the stream is to end.
        writing: whether bytes are on their way that the browser has yet to read.
    """

    def __init__(self, caller: Caller, transport: asyncio.Transport | None = None) -> None:
        self.caller = caller
        self.waiting: dict[str, str] = {}
        self.woken = asyncio.Event()
        self.closed = False
        self.transport = transport
        self.writing = False
        kernel = transport.get_extra_info("socket") if transport is not None else None
        if kernel is not None:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)

    def put(self, topics: Iterable[str], text: str) -> None:
        """Have the stream tell that topics have this revision."""
        self.waiting |= dict.fromkeys(topics, text)
        self.woken.set()

    def end(self) -> None:
        """End it: in good order, or at once if its browser doesn't read what is being written."""
        self.closed = True
        self.woken.set()
        if self.writing:
            self.cut()

    def cut(self) -> None:
        """Close the connection without writing the rest, for which nobody else would wait."""
        if self.transport is not None:
            self.transport.abort()

    async def write(self, response: web.StreamResponse, text: str) -> None:
        """Write. Raises TimeoutError for a browser that doesn't read."""
        self.writing = True
        async with asyncio.timeout(WRITE_S):
            await response.write(text.encode())
        self.writing = False


class Events:
    """All streams of events of one console.

    Attributes:
        most: how many streams may be open at once.
        streams: the open streams, in the order in which they came.
        on_news: called each time before browsers are told, who load at once what has changed.
    """

    def __init__(self, access: Admission, clock: Clock, *, most: int = STREAMS_MAX) -> None:
        self._access = access
        self._clock = clock
        self.most = most
        self.on_news: list[Callable[[], None]] = []
        self.streams: dict[EventStream, None] = {}
        self._changed: dict[str, None] = {}
        self._told_at = -math.inf
        self._telling: asyncio.TimerHandle | None = None
        self._revision = 0

    def __len__(self) -> int:
        return len(self.streams)

    def publish(self, *topics: str) -> None:
        """Tell that topics have changed: at once, or together with others after a pause."""
        self._changed |= dict.fromkeys(topics)
        pause_s = max(PAUSE_S, len(self.streams) * PAUSE_PER_STREAM_S)
        wait_s = self._told_at + pause_s - self._clock.monotonic()
        if wait_s <= 0 or not self.streams:
            self._tell()
        elif self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(wait_s, self._tell)

    def _tell(self) -> None:
        self._rest()
        self._told_at = self._clock.monotonic()
        self._revision += 1
        changed, self._changed = self._changed, {}
        for prepare in self.on_news:
            prepare()
        for stream in self.streams:
            stream.put(changed, str(self._revision))

    def _rest(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def look(self) -> None:
        """End the streams of callers who may not read any more."""
        for stream in self.streams:
            if not self._access.still(stream.caller):
                stream.end()

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.look()

    def close(self) -> None:
        """End all streams."""
        self._rest()
        for stream in self.streams:
            stream.end()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with a stream of events."""
        if len(self.streams) >= self.most:
            raise RequestRefused(
                503, "unavailable", "Not now", f"all of {self.most} streams of events are in use; come again"
            )
        stream = EventStream(caller_of(request), request.transport)
        self.streams[stream] = None
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        try:
            await response.prepare(request)
            low, high = RETRY_MS
            # Browsers whose console has ended must not all come back at once.
            retry_ms = low + int(self._clock.random() * (high - low))
            await stream.write(response, f"retry: {retry_ms}\n\n")
            while not stream.closed:
                if not await self._clock.wait(stream.woken, BEAT_S):
                    await stream.write(response, ":\n\n")
                    continue
                stream.woken.clear()
                news, stream.waiting = stream.waiting, {}
                told = "".join(f"event: {topic}\ndata: {text}\n\n" for topic, text in news.items())
                await stream.write(response, told)
            async with asyncio.timeout(WRITE_S):
                await response.write_eof()
        except (ConnectionError, TimeoutError):
            stream.cut()  # whoever serves the request would wait for its rest to be read, without end
        finally:
            self.streams.pop(stream, None)
        return response
