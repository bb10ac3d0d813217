"""Terminals in their own process, which record all that they receive and send.

Arguments: the broker's URL, the file of notes, how many there are, a seed, their behaviour. Each note is a
line: ``heard`` or ``said``, when (on the host's monotonic clock), the device, the command's id; or ``slow``,
when, and since when this process had no time to listen.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast.devices import JsonDialect
from holdfast.devices.fleet import Behaviour, Fleet
from holdfast.devices.services.memory.terminal import ScheduledAnswer, Terminal
from holdfast.devices.services.mqtt.address import parse
from holdfast.errors import InvalidMessage
from holdfast.system.clock import SystemClock

BEHAVIOURS = {
    "calm": Behaviour(
        latency_s=0.02, spread=0.5, answer_loss=0.01, duplicate=0.05, late=0.01, late_s=0.3, heartbeat_s=0.5,
    ),
    "odd": Behaviour(
        latency_s=0.02, spread=0.8, loss=0.02, answer_loss=0.02, duplicate=0.05, garbage=0.02, foreign=0.02,
        late=0.03, late_s=1.5, crash=0.005, crash_s=1.0, heartbeat_s=0.5,
    ),
}  # fmt: skip
TICK_S = 0.02
SLOW_S = 0.1


def names(count: int) -> list[str]:
    """The terminals' ids."""
    return [f"door-{number:02}" for number in range(count)]


class Notes:
    """A file that outlives its process, whenever that is killed."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._clock = SystemClock()

    def note(self, what: str, *words: str) -> None:
        """Write one line."""
        line = " ".join((what, f"{self._clock.monotonic():.4f}", *words))
        os.write(self._file, f"{line}\n".encode())


def take_notes(terminal: Terminal, notes: Notes, correlated: bool) -> None:
    """Let a terminal record what it receives and sends. ``correlated``: its answers name their commands."""
    receive, finish, dialect, clock = terminal.receive, terminal.finish, JsonDialect(), SystemClock()

    def noted_receive(command: str, payload: bytes, now: float) -> list[ScheduledAnswer]:
        notes.note("heard", terminal.device, dialect.read(payload).id)
        return receive(command, payload, now)

    def noted_finish(answer: ScheduledAnswer) -> None:
        named = answer.id if correlated else ""
        try:
            named = named or dialect.read(answer.payload).id
        except InvalidMessage:
            named = "-"
        if not terminal.away(clock.monotonic()):  # else it is silent
            notes.note("said", terminal.device, named)
        finish(answer)

    terminal.receive, terminal.finish = noted_receive, noted_finish  # type: ignore[method-assign]


async def listen(notes: Notes) -> None:
    """Note when this process had no time to listen, for ever."""
    clock = SystemClock()
    before = clock.monotonic()
    while True:
        await clock.sleep(TICK_S)
        now = clock.monotonic()
        if now - before > TICK_S + SLOW_S:
            notes.note("slow", f"{before:.4f}")
        before = now


async def main(url: str, file: str, count: str, seed: str, behaviour: str) -> None:
    """Listen until killed."""
    notes = Notes(Path(file))
    address = parse(url)
    fleet = Fleet(address, names(int(count)), SystemClock(), behaviour=BEHAVIOURS[behaviour], seed=seed)
    for terminal in fleet.terminals.values():
        take_notes(terminal, notes, correlated=address.version == "5")
    async with fleet:
        notes.note("began")
        await listen(notes)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
