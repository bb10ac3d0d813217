"""Shards: the parts of a namespace. Keys that belong together are in one shard, which is in one slot of the
Cluster."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.lane import Word

T = TypeVar("T")

RECORDS_MAX = 3
"""Tries of a call that finds a shard without a record: an emptied Redis may be emptied again."""


class StateShards:
    """A namespace in ``count`` parts. The count is recorded in Redis, and in each shard again: nodes that
    believed in different counts would keep two checkpoints for one key."""

    def __init__(self, connection: RedisConnection) -> None:
        self.count = connection.address.shards
        self._connection = connection
        self._namespace = connection.address.namespace

    def of(self, key: str) -> int:
        """Return the shard of a stream, the same in every version and language."""
        return zlib.crc32(key.encode()) % self.count

    def name(self, shard: int, *parts: str) -> str:
        """Return the name of a Redis key in a shard."""
        return f"{{{self._namespace}:{shard}}}:" + ":".join(parts)

    async def run(self, script: Script, shard: int, keys: Sequence[str], *arguments: Word) -> list[Any]:
        """Run a script whose first key is the shard's record and whose first argument is the count. Raises
        ConfigError if another count is recorded."""
        record = self.name(shard, "shard")
        for _ in range(RECORDS_MAX):
            reply: list[Any] = await self._connection.script(script, (record, *keys), self.count, *arguments)
            if reply[0] != b"shards":
                return reply
            self._check(reply[1])
            await self._record(record)
        raise Unavailable(
            f"{self._connection.address}: the state store's records vanish; is it being emptied?"
        )

    async def _record(self, record: str) -> None:
        """Record the number of shards in a shard that is new or lost its data. The first record counts."""
        name = f"{self._namespace}:shards"
        await self._connection.command(name, "SETNX", name, self.count)
        self._check(await self._connection.command(name, "GET", name) or b"")
        await self._connection.command(record, "HSETNX", record, "shards", self.count)

    def _check(self, standing: bytes) -> None:
        if standing and int(standing) != self.count:
            raise ConfigError(
                f"{self._connection.address}: the state store in namespace {self._namespace!r} has"
                f" {int(standing)} shards, but the settings say {self.count}; write shards={int(standing)}"
                " in state_url, or choose another namespace"
            )


async def answers_of(calls: Sequence[Awaitable[list[T]]]) -> list[list[T]]:
    """Return the answers of all shards that give one. Raises the error of one that doesn't if the others have
    nothing."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    answers = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not (isinstance(outcome, HoldfastError) and any(answers)):
            raise outcome
    return answers
