"""Slots: the processes that run handlers. Streams stay in their slot; tasks run in any.

A slot for streams answers calls. A slot for tasks has a *prefetch buffer* of attempts that wait for it. The
kernel, or its substitute, arbitrates: either the process takes an attempt from the buffer or the node
withdraws it, never both, even if the process hangs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from holdfast.common.acts import Acts, Send
from holdfast.ports.tracing import TracedCall

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Exit(msgspec.Struct, frozen=True):
    """The end of a process: the reason, the stacks that it dumped, and the numbers of the attempts that it
    left in its prefetch buffer."""

    reason: str
    stacks: str = ""
    untouched: Sequence[int] = ()


class Slot(Protocol):
    """One living child process. ``name`` is unique among the node's slots, ever."""

    name: str

    async def kill(self, reason: str) -> str:
        """Kill the process and its descendants; returns when they are gone, with the stacks that it dumped
        ("" if none)."""

    async def exited(self) -> Exit:
        """Wait until the process has ended, and its last messages are taken."""


class SlotMaker(Protocol):
    """Makes slots."""

    async def close(self) -> None:
        """End every slot: in good order where they answer in time, killed where not."""


# --- streams


class MessageWork(msgspec.Struct, frozen=True, array_like=True):
    """One message for a handler: its place, its body, and which try of it this is. ``wake`` names the timer
    that is due instead, whose body it is; "" for a message. ``traceparent`` is its place in a trace, "" for
    none."""

    run: int
    seq: int
    body: bytes
    attempt: int = 1
    wake: str = ""
    traceparent: str = ""


class RunResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a ``StreamSlot.run``.

    ``results``: one for each message that was handled, in order (None: no result). If all went well ``state``
    is the snapshot after the last of them (None: the stream keeps none) and ``error`` is empty. Otherwise
    message number ``len(results)`` failed, ``error`` and ``detail`` (a traceback) say how, there is no
    snapshot, and the handler must be opened again before the next run. ``permanent``: the message doesn't fit
    its declared type, so no retry can help. ``calls``: calls to metered services since the last answer, as
    ``Meter.drain`` gives them. ``model`` names the model whose load is what failed, so that the message isn't
    to blame; "" for none. ``acts``: the effects and timers of each result; empty if no message had any.
    ``traced`` is what the slot recorded of messages that stand in a trace.
    """

    results: list[bytes | None]
    state: bytes | None = None
    version: int = 0
    error: str = ""
    detail: str = ""
    permanent: bool = False
    calls: list[tuple[str, str, int]] = []
    model: str = ""
    acts: list[Acts | None] = []
    traced: TracedCall | None = None


QueryFault = Literal["", "request", "handler", "state", "model"]


class QueryResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a ``StreamSlot.query``: the ``answer``, encoded as a result, or an ``error``, with a
    traceback in ``detail``.

    ``fault`` says what is to blame: the request, which the handler can't understand, the handler, the state,
    which doesn't load, or the ``model`` of that name, which doesn't either. ``calls`` are as in RunResult.
    """

    answer: bytes | None = None
    error: str = ""
    detail: str = ""
    fault: QueryFault = ""
    model: str = ""
    calls: list[tuple[str, str, int]] = []


class SlotHost(Protocol):
    """The side of a slot for streams that the worker in it calls."""

    def now(self) -> float:
        """Monotonic time in seconds."""

    def wall(self) -> float:
        """Wall time in seconds since 1970."""

    def progress(self, stream: str, key: str, note: str = "") -> None:
        """The call at work for a key advances, if there is one. Cheap enough to be called at every step."""

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        """A message is about to be handled. What this raises counts as raised by the handler."""

    def failed(self, error: BaseException) -> None:
        """User code raised."""

    def report_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        """The model that a key's call is loading ("" for none), and the declared ones that are loaded."""


class SlotWorker(Protocol):
    """The handlers inside a slot. A factory makes it from a SlotHost; slots use only this interface.

    Its calls suspend only where a loop runs already; else they can be stepped with ``drive``.
    """

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        """See StreamSlot.load."""

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        """See StreamSlot.open."""

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> RunResult:
        """See StreamSlot.run. Never raises for what a handler does."""

    async def query(
        self, stream: str, key: str, state: bytes | None, version: int, request: bytes
    ) -> QueryResult:
        """See StreamSlot.query. Never raises for what a handler does."""

    async def close(self, stream: str, key: str) -> None:
        """See StreamSlot.close."""

    async def stop(self) -> None:
        """Close every handler."""


