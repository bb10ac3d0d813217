"""Waits until replicas have a commit, so that a fail-over doesn't lose it unnoticed.

This isn't a consensus protocol. A fail-over may still choose a replica that didn't answer, unless all must
answer. A replica has a commit in memory, perhaps not on disk. A commit whose wait failed is still in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.ports.meter import Meter
from holdfast.rules.streams.ledger import Commit
from holdfast.services.redis.connection import TIMEOUT_S, RedisAddress, RedisConnection, Script
from holdfast.services.redis.lane import Word

WAIT_S = 1.0
"""Seconds to wait for the replicas' answers."""

GROUP_MAX = 500

TOUCH = Script.load("touch")


class _PendingCommit(NamedTuple):
    name: str
    commit: Commit
    done: asyncio.Future[None]


class Replicas:
    """Waits until as many replicas as the address says have the commits; one wait serves all commits that are
    pending."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection.apart(WAIT_S + TIMEOUT_S)
        self._count = connection.address.wait_replicas
        self._waiting: dict[int, list[_PendingCommit]] = {}
        self._workers: dict[int, asyncio.Task[None]] = {}

    async def confirm(self, shard: int, name: str, commit: Commit) -> None:
        """Return when the replicas have ``commit``, which was applied to the checkpoint in the key ``name``.
        Raises OutcomeUnknown if they may not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(shard, []).append(_PendingCommit(name, commit, done))
        if shard not in self._workers:
            self._workers[shard] = asyncio.create_task(self._work(shard))
        await done

    async def close(self) -> None:
        """Disconnect. Pending confirmations fail."""
        await self._connection.close()
        await asyncio.gather(*self._workers.values())

    async def _work(self, shard: int) -> None:
        try:
            while waiting := self._waiting.pop(shard, None):
                for begin in range(0, len(waiting), GROUP_MAX):
                    await self._ask(waiting[begin : begin + GROUP_MAX])
        finally:
            del self._workers[shard]

    async def _ask(self, group: list[_PendingCommit]) -> None:
        names = [name for name, _, _ in group]
        words = [word for _, c, _ in group for word in (c.epoch, c.number, c.id)]
        try:
            # Over one connection: WAIT counts only the writes of its own connection.
            standing, answered = await self._connection.together(
                names[0],
                ("EVAL", TOUCH.text, len(names), *names, *words),
                ("WAIT", self._count, int(WAIT_S * 1000)),
            )
        except HoldfastError as error:
            _fail(group, f"whether replicas have it is not known: {error}")
            return
        for waiting, stands in zip(group, standing, strict=True):
            if not stands:
                _fail([waiting], "another server has taken over, or another opening")
            elif answered < self._count:
                _fail(
                    [waiting],
                    f"{answered} replicas have it after {WAIT_S:g} s, not {self._count} (wait_replicas)",
                )
            elif not waiting.done.done():
                waiting.done.set_result(None)


def _fail(group: list[_PendingCommit], reason: str) -> None:
    for _, commit, done in group:
        if not done.done():
            done.set_exception(
                OutcomeUnknown(f"{commit.key}: commit {commit.number} was applied, but {reason}")
            )


class ConfirmedConnection(RedisConnection):
    """A connection whose scripts return once as many replicas as the address says have their effect, if their
    reply begins with ``ok``. Raises OutcomeUnknown if the replicas may not."""

    def __init__(self, address: RedisAddress, meter: Meter) -> None:
        super().__init__(address, meter, timeout_s=WAIT_S + TIMEOUT_S)

    @classmethod
    def beside(cls, connection: RedisConnection) -> RedisConnection:
        """Return a confirmed connection if the address asks for replicas, else ``connection``."""
        return cls(connection.address, connection.meter) if connection.address.wait_replicas else connection

    async def script(self, script: Script, keys: Sequence[str], *arguments: Word) -> Any:
        # With its text: what goes together with WAIT can't be sent again, should the digest not be known.
        reply, answered = await self.together(
            keys[0],
            ("EVAL", script.text, len(keys), *keys, *arguments),
            ("WAIT", self.address.wait_replicas, int(WAIT_S * 1000)),
        )
        if reply[0] == b"ok" and answered < self.address.wait_replicas:
            raise OutcomeUnknown(
                f"{script.name} at {self.address} is done, but {answered} replicas have it after"
                f" {WAIT_S:g} s, not {self.address.wait_replicas} (wait_replicas)"
            )
        return reply
