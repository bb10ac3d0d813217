"""Slots: the processes that run handlers. A stream stays in its slot; a slot runs one message at a time."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
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

    def progress(self, note: str = "") -> None:
        """Work advances. Cheap enough to be called at every step."""

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        """A message is about to be handled. What this raises counts as raised by the handler."""

    def failed(self, error: BaseException) -> None:
        """User code raised."""

    def tell_models(self, loading: str, loaded: Sequence[str]) -> None:
        """The model that is being loaded ("" for none), and the declared ones that are."""


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


class Slot(Protocol):
    """One living child process.

    Attributes:
        name: unique among the node's slots, ever.
        progress_at: monotonic time of the last sign of progress while it works.
    """

    name: str
    progress_at: float

    @property
    def models(self) -> Sequence[str]:
        """The declared models that are loaded in it."""

    @property
    def loading(self) -> str:
        """The model that is being loaded, "" for none: that is no handler's time."""

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        """Load those of the models that the app declares, for the use of ``key`` until it is closed. Raises
        ModelFailed, SlotDied."""

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        """Make a handler for ``key`` with that state. Raises StateRejected, HandlerFailed, ModelFailed,
        SlotDied."""

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> Ran:
        """Handle messages in order, then snapshot.

        Ends early, in good order, after ``limit`` messages or once ``after_s`` has passed. Calls wait
        their turn: a slot runs one at a time. Raises SlotDied."""

    async def close(self, stream: str, key: str) -> None:
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
