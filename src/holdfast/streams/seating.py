"""The seats of the streams that this node owns, or is about to own: which slot each one's models and handler
are in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.errors import HandlerFailed, HoldfastError, ModelFailed, StateRejected
from holdfast.ports.slots import SlotCall, StreamSlot
from holdfast.ports.state import StateStore
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import NOTHING_BROUGHT, MovedFrom
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owned import Owned, Warming
from holdfast.streams.owners import Owners
from holdfast.streams.slots import Died, Seat, Seats
from holdfast.streams.spec import StreamSpec


class Seating:
    """The seats of one node's streams. ``models`` are those that the app declares."""

    def __init__(
        self,
        owners: Owners,
        host: Host,
        specs: Mapping[str, StreamSpec],
        models: Collection[str],
        state: StateStore,
        pool: Seats,
        obstacles: Obstacles,
    ) -> None:
        self._owners = owners
        self._host = host
        self._specs = specs
        self._models = models
        self._state = state
        self._pool = pool
        self._obstacles = obstacles
        self._warming = owners.warming
        host.news.on_left.append(self._left)

    def _left(self, member: str) -> None:
        """Note that a membership has ended. A stream that comes here after a death waits again for what is
        missing, though its owner may have been about to move it here. That its key was reserved may still be
        so."""
        for warming in self._warming.values():
            warming.brings = MovedFrom(warming.brings.deep)

    # -- owned streams ----------------------------------------------------------------------------------

    def seat(self, entry: Owned) -> Seat:
        """Return the seat of an owned stream, which gets one now if it has none."""
        if entry.seat is None:
            warming = self._warming.pop(entry.key, None)
            entry.seat = warming.seat if warming else self._pool.assign(entry.spec.models)
        return entry.seat

    def is_in(self, entry: Owned, slot: StreamSlot | None) -> None:
        """Note that a slot has a stream's models or handler. If the stream was released meanwhile, close it
        there, unless a later owner of it uses the same slot."""
        standing = self._owners.get(entry.key)
        if standing is entry:
            entry.slot = slot
        elif slot is not None and (
            standing is None or standing.seat is None or standing.seat.slot is not slot
        ):
            self._close(entry, slot)

    def leave(self, entry: Owned) -> None:
        """Give up the seat of a stream that is no longer owned here."""
        if entry.seat is not None:
            self._pool.leave(entry.seat, entry.spec.models)
            if entry.slot is not None:
                self._close(entry, entry.slot)
            entry.seat = entry.slot = None

    def slot_died(self, seat: Seat) -> None:
        """Note that the slot of a seat has died. A call that ran in it fails by itself."""
        for entry in self._owners:
            if entry.seat is seat:
                entry.slot = None
                entry.owner.unloaded()

    def _close(self, entry: Owned, slot: StreamSlot) -> None:
        spec = entry.spec
        self._host.tasks.spawn(self._pool.close_stream(slot, spec.name, entry.plain_key, spec.timeout_s))

    # -- streams that are about to move here ------------------------------------------------------------

    async def warm(self, stream: str, key: str, brings: MovedFrom = NOTHING_BROUGHT) -> str:
        """Prepare to own a key, which ``brings`` something along: load its models and open its handler from
        the present state, in the seat that the stream will have. Returns why that failed, or ""."""
        spec = self._specs.get(stream)
        if spec is None:
            return f"stream {stream!r} is not declared here"
        if self._owners.get(key) is not None:
            return ""
        warming = self._warming.get(key)
        if warming is None:
            warming = self._warming[key] = Warming(self._pool.assign(spec.models))
            self._host.tasks.spawn(self._keep_warm(spec, key, warming))
        warming.brings = brings
        return await asyncio.shield(warming.obstacle)

    async def _keep_warm(self, spec: StreamSpec, key: str, warming: Warming) -> None:
        seat, plain = warming.seat, key.partition("/")[2]
        try:
            obstacle = await self._open_warm(spec, key, warming)
        except BaseException:
            warming.obstacle.cancel()
            raise
        warming.obstacle.set_result(obstacle)
        if not obstacle:
            warming.ready_at = self._host.clock.monotonic()
            await self._host.clock.sleep(self._host.limits.move_timeout_s * 2)
        if self._warming.get(key) is warming:
            del self._warming[key]
            self._pool.leave(seat, spec.models)
            entry = self._owners.get(key)
            if (entry is None or entry.seat is not seat) and seat.slot is not None:
                await self._pool.close_stream(seat.slot, spec.name, plain, spec.timeout_s)

    async def _open_warm(self, spec: StreamSpec, key: str, warming: Warming) -> str:
        try:
            checkpoint = await self._state.peek(key)
        except HoldfastError as error:
            return f"the state can't be read: {error}"
        seat = warming.seat
        async with seat.loads:
            if obstacle := self._obstacles.known(spec, seat):
                return obstacle
            return await self._open_in(spec, key, warming, checkpoint)

    async def _open_in(
        self, spec: StreamSpec, key: str, warming: Warming, checkpoint: Checkpoint | None
    ) -> str:
        plain, seat = key.partition("/")[2], warming.seat
        state, version = (checkpoint.state, checkpoint.state_version) if checkpoint else (None, 0)

        def begin(slot: StreamSlot, call: SlotCall) -> Awaitable[None]:
            if self._warming.get(key) is not warming:  # its owner here may have opened it from newer state
                raise HandlerFailed(f"{key} is no longer prepared here")
            return slot.open(spec.name, plain, state, version, call=call)

        try:
            await self._pool.call(seat, spec.timeout_s, begin, of=key)
        except ModelFailed as error:
            if error.model in self._models:
                self._obstacles.found(spec.name, error.model, redact(str(error)), seat)
            return redact(str(error))
        except Died as error:
            if error.model in spec.models:
                self._obstacles.found(spec.name, error.model, error.loading_error, seat)
            return redact(str(error))
        except (StateRejected, HandlerFailed) as error:
            return redact(str(error))
        return ""
