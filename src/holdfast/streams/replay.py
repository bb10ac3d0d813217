"""Runs a handler over archived messages, beside the live stream, and compares its results with the live
ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Literal

import msgspec

from holdfast.common.codec import decode_plain
from holdfast.common.stored import StoredValue
from holdfast.common.user_code import describe
from holdfast.errors import InvalidMessage, ModelFailed, ValueLost
from holdfast.ports.slots import MessageWork
from holdfast.rules.streams.ledger import Timer
from holdfast.streams.addressing import stored_of
from holdfast.streams.archive import ArchivedMessage
from holdfast.streams.offline import Handled, OfflineStream

Comparison = Literal["same", "different", "missing", "none"]
"""A result compared with the live one. ``missing``: the results log has no live one. ``none``: the log has
none, and this handler returned none."""

Step = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Awaits a call of an offline stream, which may not run in an event loop."""

LiveResult = Callable[[str, str], Awaitable[bytes | None]]
"""Returns the live result of a key's message, by the name of its place."""

StoredBody = Callable[[StoredValue], Awaitable[bytes]]
"""Returns the body of a message that was too large for its queue. Raises ValueLost."""


class ReplayedMessage(msgspec.Struct, frozen=True):
    """A message that was replayed, or the timer ``timer``, and its outcome. ``at`` is
    the time that the handler saw. ``failed_live``: the live handler had no tries left for the message."""

    key: str
    at: float
    handled: Handled
    message: ArchivedMessage | None = None
    timer: str = ""
    failed_live: bool = False
    compared: Comparison | None = None
    live: bytes | None = None

    @property
    def error(self) -> str:
        """The error that the handler raised, in words; "" for none."""
        return "" if self.handled.error is None else describe(self.handled.error)

    @property
    def fails_anew(self) -> bool:
        """True if the handler failed where the live one didn't."""
        return self.handled.error is not None and not self.failed_live


class Replay:
    """Runs ``stream`` over one key after the other. ``live_result`` is None where nothing is compared.

    The handler sees the time at which the live stream committed each message. Timers fire by that time.

    Attributes:
        counts: what happened how often: messages, timers, effects, failures, and each Comparison.
    """

    def __init__(
        self,
        stream: OfflineStream,
        step: Step,
        live_result: LiveResult | None = None,
        stored_body: StoredBody | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._stream = stream
        self._step = step
        self._live_result = live_result
        self._stored_body = stored_body

    async def run(self, messages: AsyncIterator[ArchivedMessage]) -> AsyncIterator[ReplayedMessage]:
        """Yield the outcomes of the messages and timers of one key, which begins without state. A caller that
        goes on after a failure passes over the message or the timer."""
        self._stream.wall_s, key = 0.0, None
        async for message in messages:
            key, at = message.key, max(self._stream.wall_s, message.at)
            async for fired in self._timers_until(at):
                yield fired
            self._stream.wall_s = at
            yield await self._replay(message, at)
        if key is not None:
            self.counts["timers left"] += len(self._stream.timers_of(key).standing)
            await self._step(self._stream.forget(key))

    async def stop(self) -> None:
        """Close the handlers."""
        await self._step(self._stream.stop())

    async def _timers_until(self, at: float) -> AsyncIterator[ReplayedMessage]:
        while (due := self._stream.next_due(at)) is not None:
            key, timer = due
            self._stream.wall_s = max(self._stream.wall_s, timer.at)
            yield await self._fire(key, timer)

    async def _fire(self, key: str, timer: Timer) -> ReplayedMessage:
        handled: Handled = await self._step(self._stream.fire(key, timer))
        if handled.error is not None:
            self._stream.drop(key, timer)
        return self._count("timers", ReplayedMessage(key, self._stream.wall_s, handled, timer=timer.name))

    async def _replay(self, message: ArchivedMessage, at: float) -> ReplayedMessage:
        handled = await self._handle(message)
        failed_live = message.kind == "skip" or bool(message.reason)
        replayed = ReplayedMessage(message.key, at, handled, message, failed_live=failed_live)
        if self._live_result is not None and handled.error is None:
            live = await self._live_result(message.key, message.place.name)
            replayed = msgspec.structs.replace(replayed, live=live, compared=compare(handled.result, live))
        return self._count("messages", replayed)

    async def _handle(self, message: ArchivedMessage) -> Handled:
        body = message.content
        try:
            if (stored := stored_of(message.attributes)) is not None and self._stored_body is not None:
                body = await self._stored_body(stored.value)
        except (InvalidMessage, ValueLost) as error:
            return Handled(error=error)
        handled: Handled = await self._step(
            self._stream.handle(message.key, MessageWork(message.run, message.seq, body))
        )
        return handled

    def _count(self, kind: str, replayed: ReplayedMessage) -> ReplayedMessage:
        if isinstance(replayed.handled.error, ModelFailed):
            raise replayed.handled.error  # nothing can be said of any message
        self.counts[kind] += 1
        self.counts["effects"] += len(replayed.handled.acts.sends)
        self.counts["failed"] += replayed.fails_anew
        self.counts["failed in both"] += bool(replayed.error) and not replayed.fails_anew
        if replayed.compared is not None:
            self.counts[replayed.compared] += 1
        return replayed


def compare(result: bytes | None, live: bytes | None) -> Comparison:
    """Compare a result with the live one, as JSON."""
    if live is None:
        return "none" if result is None else "missing"
    if result is None:
        return "different"
    if result == live:
        return "same"
    try:
        return "same" if _normal(result) == _normal(live) else "different"
    except ValueError:
        return "different"


def _normal(result: bytes) -> bytes:
    """Return JSON in one form of all that mean the same. Values of Python would not do: there 1 is True."""
    return msgspec.json.encode(decode_plain(result), order="sorted")
