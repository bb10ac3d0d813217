"""The assignment of slots to the streams that this node owns, or is about to own."""

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
from holdfast.streams.owned import ArrivingStream, OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.slots import SlotCrash, SlotHandle, SlotHandles
from holdfast.streams.spec import StreamSpec


class SlotAssignment:
    """The slots of one node's streams. ``models`` names the declared models."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        specs: Mapping[str, StreamSpec],
        models: Collection[str],
        state: StateStore,
        pool: SlotHandles,
        obstacles: Obstacles,
    ) -> None:
        self._owners = owners
        self._host = host
        self._specs = specs
        self._models = models
        self._state = state
        self._pool = pool
        self._obstacles = obstacles
        self._arriving = owners.arriving
        host.news.on_left.append(self._left)

    def _left(self, member: str) -> None:
        """Note that a membership has ended. A stream that comes here after a death begins its wait for a
        missing message again, even if its owner was about to move it here. Its key may still be reserved."""
        for arriving in self._arriving.values():
            arriving.brings = MovedFrom(arriving.brings.deep)

    # -- owned streams ----------------------------------------------------------------------------------

    def handle_of(self, entry: OwnedStream) -> SlotHandle:
        """Return the slot of an owned stream, after assigning one if it has none."""
        if entry.handle is None:
            arriving = self._arriving.pop(entry.key, None)
            entry.handle = arriving.handle if arriving else self._pool.assign(entry.spec.models)
        return entry.handle

    def is_in(self, entry: OwnedStream, slot: StreamSlot | None) -> None:
        """Note that a slot has a stream's models or handler. If the stream was released meanwhile, close it
        there, unless a later owner of it uses the same slot."""
        standing = self._owners.get(entry.key)
        if standing is entry:
            entry.slot = slot
        elif slot is not None and (
            standing is None or standing.handle is None or standing.handle.slot is not slot
        ):
            self._close(entry, slot)

    def leave(self, entry: OwnedStream) -> None:
        """Give up the slot of a stream that is no longer owned here."""
        if entry.handle is not None:
            self._pool.leave(entry.handle, entry.spec.models)
            if entry.slot is not None:
                self._close(entry, entry.slot)
            entry.handle = entry.slot = None

    def slot_died(self, handle: SlotHandle) -> None:
        """Note that a slot has died. A call that ran in it fails by itself."""
        for entry in self._owners:
            if entry.handle is handle:
                entry.slot = None
                entry.owner.unloaded()

    def _close(self, entry: OwnedStream, slot: StreamSlot) -> None:
        spec = entry.spec
        self._host.tasks.spawn(self._pool.close_stream(slot, spec.name, entry.plain_key, spec.timeout_s))

    # -- streams that are about to move here ------------------------------------------------------------

    async def warm(self, stream: str, key: str, brings: MovedFrom = NOTHING_BROUGHT) -> str:
        """Prepare to own a key: load its models and open its handler from the present state, in the slot that
        the stream will have. Return why that failed, or ""."""
        spec = self._specs.get(stream)
        if spec is None:
            return f"stream {stream!r} is not declared here"
        if self._owners.get(key) is not None:
            return ""
        arriving = self._arriving.get(key)
        if arriving is None:
            arriving = self._arriving[key] = ArrivingStream(self._pool.assign(spec.models))
            self._host.tasks.spawn(self._keep_warm(spec, key, arriving))
        arriving.brings = brings
        return await asyncio.shield(arriving.obstacle)

    async def _keep_warm(self, spec: StreamSpec, key: str, arriving: ArrivingStream) -> None:
        handle, plain = arriving.handle, key.partition("/")[2]
        try:
            obstacle = await self._open_warm(spec, key, arriving)
        except BaseException:
            arriving.obstacle.cancel()
            raise
        arriving.obstacle.set_result(obstacle)
        if not obstacle:
            arriving.ready_at = self._host.clock.monotonic()
            await self._host.clock.sleep(self._host.limits.move_timeout_s * 2)
        if self._arriving.get(key) is arriving:
            del self._arriving[key]
            self._pool.leave(handle, spec.models)
            entry = self._owners.get(key)
            if (entry is None or entry.handle is not handle) and handle.slot is not None:
                await self._pool.close_stream(handle.slot, spec.name, plain, spec.timeout_s)

    async def _open_warm(self, spec: StreamSpec, key: str, arriving: ArrivingStream) -> str:
        try:
            checkpoint = await self._state.peek(key)
        except HoldfastError as error:
            return f"the state can't be read: {error}"
        handle = arriving.handle
        async with handle.loads:
            if obstacle := self._obstacles.known(spec, handle):
                return obstacle
            return await self._open_in(spec, key, arriving, checkpoint)

    async def _open_in(
        self, spec: StreamSpec, key: str, arriving: ArrivingStream, checkpoint: Checkpoint | None
    ) -> str:
        plain, handle = key.partition("/")[2], arriving.handle
        state, version = (checkpoint.state, checkpoint.state_version) if checkpoint else (None, 0)

        def begin(slot: StreamSlot, call: SlotCall) -> Awaitable[None]:
            if self._arriving.get(key) is not arriving:  # its owner here may have opened it from newer state
                raise HandlerFailed(f"{key} is no longer prepared here")
            return slot.open(spec.name, plain, state, version, call=call)

        try:
            await self._pool.call(handle, spec.timeout_s, begin, of=key)
        except ModelFailed as error:
            if error.model in self._models:
                self._obstacles.found(spec.name, error.model, redact(str(error)), handle)
            return redact(str(error))
        except SlotCrash as error:
            if error.model in spec.models:
                self._obstacles.found(spec.name, error.model, error.loading_error, handle)
            return redact(str(error))
        except (StateRejected, HandlerFailed) as error:
            return redact(str(error))
        return ""
