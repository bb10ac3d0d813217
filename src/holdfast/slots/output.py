"""The standard output and error of a slot's process, as lines for the log. Of a flood some lines are dropped;
no line waits for the node, and none makes it wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from holdfast.common.rate import Limiter, Rate
from holdfast.ports.clock import Clock

CHUNK_BYTES = 1 << 16
PAUSE_S = 0.02
"""After a full chunk. A process that writes faster than that waits, or it would keep the node busy."""

LINES = Rate(per_s=50, burst=200)
LINE_BYTES_MAX = 4000


class Output:
    """The reading end of a pipe. ``said`` is called with lines."""

    def __init__(self, pipe: int, clock: Clock, said: Callable[[str], None]) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._clock = clock
        self._said = said
        self._lines = Limiter(LINES)
        self._dropped = 0
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._listen()

    @property
    def owes(self) -> bool:
        """True if a line was begun, or some were dropped and that isn't told yet."""
        return bool(self._rest or self._dropped)

    def flush(self) -> None:
        """Read what there is, unfinished lines included: who wrote it has ended."""
        self._read()
        rest, self._rest = self._rest, b""
        self._tell([rest] if rest else [])
        self._tell_dropped()

    def close(self) -> None:
        """Read what is left, and no more."""
        if self._open:
            self.flush()
            self._open = False
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._pipe, self._heed)

    def _heed(self) -> None:
        size = self._read()
        if size == 0 or size == CHUNK_BYTES:
            self._loop.remove_reader(self._pipe)
        if size == CHUNK_BYTES:
            self._loop.call_later(PAUSE_S, self._listen)

    def _read(self) -> int:
        """Read a chunk; returns its size, 0 at the end."""
        try:
            data = os.read(self._pipe, CHUNK_BYTES)
        except BlockingIOError:
            return -1
        if data:
            *lines, rest = (self._rest + data).split(b"\n")
            while len(rest) > LINE_BYTES_MAX:
                lines.append(rest[:LINE_BYTES_MAX])
                rest = rest[LINE_BYTES_MAX:]
            self._rest = rest
            self._tell(lines)
        return len(data)

    def _tell(self, lines: list[bytes]) -> None:
        now = self._clock.monotonic()
        for done, line in enumerate(lines):
            if self._lines.take("", 1, now) > 0:
                self._dropped += len(lines) - done
                return
            self._tell_dropped()
            self._said(line[:LINE_BYTES_MAX].decode(errors="backslashreplace"))

    def _tell_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._said(f"({dropped} lines were dropped: too many)")
