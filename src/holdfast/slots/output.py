"""The standard output and error of a slot's process, as lines for the log. Of a flood some lines are dropped;
no line waits for the node, and none makes it wait."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import sys
from collections.abc import Callable

from holdfast.common.rate import Limiter, Rate
from holdfast.ports.clock import Clock

PIPE_BYTES = 1 << 20
"""The size of the pipe, and the most bytes of one read."""

PAUSE_S = 0.001
"""The pause after a read, in which the node does other work, and the pipe takes what is printed."""

RATES = {"lines": Rate(per_s=50, burst=200), "bytes": Rate(per_s=8 << 10, burst=32 << 10)}
"""What is logged of each process. A line is searched for secrets, which takes milliseconds for a long one."""

DROPS_S = 1.0
"""How long all is dropped once there was too much: whole passages are logged, rather than single lines."""

LINE_BYTES_MAX = 4000

DROPPED = "lines were dropped: too many"


class Output:
    """The reading end of a pipe. ``said`` is called with lines, and ``dropped`` with how many lines and bytes
    of a flood weren't said."""

    def __init__(
        self, pipe: int, clock: Clock, said: Callable[[str], None], dropped: Callable[[int, int], None]
    ) -> None:
        os.set_blocking(pipe, False)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # the user's pipes together may be as large as they may be
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pipe = pipe
        self._clock = clock
        self._said = said
        self._tell_dropped = dropped
        self._rates = Limiter(None, RATES)
        self._drops_until = -math.inf
        self._dropped_lines = self._dropped_bytes = 0
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._listen()

    @property
    def owes(self) -> bool:
        """True if a line was begun, or some were dropped and that isn't told yet."""
        return bool(self._rest or self._dropped_bytes)

    def flush(self) -> None:
        """Read what there is, unfinished lines included: who wrote it has ended."""
        self._read()
        rest, self._rest = self._rest, b""
        if rest:
            self._take(rest + b"\n")
        self._tell()

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
        self._loop.remove_reader(self._pipe)
        if self._read() != 0:
            self._loop.call_later(PAUSE_S, self._listen)

    def _read(self) -> int:
        """Read what there is; returns its size, 0 at the end."""
        try:
            data = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return -1
        if data:
            rest, self._rest = self._rest, b""
            self._take(rest + data)
        return len(data)

    def _take(self, data: bytes) -> None:
        """Say the lines, and drop those that are too much. What is no whole line yet is kept."""
        now, start = self._clock.monotonic(), 0
        while now >= self._drops_until:
            line, end, _ = data[start : start + LINE_BYTES_MAX + 1].partition(b"\n")
            if not end and len(line) <= LINE_BYTES_MAX:
                self._rest = line
                return
            line = line[:LINE_BYTES_MAX]
            if any(
                self._rates.take(key, units, now) > 0 for key, units in (("lines", 1), ("bytes", len(line)))
            ):
                self._drops_until = now + DROPS_S
                break
            self._tell()
            self._said(line.decode(errors="backslashreplace"))
            start += len(line) + len(end)
        self._drop(data, start)

    def _drop(self, data: bytes, start: int) -> None:
        """Drop the lines from there on, without looking at each."""
        begun = max(start, data.rfind(b"\n") + 1)
        if len(data) - begun <= LINE_BYTES_MAX:
            self._rest = data[begun:]
        self._dropped_lines += data.count(b"\n", start)
        self._dropped_bytes += len(data) - start - len(self._rest)

    def _tell(self) -> None:
        if self._dropped_bytes:
            lines, size = self._dropped_lines, self._dropped_bytes
            self._dropped_lines = self._dropped_bytes = 0
            self._tell_dropped(lines, size)
