"""The messages of a channel, numbered as they arrive here.

The numbers are valid in this process only, and always grow. If messages may have been missed, a number is
left out, and a reader from before it must start again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from holdfast.errors import HoldfastError
from holdfast.services.redis.connection import RedisConnection, Subscription

KEPT = 10_000
"""Messages kept for slow readers."""


class ChannelFeed:
    """The messages of one channel. ``rung`` is set, and replaced by a new event, at each message and when the
    subscription is lost."""

    def __init__(self, connection: RedisConnection, key: str, channel: str) -> None:
        self.rung = asyncio.Event()
        self.last = 0
        self._first = 0
        self._messages: deque[bytes] = deque()
        self.channel = channel
        self._connection = connection
        self._key = key
        self._beginning = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start listening, once. Later messages are received, or known to be missed. Raises as the connection
        does."""
        if self._listening is None:
            async with self._beginning:
                if self._listening is None:
                    subscription = await self._connection.subscribe(self._key, self.channel)
                    self._listening = asyncio.create_task(self._listen(subscription))

    def after(self, number: int) -> list[bytes] | None:
        """Return the messages after a number; None if some of them were missed or are no longer kept."""
        if number < self._first:
            return None
        return list(islice(self._messages, number - self._first, None))

    def ring(self) -> None:
        """Wake all waiters."""
        rung, self.rung = self.rung, asyncio.Event()
        rung.set()

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _listen(self, subscription: Subscription) -> None:
        try:
            while True:
                _, message = await subscription.next()
                self._messages.append(message)
                self.last += 1
                if len(self._messages) > KEPT:
                    self._messages.popleft()
                    self._first += 1
                self.ring()
        except HoldfastError:
            pass  # lost: `begin` finds another
        finally:
            self._listening = None
            self._messages.clear()
            self.last += 1
            self._first = self.last
            self.ring()
