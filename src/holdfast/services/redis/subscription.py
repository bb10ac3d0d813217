"""A subscription to the messages of some channels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from redis.asyncio.connection import Connection
from redis.exceptions import RedisError

from holdfast.errors import Unavailable
from holdfast.services.redis.lane import discard

QUIET_S = 5.0
"""Seconds of silence after which the server is asked whether it is still there."""


class Subscription:
    """Messages in order, until the connection is lost. It owns the connection, and has one reader."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    @classmethod
    async def begin(cls, connection: Connection, timeout_s: float, channels: Sequence[str]) -> Self:
        """Subscribe, and wait until the server has. Raises as the library does; then the connection is
        closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send_command("SUBSCRIBE", *channels, check_health=False)
                for _ in channels:
                    await connection.read_response()
        except BaseException:
            await discard(connection)
            raise
        return cls(connection, timeout_s)

    @property
    def closed(self) -> bool:
        """True if it is lost or was closed."""
        return not self._connection.is_connected

    async def next(self) -> tuple[str, bytes]:
        """Return the next message and its channel. Raises Unavailable when the subscription is lost; what is
        published then is missed."""
        try:
            while True:
                kind, *rest = await self._heard()
                if kind == b"message":
                    return rest[0].decode(), rest[1]
        except (TimeoutError, RedisError, OSError) as error:
            await self.close()
            raise Unavailable(f"the subscription is lost: {str(error) or 'no answer'}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect. A pending ``next`` raises Unavailable."""
        await discard(self._connection)

    async def _heard(self) -> list[bytes]:
        """Return the next reply. After a silence the server is asked whether it is still there."""
        heard: list[bytes] | None = await self._connection.read_response(timeout=QUIET_S)
        if heard is not None:
            return heard
        async with asyncio.timeout(self._timeout_s):
            await self._connection.send_command("PING", check_health=False)
            answer: list[bytes] = await self._connection.read_response()
            return answer
