"""Sends a brief of each closed command to a queue, in the form of a task's brief.

The transaction that closes a command marks its brief as pending, and the mark is deleted once the queue has
the brief. So each brief is sent at least once, whichever node dies.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from holdfast import Outcome
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.errors import HoldfastError, TooLarge
from holdfast.extend import Outgoing, Queue, TaskState
from holdfast.extend.products import Envelope, Host, encode_brief
from holdfast.extend.tools import Backoff, decode_json
from holdfast.extend.tracing import TRACEPARENT, valid_traceparent

LOOK_S = 5.0
"""Seconds between looks for briefs that an earlier owner left, and of commands that operators cancelled."""

BATCH = 500
"""Briefs that are read and confirmed at once."""

OUTCOMES = {
    CommandState.ACKNOWLEDGED: TaskState.SUCCEEDED,
    CommandState.FAILED: TaskState.FAILED,
    CommandState.EXPIRED: TaskState.TIMEOUT,
    CommandState.SUPERSEDED: TaskState.DUPLICATED,
}
"""The states of closed commands in a brief."""


class Briefs:
    """The briefs of one outbox on one node. ``shards`` are the shards that the node serves now."""

    def __init__(
        self,
        host: Host,
        app: str,
        outbox: str,
        store: OutboxStore,
        queue: Queue,
        shards: Collection[int],
    ) -> None:
        self._app = app
        self._outbox = outbox
        self._store = store
        self._queue = queue
        self._clock, self._log, self._node = host.clock, host.log, host.name
        self._shards = shards
        self._wake = asyncio.Event()
        self._backoff = Backoff(0.1, 10.0)
        self.sent = 0

    def wake(self) -> None:
        """Look for briefs, because commands were closed."""
        self._wake.set()

    async def run(self) -> None:
        """Send briefs, until cancelled."""
        failures = 0
        while True:
            await self._clock.wait(self._wake, LOOK_S)
            self._wake.clear()
            try:
                while shards := [*self._shards]:
                    closed = await self._store.pending_briefs(self._outbox, shards, BATCH)
                    if not closed:
                        break
                    await self._send(closed)
                    await self._store.confirm_briefs(self._outbox, closed)
                    self.sent += len(closed)
                failures = 0
            except HoldfastError as error:
                failures += 1
                self._log.warning("cannot send briefs", outbox=self._outbox, error=str(error))
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                self._wake.set()

    async def _send(self, closed: Sequence[StoredCommand]) -> None:
        size = self._queue.max_batch
        for begin in range(0, len(closed), size):
            batch = closed[begin : begin + size]
            try:
                await self._queue.send([self._brief(entry) for entry in batch])
            except TooLarge:
                for entry in batch:
                    await self._send_one(entry)

    async def _send_one(self, entry: StoredCommand) -> None:
        """Send one brief, without the device's answer if that makes it too large."""
        try:
            await self._queue.send([self._brief(entry)])
        except TooLarge as error:
            self._log.warning(
                "brief sent without the answer", outbox=self._outbox, command=entry.id, error=str(error)
            )
            short = msgspec.structs.replace(entry, answer=None)
            await self._queue.send([self._brief(short)])

    def _brief(self, entry: StoredCommand) -> Outgoing:
        traceparent = valid_traceparent(entry.traceparent)
        place = {TRACEPARENT: traceparent} if traceparent else {}
        return Outgoing(brief_of(self._app, self._outbox, entry, self._node), place)


def brief_of(app: str, outbox: str, entry: StoredCommand, node: str) -> bytes:
    """Return the brief of a closed command. Its task id is ``OUTBOX-ID``, and its type is the outbox. Its
    value has ``command``, ``device``, ``state``, ``trace_id``, ``rollout``, and the device's ``answer`` as
    JSON or text, or as ``answer_base64``."""
    trace = f"{outbox}-{entry.id}"
    state = OUTCOMES[entry.state]
    value = {
        "command": entry.id,
        "device": entry.device,
        "state": entry.state.value,
        "trace_id": entry.trace_id,
        "rollout": entry.rollout,
        **_answer(entry.answer),
    }
    outcome = Outcome(
        task_id=trace,
        state=state,
        value=value,
        detail=entry.reason,
        attempts=entry.tries,
        started_at=entry.published_at or 0.0,
        ended_at=entry.closed_at or 0.0,
        node=node,
        progress=float(state is TaskState.SUCCEEDED),
        epoch=entry.epoch,
    )
    envelope = Envelope(
        app=app,
        task_id=trace,
        task_type=outbox,
        priority=max(-(2**31), min(entry.priority, 2**31 - 1)),
        sent_at=entry.created_at,
    )
    return encode_brief(envelope, outcome)


def _answer(answer: bytes | None) -> dict[str, Any]:
    if answer is None:
        return {}
    try:
        decode_json(answer)
        return {"answer": msgspec.Raw(answer)}
    except ValueError:
        pass
    try:
        return {"answer": answer.decode()}
    except UnicodeDecodeError:
        return {"answer_base64": base64.b64encode(answer).decode()}
