"""Terminals in a process of their own, which note all that they hear and say.

Arguments: the broker's URL, the file of notes, how many there are, a seed, their conduct. Each note is a
line: ``heard`` or ``said``, when (on the host's monotonic clock), the device, the command's id; or ``slow``,
when, and since when this process had no time to listen.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast.devices.fleet import Conduct, Fleet
from holdfast.devices.services.memory.terminal import Saying, Terminal
from holdfast.devices.services.mqtt.address import MqttAddress, parse
from holdfast.errors import InvalidMessage
from holdfast.system.clock import SystemClock

CONDUCTS = {
    "calm": Conduct(
        latency_s=0.02, spread=0.5, answer_loss=0.01, duplicate=0.05, late=0.01, late_s=0.3, heartbeat_s=0.5,
    ),
    "odd": Conduct(
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


class Terminals(Fleet):
    """A fleet that takes notes."""

    def __init__(self, address: MqttAddress, count: int, seed: str, conduct: Conduct, notes: Notes) -> None:
        super().__init__(address, names(count), SystemClock(), conduct=conduct, seed=seed)
        self._notes = notes
        self._device_of = {self._topics.command_to(device): device for device in self.terminals}

    def _hear(self, topic: str, payload: bytes, correlation: bytes) -> None:
        self._notes.note("heard", self._device_of[topic], self._dialect.read(payload).id)
        super()._hear(topic, payload, correlation)

    def _say(self, terminal: Terminal, saying: Saying) -> None:
        named = saying.id if self._address.version == "5" else ""
        try:
            named = named or self._dialect.read(saying.payload).id
        except InvalidMessage:
            named = "-"
        self._notes.note("said", terminal.device, named)
        super()._say(terminal, saying)

    async def listen(self) -> None:
        """For ever; notes when it could not."""
        before = self._clock.monotonic()
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.monotonic()
            if now - before > TICK_S + SLOW_S:
                self._notes.note("slow", f"{before:.4f}")
            before = now


async def main(url: str, file: str, count: str, seed: str, conduct: str) -> None:
    """Listen until killed."""
    notes = Notes(Path(file))
    async with Terminals(parse(url), int(count), seed, CONDUCTS[conduct], notes) as terminals:
        notes.note("began")
        await terminals.listen()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
