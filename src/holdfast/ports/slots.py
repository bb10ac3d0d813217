"""Slots: the processes that run handlers. A stream stays in its slot; a slot runs one message at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class MessageWork(msgspec.Struct, frozen=True, array_like=True):
    """One message for a handler: its place, its body, and which try of it this is."""

    run: int
    seq: int
    body: bytes
    attempt: int = 1


class Ran(msgspec.Struct, frozen=True, array_like=True):
    """What came of a ``Slot.run``.

    ``results``: one for each message that was handled, in order (None: no result). If all went well
    ``state`` is the snapshot after the last of them (None: the stream keeps none) and ``error`` is empty.
    Otherwise message number ``len(results)`` failed, ``error`` and ``detail`` (a traceback) say how,
    there is no snapshot, and the handler must be opened again before the next run.
    ``permanent``: the message doesn't fit its declared type, so no retry can help. ``calls``: calls to
    metered services since the last answer, as ``Meter.drain`` gives them. ``model`` names the model whose
    load is what failed, so that the message isn't to blame; "" for none.
    """

    results: list[bytes | None]
    state: bytes | None = None
    version: int = 0
    error: str = ""
    detail: str = ""
    permanent: bool = False
    calls: list[tuple[str, str, int]] = []
    model: str = ""


class SlotHost(Protocol):
    """What a slot gives to the worker in it."""

    def now(self) -> float:
        """Monotonic time in seconds."""

    def progress(self, stream: str, key: str, note: str = "") -> None:
        """The call at work for a key advances, if there is one. Cheap enough to be called at every step."""

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        """A message is about to be handled. What this raises counts as raised by the handler."""

    def failed(self, error: BaseException) -> None:
        """User code raised."""

    def tell_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        """The model that a key's call is loading ("" for none), and the declared ones that are loaded."""


class SlotWorker(Protocol):
    """The handlers inside a slot. Made by a factory from a SlotHost; slots know no more of it than this.

    Its calls suspend only where a loop runs already; else they can be stepped with ``drive``.
    """

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        """As Slot.load."""

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        """As Slot.open."""

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> Ran:
        """As Slot.run. Never raises for what a handler does."""

    async def close(self, stream: str, key: str) -> None:
        """As Slot.close."""

    async def stop(self) -> None:
        """Close every handler."""


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, as a worker's calls don't where no loop runs."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise RuntimeError("a synchronous call can't wait while a loop runs; use the async form and await it")


class SlotCall:
    """One call into a slot, for whoever watches how it goes. Times are the node's monotonic ones.

    Attributes:
        timeout_s: how long it may be at work without progress.
        begun_at: when the slot began it; None while it waits there.
        advanced_at: when it was last seen to advance.
        loading: the model that it is loading, "" for none: that is no handler's time.
        note: what its handler last said.
    """

    __slots__ = ("_on_begun", "advanced_at", "begun_at", "loading", "note", "timeout_s")

    def __init__(self, timeout_s: float = math.inf, on_begun: Callable[[], None] = lambda: None) -> None:
        self.timeout_s = timeout_s
        self.begun_at: float | None = None
        self.advanced_at = 0.0
        self.loading = ""
        self.note = ""
        self._on_begun = on_begun

    def advance(self, now: float) -> None:
        """It advances, or begins."""
        self.advanced_at = now
        if self.begun_at is None:
            self.begun_at = now
            self._on_begun()


class SlotCalls(Collection[SlotCall]):
    """The calls that a slot has not answered yet, the oldest first, each under a number of its own.

    A slot that has calls works at one of them at least: at the oldest, unless it has told of another.
    """

    def __init__(self) -> None:
        self._calls: dict[int, SlotCall] = {}
        self._count = 0

    def add(self, call: SlotCall, now: float) -> int:
        """Another call is given to the slot; returns its number."""
        self._count += 1
        self._calls[self._count] = call
        self._begin_one(now)
        return self._count

    def advance(self, number: int, now: float) -> SlotCall | None:
        """The slot told something of a call; None if it has no such call."""
        if (call := self._calls.get(number)) is not None:
            call.advance(now)
        return call

    def finish(self, number: int, now: float) -> SlotCall | None:
        """The slot has answered a call; None if it has no such call."""
        call = self._calls.pop(number, None)
        self._begin_one(now)
        return call

    def clear(self) -> None:
        """The slot is gone. Those that waited in it are never begun."""
        self._calls.clear()

    def _begin_one(self, now: float) -> None:
        if self._calls and not any(call.begun_at is not None for call in self):
            next(iter(self)).advance(now)

    def __iter__(self) -> Iterator[SlotCall]:
        return iter(self._calls.values())

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: object) -> bool:
        return any(call is known for known in self)


class Slot(Protocol):
    """One living child process. It has a *lane* for each key: the calls of a key are worked off one after
    another, in the order in which they were made. Who gives a ``call`` can watch how it goes.

    Attributes:
        name: unique among the node's slots, ever.
    """

    name: str

    @property
    def calls(self) -> Collection[SlotCall]:
        """The calls that it has not answered yet, the oldest first."""

    @property
    def models(self) -> Sequence[str]:
        """The declared models that are loaded in it."""

    @property
    def loading(self) -> str:
        """The model that is being loaded, "" for none."""

    async def load(
        self, stream: str, key: str, models: Sequence[str], *, call: SlotCall | None = None
    ) -> None:
        """Load those of the models that the app declares, for the use of ``key`` until it is closed. Raises
        ModelFailed, SlotDied."""

    async def open(
        self, stream: str, key: str, state: bytes | None, version: int, *, call: SlotCall | None = None
    ) -> None:
        """Make a handler for ``key`` with that state, in place of the one that it has. Raises StateRejected,
        HandlerFailed, ModelFailed, SlotDied."""

    async def run(
        self,
        stream: str,
        key: str,
        work: Sequence[MessageWork],
        limit: int,
        after_s: float,
        *,
        call: SlotCall | None = None,
    ) -> Ran:
        """Handle messages in order, then snapshot.

        Ends early, in good order, after ``limit`` messages or once ``after_s`` has passed. Raises
        SlotDied."""

    async def close(self, stream: str, key: str, *, call: SlotCall | None = None) -> None:
        """Drop the key's handler. Never raises for a dead slot."""

    async def kill(self, reason: str) -> str:
        """Dump the stacks of the child, kill it and its descendants, and return the dump ("" if none).

        Calls in flight raise SlotDied with the dump as detail."""

    async def exited(self) -> str:
        """Return when the process is gone, with what is known of why."""


class Slots(Protocol):
    """Makes slots."""

    async def spawn(self) -> Slot:
        """A new slot, the app imported and its handlers ready. Raises ConfigError if the app can't load."""

    async def close(self) -> None:
        """End every slot: handlers closed where they answer in time, killed where not."""