class SlotCall:
    """One call into a slot, which a caller may watch. Times are the node's monotonic ones.

    Attributes:
        timeout_s: seconds for which it may work without progress.
        of: its purpose: the full key of a stream, or words.
        begun_at: when the slot began it; None while it waits there.
        advanced_at: when it was last seen to advance.
        loading: the model that it is loading, "" for none; that time isn't the handler's.
        note: the last note of its handler.
    """

    __slots__ = ("_on_begun", "advanced_at", "begun_at", "loading", "note", "of", "timeout_s")

    def __init__(
        self, timeout_s: float = math.inf, on_begun: Callable[[], None] = lambda: None, of: str = ""
    ) -> None:
        self.timeout_s = timeout_s
        self.of = of
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

    A slot that has calls works at one of them at least: at the oldest, unless it has reported another.
    """

    def __init__(self) -> None:
        self._calls: dict[int, SlotCall] = {}
        self._count = 0

    def add(self, call: SlotCall, now: float) -> int:
        """Note a new call; returns its number."""
        self._count += 1
        self._calls[self._count] = call
        self._begin_one(now)
        return self._count

    def advance(self, number: int, now: float) -> SlotCall | None:
        """Note a report of the slot about a call; returns the call, or None if the slot has no such call."""
        if (call := self._calls.get(number)) is not None:
            call.advance(now)
        return call

    def finish(self, number: int, now: float) -> SlotCall | None:
        """Note the answer to a call; returns the call, or None if the slot has no such call."""
        call = self._calls.pop(number, None)
        self._begin_one(now)
        return call

    def clear(self) -> None:
        """Forget all calls, because the slot is gone. Calls that waited in it never begin."""
        self._calls.clear()

    def _begin_one(self, now: float) -> None:
        for call in self._calls.values():
            if call.begun_at is not None:
                return
        if (oldest := next(iter(self._calls.values()), None)) is not None:
            oldest.advance(now)

    def __iter__(self) -> Iterator[SlotCall]:
        return iter(self._calls.values())

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: object) -> bool:
        return any(call is known for known in self)


class StreamSlot(Slot, Protocol):
    """A slot for streams. It has a *lane* for each key: the calls of a key run one after another, in the
    order in which they were made. A caller that gives a ``call`` can watch it. Calls that are not answered
    when the process ends raise SlotDied, with the dumped stacks as detail.
    """

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
        """Load the models that the app declares among these, for the use of ``key`` until it is closed.
        Raises ModelFailed, SlotDied."""

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
    ) -> RunResult:
        """Handle messages in order, then snapshot.

        Ends early, in good order, after ``limit`` messages or once ``after_s`` has passed. Raises
        SlotDied."""

    async def query(
        self,
        stream: str,
        key: str,
        state: bytes | None,
        version: int,
        request: bytes,
        *,
        call: SlotCall | None = None,
    ) -> QueryResult:
        """Have a new handler answer a request, which is JSON, from that state. The handler of ``key`` in the
        slot, if any, isn't touched. Raises SlotDied."""

    async def close(self, stream: str, key: str, *, call: SlotCall | None = None) -> None:
        """Drop the key's handler. Never raises for a dead slot."""


class StreamSlotMaker(SlotMaker, Protocol):
    """Makes slots for streams."""

    async def spawn(self) -> StreamSlot:
        """Return a new slot, the app imported and its handlers ready. Raises ConfigError if the app can't
        load."""


# --- tasks


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at a task, as ``TaskSpec.attempt`` makes it.

    ``body_name`` is the full name of the protobuf message in ``body``, empty for text or JSON. ``attempt``
    counts from 1 to ``tries``; ``epoch`` is the fencing token. ``timeout_s`` is the total time it may take,
    ``stall_s`` the longest without a call of ``job.progress`` (0: any), ``memory_mb`` what its process and
    all that it started may use together (0: what the node allows). ``lease_s``: seconds after which its
    process is killed unless the lease is renewed, even if the node is stopped (0: never). ``pauses`` is how
    many pauses earlier attempts have asked for. ``after`` is the brief of the task that it follows upon
    (empty: of none). ``result_bytes_max`` is how large its result may be. ``traceparent`` is its place in a
    trace, "" for none.
    """

    task_id: str
    type: str
    body: bytes
    body_name: str = ""
    attempt: int = 1
    tries: int = 1
    epoch: int = 0
    timeout_s: float = 60.0
    stall_s: float = 0.0
    memory_mb: int = 0
    lease_s: float = 0.0
    pauses: int = 0
    after: bytes = b""
    result_bytes_max: int = 64 << 10
    traceparent: str = ""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a task: ``fraction`` is from 0 to 1 (None: not said); ``note`` and ``numbers`` say
    more."""

    fraction: float | None = None
    note: str = ""
    numbers: dict[str, float] = {}


