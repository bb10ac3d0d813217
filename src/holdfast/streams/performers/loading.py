"""Loads the models of streams in their slots. Streams that can't run here wait, or move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.errors import ModelFailed
from holdfast.rules.cluster.placement import can_be_read
from holdfast.rules.streams.commands import LoadModels
from holdfast.streams.obstacles import Obstacles, pause_s
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.slot_assignment import SlotAssignment
from holdfast.streams.slots import SlotCrash, SlotHandle, SlotHandles


class Loader:
    """Performs loads of models. ``models`` names the declared ones. ``on_obstacle`` is called with a stream
    that can't run here (see ``Obstacles``), or can again."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        models: Collection[str],
        pool: SlotHandles,
        assignment: SlotAssignment,
        obstacles: Obstacles,
        *,
        on_obstacle: Callable[[str], None],
    ) -> None:
        self._owners = owners
        self._host = host
        self._models = models
        self._pool = pool
        self._assignment = assignment
        self._obstacles = obstacles
        self._on_obstacle = on_obstacle
        owners.perform_by({LoadModels: self.load})

    def load(self, entry: OwnedStream, generation: int, _: LoadModels) -> Coroutine[Any, Any, None]:
        entry.called_at = self._host.clock.monotonic()
        return self._load(entry, generation)

    async def _load(self, entry: OwnedStream, generation: int) -> None:
        owner = entry.owner
        if owner.generation != generation:
            return  # a released stream would keep its slot for ever
        handle = self._assignment.handle_of(entry)
        async with handle.loads:
            if owner.generation == generation:
                await self._load_in(entry, generation, handle)

    async def _load_in(self, entry: OwnedStream, generation: int, handle: SlotHandle) -> None:
        owner, spec = entry.owner, entry.spec
        if obstacle := self._obstacles.known(spec, handle):
            self.obstructed(entry, generation, obstacle)
            return
        try:
            _, slot = await self._pool.call(
                handle,
                spec.timeout_s,
                lambda slot, call: slot.load(spec.name, entry.plain_key, spec.models, call=call),
                of=entry.key,
            )
            self._assignment.is_in(entry, slot)
        except ModelFailed as error:
            self._assignment.is_in(entry, handle.slot)
            self._obstacles.found(spec.name, error.model, redact(str(error)), handle)
            self.obstructed(entry, generation, redact(str(error)))
        except SlotCrash as error:
            if error.model:
                self._obstacles.found(spec.name, error.model, error.loading_error, handle)
                self.obstructed(entry, generation, error.loading_error)
            else:
                text, detail = redact(str(error)), redact(error.detail)
                self._owners.answer(entry, generation, lambda now: owner.slot_died(False, text, detail, now))
        else:
            self._owners.answer(entry, generation, owner.models_loaded)

    # -- streams that can't run here --------------------------------------------------------------------

    def unblock(self, stream: str) -> None:
        """Resume the streams that waited for an obstacle."""
        for entry in self.obstructed_streams(stream):
            self._owners.feed(entry, entry.owner.unblocked)

    def obstructed_streams(self, stream: str) -> list[OwnedStream]:
        """Return the owned keys of a stream that another node may be able to run: a declared model doesn't
        load here, or the state is newer than the handler."""
        return [
            entry for entry in self._owners.of(stream) if entry.owner.runs.obstacle and not entry.tries_alone
        ]

    def model_failed(
        self, entry: OwnedStream, generation: int, model: str, reason: str, handled: int = 0
    ) -> None:
        """Note that a handler asked for a model that doesn't load, after ``handled`` messages of its run."""
        if model not in self._models:
            self.wait_alone(entry, generation, reason, handled)
            return
        if entry.handle is not None:  # else the stream was released meanwhile
            self._obstacles.found(entry.spec.name, model, reason, entry.handle)
        self.obstructed(entry, generation, reason, handled)

    def obstructed(self, entry: OwnedStream, generation: int, obstacle: str, handled: int = 0) -> None:
        """Note that this node can't run the stream: it waits, or moves to a node that can."""
        entry.tries_alone = False
        self._owners.answer(entry, generation, lambda now: entry.owner.models_failed(obstacle, now, handled))
        self._on_obstacle(entry.spec.name)

    def wait_alone(self, entry: OwnedStream, generation: int, reason: str, handled: int) -> None:
        """Have the stream wait for an undeclared model or a stored body, which its next message needs. Only a
        message can show whether that loads, so other streams go on."""
        if (handle := self._waits(entry, generation, reason, handled)) is None:
            return
        entry.tries_alone = True
        if entry.failed_loads == 1:
            self._host.log.error("cannot load what the next message needs", key=entry.key, error=reason)
        self._host.tasks.spawn(self._try_alone(entry, generation, handle))

    def wait_for_reader(self, entry: OwnedStream, generation: int, reason: str) -> None:
        """Move a stream whose state is newer than the handler here to a node that reads it. Until one takes
        it, the stream is tried again after pauses."""
        if (handle := self._waits(entry, generation, reason)) is None:
            return
        if entry.failed_loads == 1:
            self._host.log.warning(
                "state newer than the handler",
                key=entry.key,
                error=reason,
                fix="deploy the newer handler here",
            )
        self._on_obstacle(entry.spec.name)
        self._host.tasks.spawn(self._try_alone(entry, generation, handle))

    def _waits(self, entry: OwnedStream, generation: int, reason: str, handled: int = 0) -> SlotHandle | None:
        """Note at the owner why its stream waits. Return its slot, or None if it doesn't wait here."""
        self._owners.answer(entry, generation, lambda now: entry.owner.models_failed(reason, now, handled))
        if entry.owner.generation != generation or not entry.owner.runs.obstacle or entry.handle is None:
            return None
        entry.failed_loads += 1
        return entry.handle

    def is_read_elsewhere(self, entry: OwnedStream) -> bool:
        """Return True if the handler of another living node reads the stream's state."""
        membership = self._host.membership
        others = [member for member in membership.view.values() if member.id != membership.id]
        return can_be_read(others, entry.spec.name, entry.owner.commits.state_version)

    async def _try_alone(self, entry: OwnedStream, generation: int, handle: SlotHandle) -> None:
        waiting = sum(other.tries_alone and other.handle is handle for other in self._owners)
        clock = self._host.clock
        await clock.sleep(pause_s(entry.failed_loads, handle.took_s, clock.random(), waiting))
        entry.tries_alone = False
        self._owners.answer(entry, generation, entry.owner.unblocked)
