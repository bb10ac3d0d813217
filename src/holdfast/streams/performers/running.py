"""Counts the starts of heads, and runs messages in the slots of their streams."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast.cluster.host import Host
from holdfast.common.held import Held
from holdfast.common.redaction import redact
from holdfast.common.user_code import raised_at
from holdfast.errors import (
    Fenced,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    ModelFailed,
    StateRejected,
    ValueLost,
)
from holdfast.ports.slots import MessageWork, RunResult
from holdfast.rules.streams.commands import Run, Start
from holdfast.streams.addressing import STORED, stored_of
from holdfast.streams.loads import Loads
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.performers.loading import Loader
from holdfast.streams.quarantine import Quarantine
from holdfast.streams.slot_assignment import SlotAssignment
from holdfast.streams.slots import SlotCrash, SlotHandles
from holdfast.streams.storage import StreamStorage
from holdfast.streams.traces import HandlingSpans


class Runner:
    """Performs starts and runs."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        streams: Collection[str],
        storage: StreamStorage,
        pool: SlotHandles,
        assignment: SlotAssignment,
        loader: Loader,
        loads: Loads,
        quarantine: Quarantine,
    ) -> None:
        self._owners = owners
        self._host = host
        self._clock, self._log = host.clock, host.log
        self._state, self._values = storage.state, storage.values
        self._pool = pool
        self._assignment = assignment
        self._loader = loader
        self._loads = loads
        self._quarantine = quarantine
        self._took = host.timings.handler_seconds.each(streams)
        owners.perform_by({Start: self.start, Run: self.run})

    # -- starts -----------------------------------------------------------------------------------------

    async def start(self, entry: OwnedStream, generation: int, command: Start) -> None:
        """Count an opening that begins a head, after the head's turn in the quarantine has come."""
        owner, quarantine = entry.owner, self._quarantine
        epoch = owner.epoch
        if command.alone and entry.alone != command.head:
            with _kept_waiting(entry):
                await quarantine.enter(last=command.last)
            if owner.generation != generation:
                quarantine.leave()  # a later opening of this stream may be next
                return
            entry.alone = command.head
        elif not entry.alone and not quarantine.is_open:
            with _kept_waiting(entry):
                await quarantine.opened()  # a head that doesn't run yet must not be counted
        try:
            openings = await self._owners.retry(
                entry, generation, partial(self._state.start, entry.key, epoch, command.head)
            )
        except Fenced:
            self._host.stats.fenced += 1
            self._owners.answer(entry, generation, owner.fenced)
            return
        self._owners.answer(entry, generation, partial(owner.started, openings))

    # -- runs -------------------------------------------------------------------------------------------

    def run(self, entry: OwnedStream, generation: int, command: Run) -> Coroutine[Any, Any, None]:
        entry.called_at = self._clock.monotonic()
        return self._run(entry, generation, command)

    async def _run(self, entry: OwnedStream, generation: int, command: Run) -> None:
        spans: HandlingSpans | None = None
        if (tracer := self._host.tracer) is not None:
            spans = HandlingSpans(tracer, entry.spec.name, entry.plain_key, command.messages)
        if (works := await self._works(entry, generation, command, spans)) is None:
            return
        if not entry.alone and not self._quarantine.is_open:
            with _kept_waiting(entry):
                await self._quarantine.opened()
        try:
            with self._quarantine.running:
                ran = await self._handle(entry, generation, command, works)
        except (StateRejected, ModelFailed, HandlerFailed, SlotCrash) as error:
            if spans is not None:
                spans.failed(redact(str(error)))
            self._failed(entry, generation, command, error)
            return
        if ran is not None:
            if spans is not None:
                entry.traced += spans.ran(ran)
            self._ran(entry, generation, ran)

    def _failed(
        self,
        entry: OwnedStream,
        generation: int,
        command: Run,
        error: StateRejected | ModelFailed | HandlerFailed | SlotCrash,
    ) -> None:
        """Answer a run that ended without results."""
        owner, spec, answer, text = entry.owner, entry.spec, self._owners.answer, redact(str(error))
        match error:
            case StateRejected():
                if command.version > spec.handler.version and self._loader.is_read_elsewhere(entry):
                    self._loader.wait_for_reader(entry, generation, text)
                    return
                self._log.error("state rejected by the handler; stream parked", key=entry.key, error=text)
                answer(entry, generation, lambda now: owner.rejected(text, now))
            case ModelFailed():
                self._loader.model_failed(entry, generation, error.model, text)
            case HandlerFailed():
                detail = redact(error.detail)
                at = raised_at(detail)
                self._log.warning("handler failed", key=entry.key, error=text, at=at, exception=detail)
                answer(entry, generation, lambda now: owner.load_failed(text, detail, now))
            case SlotCrash() if error.model in spec.models:
                self._loader.model_failed(entry, generation, error.model, error.loading_error)
            case SlotCrash():
                detail = redact(error.detail)
                answer(entry, generation, lambda now: owner.slot_died(error.guilty, text, detail, now))

    def _ran(self, entry: OwnedStream, generation: int, ran: RunResult) -> None:
        """Answer a run that handled messages, or failed at its first."""
        owner, name = entry.owner, entry.spec.name
        took_s = entry.handle.took_s if entry.handle is not None else 0.0
        count = len(ran.results) + bool(ran.error)
        self._loads.note(entry.key, took_s, count)
        if count:
            self._took[name].note(took_s / count, count)
        self._host.stats.handled += len(ran.results)
        if any(ran.acts):
            self._owners.acting.add(name)
        if ran.model:
            self._pool.model_failures[ran.model] += 1
            self._loader.model_failed(entry, generation, ran.model, ran.error, len(ran.results))
            return
        if ran.results:
            entry.failed_loads = 0
        if ran.error:
            at = raised_at(ran.detail)
            self._log.warning("handler failed", key=entry.key, error=ran.error, at=at, exception=ran.detail)
        answer = ran.results, ran.state, ran.version, ran.error, ran.detail, ran.permanent
        self._owners.answer(entry, generation, partial(owner.ran, *answer, acts=ran.acts))

    async def _handle(
        self, entry: OwnedStream, generation: int, command: Run, works: list[MessageWork]
    ) -> RunResult | None:
        """Have the slot handle messages; return None if the opening is over."""
        spec = entry.spec
        if command.fresh and entry.owner.generation == generation:
            await self._open_handler(entry, command)
        if entry.owner.generation != generation:
            return None  # the next opening may use the slot by now
        handle, slot = entry.handle, entry.slot
        if handle is None or slot is None:
            raise SlotCrash("the slot was replaced", "", guilty=False)
        ran, _ = await self._pool.call(
            handle,
            spec.timeout_s,
            lambda slot, call: slot.run(
                spec.name,
                entry.plain_key,
                works,
                command.limit,
                spec.checkpoint_after_ms / 1000,
                call=call,
            ),
            slot,
            of=entry.key,
        )
        return ran

    async def _open_handler(self, entry: OwnedStream, command: Run) -> None:
        spec, key = entry.spec, entry.plain_key
        _, slot = await self._pool.call(
            self._assignment.handle_of(entry),
            spec.timeout_s,
            lambda slot, call: slot.open(spec.name, key, command.state, command.version, call=call),
            of=entry.key,
        )
        entry.called_at = self._clock.monotonic()
        self._assignment.is_in(entry, slot)

    async def _works(
        self, entry: OwnedStream, generation: int, command: Run, spans: HandlingSpans | None
    ) -> list[MessageWork] | None:
        """Return the work for the slot; None if the body of the first message can't be read. A message with a
        stored body goes alone, so that a run needs memory for one of them."""
        messages, body = command.messages, command.messages[0].body
        is_stored = [STORED in held.attributes for held in messages]
        if is_stored[0]:
            try:
                body = await self._stored_body(messages[0])
            except (ValueLost, InvalidMessage) as error:
                reason = redact(str(error))
                if spans is not None:
                    spans.unread(reason)
                self._log.warning("stored body lost", key=entry.key, error=reason)
                self._owners.answer(
                    entry,
                    generation,
                    lambda now: entry.owner.ran([], None, 0, reason, "", True, now),
                )
                return None
            except (HoldfastError, OSError) as error:
                reason = f"a stored body can't be read: {redact(str(error))}"
                if spans is not None:
                    spans.unread(reason)
                if entry.owner.generation == generation:
                    self._assignment.handle_of(entry)
                    self._loader.wait_alone(entry, generation, reason, 0)
                return None
        count = 1 if is_stored[0] else is_stored.index(True) if True in is_stored else len(messages)
        return [
            MessageWork(
                held.place.run,
                held.place.seq,
                body if place == 0 else held.body,
                held.tries + 1,
                held.place.timer,
                held.traceparent,
            )
            for place, held in enumerate(messages[:count])
        ]

    async def _stored_body(self, held: Held) -> bytes:
        stored = stored_of(held.attributes)
        assert stored is not None
        return await self._values.get(stored.value)


@contextmanager
def _kept_waiting(entry: OwnedStream) -> Iterator[None]:
    entry.kept_waiting += 1
    try:
        yield
    finally:
        entry.kept_waiting -= 1