class AttemptReport(msgspec.Struct, frozen=True, array_like=True):
    """The result of an attempt whose process didn't die.

    ``result`` is JSON (empty: none). Otherwise ``error`` and ``detail`` (a traceback) say what was raised;
    ``permanent``: no retry can help; ``cancelled``: it ended because it was cancelled. ``spoiled``: the
    process should be replaced. ``output``: there is output of it that has not been read yet. ``took_s`` is
    how long it ran, ``memory_mb`` the most that its process ever used. ``pause_s``: the seconds after which
    the handler asked for another attempt (0: it didn't). ``sends`` are the effects that it sent, if it
    returned. ``traced`` is what the slot recorded, if the attempt stands in a trace.
    """

    result: bytes = b""
    error: str = ""
    detail: str = ""
    permanent: bool = False
    cancelled: bool = False
    spoiled: bool = False
    output: bool = False
    took_s: float = 0.0
    memory_mb: int = 0
    pause_s: float = 0.0
    sends: tuple[Send, ...] = ()
    traced: TracedCall | None = None


class TaskHost(Protocol):
    """The side of a slot for tasks that the worker in it calls."""

    def now(self) -> float:
        """Monotonic time in seconds."""

    def progress(self, number: int, progress: Progress) -> None:
        """An attempt advances. Cheap enough to be called at every step."""

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        """A line of an attempt for the node's log."""

    async def begin(self, attempt: Attempt) -> None:
        """An attempt begins. What this raises counts as raised by the handler."""

    def failed(self, error: BaseException) -> None:
        """The handler raised."""

    def interrupt(self) -> None:
        """Have ``TaskWorker.raise_if_cancelled`` called where the handler is, if it can be reached there."""


class TaskWorker(Protocol):
    """The handlers inside a slot. A factory makes it from a host; slots use only this interface.

    ``attempt`` suspends only where a loop runs already; else it can be stepped with ``drive``.
    """

    async def attempt(self, number: int, attempt: Attempt) -> AttemptReport:
        """Run the handler, and report its progress to the host under this number. Never raises for what the
        handler does."""

    def cancel(self, reason: str) -> None:
        """Cancel the running attempt. May be called from any thread."""

    def raise_if_cancelled(self) -> None:
        """Raise once if the attempt was cancelled. Called in the middle of the handler."""

    def coroutines(self) -> Collection[asyncio.Task[Any]]:
        """Return the asyncio tasks of an ``async def`` handler, which are on no thread's stack while they
        wait. May be called from any thread."""


class Listener(Protocol):
    """Gets the events of slots for tasks."""

    def on_ended(self, slot: TaskSlot, number: int, report: AttemptReport) -> None:
        """Take the end of an attempt; the next one in the prefetch buffer begins."""

    def on_progress(self, slot: TaskSlot, number: int, progress: Progress) -> None:
        """Take the progress of an attempt."""

    def on_log(self, slot: TaskSlot, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        """Take a line of an attempt's log or standard output."""


class TaskSlot(Slot, Protocol):
    """A slot for tasks. It runs one attempt of its prefetch buffer after another, and can be stopped during
    one."""

    def offer(self, number: int, attempt: Attempt) -> bool:
        """Add an attempt to the prefetch buffer, under the caller's number; return False if there is no room,
        or the slot is dead."""

    def withdraw(self) -> list[int]:
        """Remove all attempts from the prefetch buffer, and return their numbers in order."""

    def cancel(self, number: int, reason: str) -> None:
        """Cancel an attempt, by raising in its handler and running its terminate hooks. Does nothing for an
        attempt that isn't running."""

    def lease(self, seconds: float | None) -> None:
        """Have the process and its descendants killed after ``seconds``, even if the node dies, unless this
        is called again; None: never."""

    async def dump(self) -> str:
        """Return the stacks of its threads, "" if it doesn't answer in a tenth of a second."""

    async def stacks_of(self, number: int) -> str | None:
        """Return the stacks of an attempt, thread by thread, without interrupting it; "" if it isn't running,
        None if the process doesn't answer in a second: its handler holds the interpreter, or it is
        suspended."""

    def terminate(self) -> None:
        """Ask the process's descendants to end, as SIGTERM does."""

    async def stop(self, grace_s: float) -> None:
        """Let it end after its attempt; kill it after ``grace_s``."""


class TaskSlotMaker(SlotMaker, Protocol):
    """Makes slots for tasks."""

    async def spawn(self, listener: Listener) -> TaskSlot:
        """Return a new slot, the app imported and its handlers ready. Raises ConfigError if the app can't
        load."""
