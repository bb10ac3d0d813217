"""Moves streams to other nodes, and ends their owners here."""

from __future__ import annotations

from typing import Literal

from holdfast.cluster.host import Host
from holdfast.common.held import Held
from holdfast.errors import (
    ClaimLost,
    Fenced,
    HoldfastError,
    MembershipLost,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.rules.streams.commands import Dropped, HandOff, Release, Return, Transfer
from holdfast.streams.loads import Loads
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.requests import Requests
from holdfast.streams.reservations import Reservations
from holdfast.streams.router import Router
from holdfast.streams.slot_assignment import SlotAssignment


class Mover:
    """Performs the commands by which an owner gives up messages and its claim, and ends."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        router: Router,
        requests: Requests,
        reservations: Reservations,
        assignment: SlotAssignment,
        loads: Loads,
    ) -> None:
        self._owners = owners
        self._host = host
        self._coordinator = host.coordinator
        self._router = router
        self._requests = requests
        self._reservations = reservations
        self._assignment = assignment
        self._loads = loads
        owners.perform_by(
            {
                Return: self.give_back,
                HandOff: self.hand_off,
                Transfer: self.transfer,
                Release: self.release,
                Dropped: self.end,
            }
        )

    # -- messages ---------------------------------------------------------------------------------------

    def give_back(self, entry: OwnedStream, _: int, command: Return) -> None:
        """Give messages back to their senders and to this node's router."""
        self._return_requests(entry, command.messages, "")
        self._router.take_back(entry.spec.name, entry.key, command.messages)

    def hand_off(self, entry: OwnedStream, _: int, command: HandOff) -> None:
        """Have the router forward messages to the new owner, and refer requests to it."""
        stream, key, target = entry.spec.name, entry.key, command.target
        self._host.stats.moved_out += 1
        self._reservations.leave(stream, entry.plain_key)
        self._return_requests(entry, command.messages, target)
        self._router.placing.departed(key, target, entry.owner.epoch)
        self._router.take_back(stream, key, command.messages, target)
        if entry.owner.backlog.is_reserved:
            self._host.tasks.spawn(self._router.placing.call_up(stream, key, target))

    def _return_requests(self, entry: OwnedStream, messages: tuple[Held, ...], target: str) -> None:
        for held in messages:
            if held.is_asked:
                self._requests.returned(entry.key, held, target, entry.owner.epoch + 1 if target else 0)

    # -- the claim --------------------------------------------------------------------------------------

    async def transfer(self, entry: OwnedStream, generation: int, command: Transfer) -> None:
        try:
            outcome = await self._owners.retry(
                entry, generation, lambda: self._try_transfer(entry, command.target)
            )
        except Fenced:
            return
        self._owners.answer(entry, generation, lambda now: entry.owner.transferred(outcome, now))
        self._owners.wake_waiting()

    async def _try_transfer(self, entry: OwnedStream, target: str) -> Literal["done", "kept", "refused"]:
        try:
            await self._coordinator.transfer(entry.claim, target)
        except MembershipLost:
            return "kept"
        except ClaimLost:
            # An earlier try may have taken effect, and its answer was lost.
            claim = await self._coordinator.lookup(entry.key)
            return "done" if claim is not None and claim.member == target else "refused"
        except (Unavailable, OutcomeUnknown):
            if self._host.membership.alive:
                raise
            return "kept"  # if it took effect, the next commit or read shows who has opened the stream
        return "done"

    async def release(self, entry: OwnedStream, generation: int, _: Release) -> None:
        try:
            await self._coordinator.release(entry.claim)
        except HoldfastError as error:
            self._host.log.debug("cannot release claim", key=entry.key, error=str(error))
        self._owners.answer(entry, generation, lambda now: entry.owner.released())

    def end(self, entry: OwnedStream, _: int, __: Dropped) -> None:
        if self._owners.forget(entry):
            self._loads.forget(entry.key)
        self._assignment.leave(entry)
