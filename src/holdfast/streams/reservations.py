"""The reservations of a node at its queues, and the messages that go back there because there is no room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from holdfast.cluster.host import Host
from holdfast.common.held import Held
from holdfast.errors import HoldfastError
from holdfast.ports.queue import KeyedQueue, PutBack, Queue, Taken

RESERVE_S = 30.0
"""Seconds for which a reservation lives without a renewal: long enough for a busy node, and short enough for
the messages of a node that ended unseen."""

RENEWALS = 3
"""The number of renewals in ``RESERVE_S``."""

TAKES = 64
"""The most calls in a row for one take while the queue looks for the key's messages among others."""


class Reservations:
    """The keys that the owners of a node have reserved. ``hide_s``: how long a message that was taken is
    hidden before it is first extended. Set ``on_lost`` before the start: it gets the stream and the plain key
    of a reservation that is gone."""

    def __init__(self, host: Host, queues: Mapping[str, Queue], hide_s: float) -> None:
        self._host = host
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._queues = {name: cast("KeyedQueue", queue) for name, queue in queues.items() if queue.by_key}
        self._hide_s = hide_s
        self.on_lost: Callable[[str, str], None]
        self._held: dict[str, set[str]] = {name: set() for name in self._queues}
        self._returning: dict[str, list[PutBack]] = {name: [] for name in self._queues}
        self._returned: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """Begin to renew."""
        self._tasks.repeat(self._renew, self._clock, self._log)

    def knows_keys(self, stream: str) -> bool:
        """Return True if the stream's queue knows keys."""
        return stream in self._queues

    async def reserve(self, stream: str, key: str, epoch: int) -> bool:
        """Reserve the messages of a plain key; return False if another node has reserved them."""
        holder = self._host.membership.id
        granted = await self._queues[stream].reserve(key, holder, epoch, RESERVE_S)
        if granted:
            self._held[stream].add(key)
        return granted

    async def unreserve(self, stream: str, key: str) -> None:
        """Give a reservation up. If that fails, it lapses."""
        self._held[stream].discard(key)
        try:
            await self._queues[stream].unreserve(key, self._host.membership.id)
        except HoldfastError as error:
            self._log.debug("could not give up a reservation", stream=stream, key=key, error=str(error))

    def leave(self, stream: str, key: str) -> None:
        """End the renewals of a reservation, because the next owner takes it over."""
        if stream in self._held:
            self._held[stream].discard(key)

    async def take(self, stream: str, key: str, limit: int, after: int) -> Taken | None:
        """Take reserved messages, once all that goes back is there; None if the reservation is gone."""
        await self.all_back(stream)
        queue, holder = self._queues[stream], self._host.membership.id
        taken: Taken | None = None
        for _ in range(TAKES):
            taken = await queue.take(key, holder, min(limit, queue.max_batch), self._hide_s, after)
            if taken is None or taken.deliveries or not taken.more:
                break
        if taken is None:
            self._held[stream].discard(key)
        return taken

    def put_back(self, stream: str, key: str, messages: Iterable[Held], *, counted: bool = False) -> None:
        """Put messages of a plain key back to the queue, which knows keys. ``counted``: they may have killed
        a node."""
        returned = [
            PutBack(receipt.receipt, key, counted)
            for held in messages
            for receipt in held.receipts
            if not receipt.stale
        ]
        self._host.stats.put_back += len(returned)
        self._returning[stream] += returned
        if stream not in self._returned and returned:
            self._returned[stream] = asyncio.Event()
            self._tasks.spawn(self._return_all(stream))

    async def all_back(self, stream: str) -> None:
        """Wait until all that goes back is in the queue."""
        if (returned := self._returned.get(stream)) is not None:
            await returned.wait()

    async def _return_all(self, stream: str) -> None:
        queue, waiting = self._queues[stream], self._returning[stream]
        try:
            while waiting:
                some = waiting[: queue.max_batch]
                del waiting[: len(some)]
                await self._return(stream, some)
        finally:
            self._returned.pop(stream).set()

    async def _return(self, stream: str, some: Sequence[PutBack]) -> None:
        try:
            await self._queues[stream].put_back(some)
        except HoldfastError as error:
            self._log.warning("cannot put messages back", stream=stream, error=str(error))

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(RESERVE_S / RENEWALS)
            for stream, keys in self._held.items():
                if keys and self._host.membership.alive:
                    await self._renew_keys(stream, sorted(keys))

    async def _renew_keys(self, stream: str, keys: Sequence[str]) -> None:
        queue = self._queues[stream]
        try:
            lost = await queue.keep(keys, self._host.membership.id, RESERVE_S)
        except HoldfastError as error:
            self._log.warning("cannot renew reservations", stream=stream, error=str(error))
            return
        for key in lost:
            if key in self._held[stream]:
                self._held[stream].discard(key)
                self.on_lost(stream, key)
