"""What a slot's process prints, as lines for the log."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from holdfast.slots.output import LINE_BYTES_MAX, RATES, Output
from holdfast.system.clock import SystemClock

FLOOD_BYTES = 64 << 20
PATIENCE_S = 10.0
"""Half of what the flood took at one pipe of 64 KiB each 20 ms."""


class Pipe:
    """A pipe whose reading end is an output, and what it said."""

    def __init__(self) -> None:
        read, self.pen = os.pipe()
        self.lines: list[str] = []
        self.dropped_lines = self.dropped_bytes = 0
        self.output = Output(read, SystemClock(), self.lines.append, self._dropped)

    def _dropped(self, lines: int, size: int) -> None:
        self.dropped_lines += lines
        self.dropped_bytes += size

    def write(self, data: bytes) -> None:
        """Write all of it, as a process does that prints."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.pen, left) :]

    @property
    def said_bytes(self) -> int:
        return sum(len(line) for line in self.lines)


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.output.close()
    with contextlib.suppress(OSError):
        os.close(pipe.pen)


@pytest.mark.parametrize(
    "line", [b"x" * (1 << 20), b"x" * 79 + b"\n", b"\n" * 100], ids=["none", "long", "short"]
)
async def test_a_flood_holds_who_prints_it_up_for_no_time_and_all_of_it_is_counted(
    pipe: Pipe, line: bytes
) -> None:
    whole = line * (FLOOD_BYTES // len(line))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(pipe.write, whole)
    while pipe.output.pending:
        pipe.output.flush()
    ends = pipe.dropped_lines + (len(pipe.lines) if line.endswith(b"\n") else 0)
    assert ends == whole.count(b"\n")
    assert pipe.said_bytes + ends + pipe.dropped_bytes - pipe.dropped_lines == len(whole)
    assert pipe.said_bytes <= RATES["bytes"].burst + PATIENCE_S * RATES["bytes"].per_s
    assert len(pipe.lines) >= 2


async def test_lines_are_said_as_they_come_and_the_last_one_without_its_end(pipe: Pipe) -> None:
    for piece in (b"on", b"e\ntwo\n\nfour ", b"\xff\nfive"):
        pipe.write(piece)
    pipe.output.flush()
    assert pipe.lines == ["one", "two", "", "four \\xff", "five"]
    assert not pipe.output.pending


async def test_a_line_that_is_too_long_is_cut_into_several(pipe: Pipe) -> None:
    pipe.write(b"a" * LINE_BYTES_MAX + b"\n" + b"b" * (2 * LINE_BYTES_MAX + 1) + b"\n")
    pipe.output.flush()
    assert [len(line) for line in pipe.lines] == [LINE_BYTES_MAX] * 3 + [1]
