"""The standard output and error of a slot's process, as lines for the log. A flood is dropped in part, so
that neither the process nor the node waits for the other."""

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
"""The size of the pipe and of a read."""

PAUSE_S = 0.001
"""Seconds after a read in which the node does other work, and the pipe takes output."""

RATES = {"lines": Rate(per_s=50, burst=200), "bytes": Rate(per_s=8 << 10, burst=32 << 10)}
"""The logged output of a process at most. The search for secrets takes milliseconds for a long line."""

DROPS_S = 1.0
"""Seconds for which all output is dropped after a flood, so that whole passages are logged rather than single
lines."""

LINE_BYTES_MAX = 4000

DROPPED = "output lines dropped"


class Output:
    """The reading end of a pipe. ``on_line`` gets each line, and ``on_dropped`` the numbers of dropped lines
    and bytes."""

    def __init__(
        self, pipe: int, clock: Clock, on_line: Callable[[str], None], on_dropped: Callable[[int, int], None]
    ) -> None:
        os.set_blocking(pipe, False)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # the user's pipes may have reached their limit
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pipe = pipe
        self._clock = clock
        self._on_line = on_line
        self._on_dropped = on_dropped
        self._rates = Limiter(None, RATES)
        self._drops_until = -math.inf
        self._dropped_lines = self._dropped_bytes = 0
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._listen()

    @property
    def pending(self) -> bool:
        """True if a line is incomplete, or dropped lines aren't reported yet."""
        return bool(self._rest or self._dropped_bytes)

    def flush(self) -> None:
        """Read all output, and report an incomplete line too: its writer has ended."""
        self._read()
        rest, self._rest = self._rest, b""
        if rest:
            self._take(rest + b"\n")
        self._report_dropped()

    def close(self) -> None:
        """Read the rest, and close the pipe."""
        if self._open:
            self.flush()
            self._open = False
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        self._loop.remove_reader(self._pipe)
        if self._read() != 0:
            self._loop.call_later(PAUSE_S, self._listen)

    def _read(self) -> int:
        """Read the available output; return its size, 0 at the end, -1 without any."""
        try:
            data = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return -1
        if data:
            rest, self._rest = self._rest, b""
            self._take(rest + data)
        return len(data)

    def _take(self, data: bytes) -> None:
        """Report the lines, and drop a flood. Keep an incomplete line."""
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
            self._report_dropped()
            self._on_line(line.decode(errors="backslashreplace"))
            start += len(line) + len(end)
        self._drop(data, start)

    def _drop(self, data: bytes, start: int) -> None:
        """Drop all lines from ``start`` on."""
        begun = max(start, data.rfind(b"\n") + 1)
        if len(data) - begun <= LINE_BYTES_MAX:
            self._rest = data[begun:]
        self._dropped_lines += data.count(b"\n", start)
        self._dropped_bytes += len(data) - start - len(self._rest)

    def _report_dropped(self) -> None:
        if self._dropped_bytes:
            lines, size = self._dropped_lines, self._dropped_bytes
            self._dropped_lines = self._dropped_bytes = 0
            self._on_dropped(lines, size)
