"""The handler of a stream, which users write, and the context that it gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

M = TypeVar("M")
T = TypeVar("T")
M_contra = TypeVar("M_contra", contravariant=True)
H_contra = TypeVar("H_contra", contravariant=True)


class Context(Protocol):
    """The context of a message for its handler: the message's place, models, objects and progress. Each open
    stream has one context, whose fields change with each message."""

    key: str
    """The stream's key, as the message has it."""
    run: int
    seq: int
    """The seq of the current message; 0 if the stream has no seqs."""
    attempt: int
    """The number of this try of the message, counted from 1 since the stream was opened here."""

    @property
    def traceparent(self) -> str:
        """The place of the current message in a trace, as the header ``traceparent`` of W3C Trace Context
        says it; "" if it stands in none. Where OpenTelemetry's API is installed, spans join by themselves."""

    @overload
    def model(self, wanted: str) -> Any: ...
    @overload
    def model(self, wanted: Callable[[], T]) -> T: ...
    def model(self, wanted: str | Callable[[], Any]) -> Any:
        """Return a model: a costly resource that is loaded once per slot and shared by its streams.
        ``wanted`` is the name of a model that the app declares, or a function that builds one.

        A function must be defined in a module, or be a ``functools.partial`` of such a function with hashable
        arguments.
        """

    def fetch(self, url: str) -> bytes:
        """Return the bytes of an object, such as a frame, from the object store or a data URL. Raises
        FileNotFoundError."""

    async def fetch_async(self, url: str) -> bytes:
        """Like ``fetch``, for async handlers."""

    def progress(self, note: str = "") -> None:
        """Report that the work advances. This restarts the handler's ``timeout_s``."""

    def send(self, target: str, body: Any, *, key: str | None = None, delay_s: float = 0.0) -> None:
        """Send an effect: ``body``, a value that JSON can hold or bytes, to a ``target`` by name or URL: a
        stream, a type of task or an outbox of the app, a queue, or a webhook.

        The effect is committed with the state and the result of this message, and handed over after that, at
        least once. If the message fails or the commit doesn't happen, nothing is sent. Only ``process`` and
        ``wake`` may send: what ``open`` sends has no effect. Effects with the same target and ``key``
        (default: the stream's key) are handed over in order; ``delay_s`` after the commit at the earliest,
        and then out of that order.

        Raises ConfigError for an unknown target, InvalidMessage, TooLarge (one message may send 100 effects,
        of 256 KiB each and 1 MiB together), and HandlerFailed for a body that JSON can't hold.
        """

    def wake(
        self,
        name: str,
        *,
        at: float | datetime | None = None,
        after_s: float | None = None,
        body: Any = None,
    ) -> None:
        """Set the timer ``name``: the handler's ``wake`` is called at the time ``at`` (seconds since 1970, or
        an aware datetime) or ``after_s`` seconds from now, though no message comes. It replaces the timer of
        that name. A time in the past is due at once. ``body`` is a value that JSON can hold, of 1 KiB at
        most. A stream can have 64 timers, unless declared otherwise (``max_timers``).

        Raises InvalidMessage, TooLarge, HandlerFailed for a body that JSON can't hold, and OperationRefused
        if the handler has no ``wake``.
        """

    def unwake(self, name: str) -> None:
        """Clear the timer ``name``, if there is one."""


class StreamHandler(Generic[M]):
    """Base class of handlers with state. One instance serves one key, in one slot.

    The calls are ``open``, then ``process`` for every message in order, ``snapshot`` at each checkpoint, and
    ``close``. ``process`` may be ``async def``. A result is any value that JSON can hold, or bytes, or None
    for no result. If ``process`` raises an error, the message is tried again, after the state of the last
    checkpoint is restored.
    """

    version: ClassVar[int] = 1
    """The version of the snapshot's format. When the format changes, increase it and write ``migrate``."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Begin with the state of the last checkpoint, or with None for a new stream."""

    def process(self, message: M, context: Context) -> Any:
        """Handle one message; return its result."""
        raise NotImplementedError

    def wake(self, name: str, body: Any, context: Context) -> Any:
        """Handle a timer that is due; return a result, as ``process`` does. ``body`` is what was given when
        the timer was set. Timers come between messages. One that fails is tried again, skipped and
        dead-lettered as a message is. ``wake`` may be ``async def``."""
        raise NotImplementedError(f"{type(self).__name__} sets the timer {name!r}, but has no wake()")

    def query(self, request: Any, context: Context) -> Any:
        """Answer a question about the stream, and change nothing. ``request`` is a value that JSON can hold,
        or None; the answer is one too, or bytes.

        Another instance answers than the one that handles messages: it is made for the query, opened with
        the state of the last commit, and closed afterwards. In its context ``run`` and ``seq`` are 0, and
        ``send``, ``wake`` and ``unwake`` raise OperationRefused. Raise ``InvalidMessage`` for a request that
        makes no sense. ``query`` may be ``async def``. A stream without this method answers no queries."""
        raise NotImplementedError(f"{type(self).__name__} has no query()")

    def snapshot(self) -> bytes:
        """Return the state to checkpoint. ``open`` must be able to continue exactly from it.

        A handler without this method keeps no state.
        """
        return b""

    def close(self) -> None:
        """Release what ``open`` took. The stream leaves this slot, because it is idle or moves."""

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        """Convert state of an older ``version`` to the present one. Raise an error if that isn't possible."""
        raise ValueError(f"state has version {version}, {cls.__name__} has {cls.version} and no migrate()")


class HandlerClass(Protocol[H_contra, M_contra]):
    """A class of handlers as type checkers see it: its instances are H and take messages of type M."""

    def process(self, handler: H_contra, message: M_contra, context: Context, /) -> Any: ...
