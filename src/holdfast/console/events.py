"""Notifications for browsers, by server-sent events.

An event names a topic that has changed; the browser then loads the parts of its page that show the topic.
For a browser that reads slowly, at most one event for each topic waits.
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
"""Seconds without events after which a stream gets a line, so that proxies keep it open."""

LOOK_S = 2.0
"""Seconds between two checks whether callers may still read."""

WRITE_S = 10.0
"""Seconds that a browser has to read what was written."""

SEND_BYTES = 16 * 1024
"""Send buffer of the kernel. By default a browser that has stopped reading would hold megabytes here."""

RETRY_MS = (1_000, 5_000)
PAUSE_S = 1.0
"""Shortest pause between two rounds of events, in seconds. Changes in between are sent together, because the
number of writes is what takes time."""

PAUSE_PER_STREAM_S = 0.02
"""Seconds by which each open stream makes that pause longer, so that many pages together don't ask more
often."""


class EventStream:
    """One browser's stream of events.

    Attributes:
        waiting: the revision of each topic whose event isn't written yet.
        woken: set when an event waits or the stream should end.
        writing: whether the browser still has to read bytes.
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
        """Add events for topics with this revision."""
        self.waiting |= dict.fromkeys(topics, text)
        self.woken.set()

    def end(self) -> None:
        """End the stream: in good order, or at once if its browser doesn't read."""
        self.closed = True
        self.woken.set()
        if self.writing:
            self.cut()

    def cut(self) -> None:
        """Close the connection without writing the rest."""
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
        most: the most open streams.
        streams: the open streams in order of their beginning.
        on_news: called before events are sent, because browsers load the changed parts at once.
    """

    def __init__(self, access: Admission, clock: Clock, *, most: int = STREAMS_MAX) -> None:
        self._access = access
        self._clock = clock
        self.most = most
        self.on_news: list[Callable[[], None]] = []
        self.streams: dict[EventStream, None] = {}
        self._changed: dict[str, None] = {}
        self._sent_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._revision = 0

    def __len__(self) -> int:
        return len(self.streams)

    def publish(self, *topics: str) -> None:
        """Send events for changed topics: at once, or together with others after a pause."""
        self._changed |= dict.fromkeys(topics)
        pause_s = max(PAUSE_S, len(self.streams) * PAUSE_PER_STREAM_S)
        wait_s = self._sent_at + pause_s - self._clock.monotonic()
        if wait_s <= 0 or not self.streams:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._send)

    def _send(self) -> None:
        self._cancel_timer()
        self._sent_at = self._clock.monotonic()
        self._revision += 1
        changed, self._changed = self._changed, {}
        for prepare in self.on_news:
            prepare()
        for stream in self.streams:
            stream.put(changed, str(self._revision))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """End the streams of callers that may no longer read."""
        for stream in self.streams:
            if not self._access.still(stream.caller):
                stream.end()

    async def watch(self) -> None:
        """Check the rights of callers again and again, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.look()

    def close(self) -> None:
        """End all streams."""
        self._cancel_timer()
        for stream in self.streams:
            stream.end()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with a stream of events."""
        if len(self.streams) >= self.most:
            raise RequestRefused(
                503,
                "unavailable",
                "Unavailable",
                f"all {self.most} streams of events are in use; try again later",
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
                waiting, stream.waiting = stream.waiting, {}
                events = "".join(f"event: {topic}\ndata: {text}\n\n" for topic, text in waiting.items())
                await stream.write(response, events)
            async with asyncio.timeout(WRITE_S):
                await response.write_eof()
        except (ConnectionError, TimeoutError):
            stream.cut()  # else aiohttp would wait without end for the browser to read
        finally:
            self.streams.pop(stream, None)
        return response
