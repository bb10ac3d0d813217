"""Reserves keys at their queues, and takes the messages of deep backlogs from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from holdfast.cluster.host import Host
from holdfast.common.message import Life
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.queue import Delivery, Taken
from holdfast.rules.streams.backlog import Reserve, Take, Unreserve
from holdfast.rules.streams.commands import PutBack
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.reservations import Reservations
from holdfast.streams.waiting_room import WaitingRoom

Bring = Callable[[str, Sequence[Delivery]], Awaitable[None]]
"""Brings deliveries of a stream to their owners."""


class Backlogs:
    """Performs the commands on the backlogs of streams. ``room`` returns the free places of a stream;
    ``bring`` brings the taken messages to their owners."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        reservations: Reservations,
        waiting: WaitingRoom,
        *,
        bring: Bring,
        room: Callable[[str], int],
    ) -> None:
        self._owners = owners
        self._log = host.log
        self._reservations = reservations
        self._waiting = waiting
        self._bring = bring
        self.room = room
        reservations.on_lost = owners.reservation_lost
        owners.perform_by(
            {
                Reserve: self.reserve,
                Take: self.take,
                Unreserve: self.unreserve,
                PutBack: self.put_back,
            }
        )

    async def reserve(self, entry: OwnedStream, generation: int, _: Reserve) -> None:
        stream, key, owner = entry.spec.name, entry.plain_key, entry.owner
        try:
            granted = await self._owners.retry(
                entry, generation, lambda: self._reservations.reserve(stream, key, owner.epoch)
            )
        except Fenced:
            return  # a reservation that was made is renewed by the next opening, or lapses
        except HoldfastError as error:
            self._owners.note_failure(entry, error)
            granted = False
        if owner.generation != generation and owner.phase is OwnerPhase.DROPPED:
            await self._reservations.unreserve(stream, key)
            return
        self._owners.answer(entry, generation, lambda now: owner.reserved(granted, now))
        if owner.backlog.is_reserved:
            self._waiting.reserved(entry.key)

    def unreserve(self, entry: OwnedStream, _: int, __: Unreserve) -> Coroutine[Any, Any, None]:
        return self._reservations.unreserve(entry.spec.name, entry.plain_key)

    async def take(self, entry: OwnedStream, generation: int, command: Take) -> None:
        stream, owner = entry.spec.name, entry.owner
        taken: Taken | None = Taken([], more=True)
        if (limit := min(command.limit, self.room(stream))) > 0:
            try:
                taken = await self._reservations.take(stream, entry.plain_key, limit, command.after)
            except (HoldfastError, OSError) as error:
                self._log.debug("cannot take messages", key=entry.key, error=str(error))
        if taken is None:
            self._owners.answer(entry, generation, owner.reservation_lost)
            return
        try:
            await self._bring(stream, taken.deliveries)
        except (HoldfastError, OSError) as error:
            self._log.warning("cannot set message aside", stream=stream, error=str(error))
        count, more = len(taken.deliveries), taken.more
        highest = max((delivery.turn or 0 for delivery in taken.deliveries), default=0)
        self._owners.answer(entry, generation, lambda now: owner.took(count, highest, more, now))

    async def put_back(self, entry: OwnedStream, generation: int, command: PutBack) -> None:
        """Put messages back before their stream moves. If that fails, the queue delivers them again later."""
        stream = entry.spec.name
        for held in command.messages:
            held.become(Life.GIVEN_BACK)
        self._reservations.put_back(stream, entry.plain_key, command.messages)
        await self._reservations.all_back(stream)
        self._owners.answer(entry, generation, entry.owner.were_put_back)
