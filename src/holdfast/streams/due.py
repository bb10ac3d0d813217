"""Asks the state store which streams are due though no message comes, and brings them to their owners."""

from __future__ import annotations

import asyncio
import math

from holdfast.cluster.host import Host
from holdfast.common.due import AHEAD_S, LEASE_S, pause_s
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError
from holdfast.ports.state import StateStore
from holdfast.streams.placing import Placing

AGAIN = Backoff(LEASE_S, 300.0, floor=1.0)
"""The pauses before this node looks again for an owner of a stream that no node takes."""

FAILURES_MAX = 10_000
"""The most streams whose failures are remembered."""

KEYS_A_CALL = 100
NUDGES_AT_ONCE = 32
"""The most streams that are brought to their owners at once: many timers may have the same time."""


class DueStreams:
    """Asks for one node."""

    def __init__(self, host: Host, state: StateStore, placing: Placing) -> None:
        self._host = host
        self._state = state
        self._placing = placing
        self._room = asyncio.Semaphore(NUDGES_AT_ONCE)
        self._failures: dict[str, tuple[int, float]] = {}
        """By key: how many nudges in a row have failed, and when the next one is made."""

    async def run(self) -> None:
        """Ask for ever."""
        clock = self._host.clock
        while True:
            await clock.sleep(pause_s(clock.random()))
            while await self.ask() == KEYS_A_CALL:
                pass

    async def ask(self) -> int:
        """Ask once, and bring the streams that are due to their owners; returns how many there were."""
        host = self._host
        if not host.membership.alive or host.draining:
            return 0
        before = host.clock.wall() + AHEAD_S
        try:
            keys = await self._state.due(before, KEYS_A_CALL, LEASE_S)
        except HoldfastError as error:
            host.log.debug("could not ask what is due", error=str(error))
            return 0
        await asyncio.gather(*(self._nudge(key) for key in keys))
        return len(keys)

    async def _nudge(self, key: str) -> None:
        failures, again_at = self._failures.get(key, (0, -math.inf))
        if self._host.clock.monotonic() < again_at:
            return
        self._failures.pop(key, None)
        async with self._room:
            self._host.stats.nudges += 1
            if await self._placing.nudge(key.partition("/")[0], key):
                return
        pause_s = AGAIN.delay_s(failures + 1, 0.5)
        self._failures[key] = failures + 1, self._host.clock.monotonic() + pause_s
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
