"""The handler of a task, which users write, and the job that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from holdfast.common.settings import check_setting

if TYPE_CHECKING:
    from holdfast.tasks.outcome import Outcome

RETRY_AFTER_MAX_S = 86_400.0
"""The longest pause that an attempt may ask for."""

SEND_DELAY_MAX_S = 86_400.0
"""The longest ``delay_s`` of an effect: until then the message of its task waits in its queue."""


class Cancelled(BaseException):
    """The attempt must end: its timeout is over, it was cancelled, or its delivery lapsed.

    It is raised once, in the middle of the handler. The handler may clean up and must then let it pass; after
    half a second its process may be killed. It is no ``Exception``, so that a handler that catches
    ``Exception`` doesn't catch it."""


class Retry(Exception):
    """Raised by a handler: try the task again after a pause, because something that it needs isn't there yet.

    A pause isn't a failure: it spends no try, and the task waits as ``queued``. ``after_s`` is the pause in
    seconds, above 0 and at most 86,400 (a day); ``reason`` is shown with the task's state. A task may ask for
    1,000 pauses; then asking for another is a failure. ``job.pauses`` counts them, for a pause that grows.
    Raises ConfigError for an impossible pause."""

    def __init__(self, after_s: float, reason: str = "") -> None:
        check_setting("Retry", "after_s", after_s, Annotated[float, msgspec.Meta(gt=0, le=RETRY_AFTER_MAX_S)])
        super().__init__(f"to be tried again after {after_s:g} s" + (f": {reason}" if reason else ""))
        self.after_s = float(after_s)
        self.reason = reason


class JobLog(Protocol):
    """Writes lines to the node's log, with the ids of the task."""

    def debug(self, event: str, /, **values: Any) -> None: ...
    def info(self, event: str, /, **values: Any) -> None: ...
    def warning(self, event: str, /, **values: Any) -> None: ...
    def error(self, event: str, /, **values: Any) -> None: ...


class Job(Protocol):
    """The attempt that a handler runs: its number and deadline, and methods to report progress. Any thread
    may call them."""

    app: str
    type: str
    task_id: str
    attempt: int
    """The number of the attempt: 1 for the first, ``tries`` for the last."""
    tries: int
    pauses: int
    """The number of pauses that earlier attempts asked for, by raising :class:`holdfast.Retry`."""
    epoch: int
    """The fencing token, which is higher with each attempt of the task. Pass it to systems that can refuse a
    lower one: an attempt that was replaced then does no harm there."""
    traceparent: str
    """Its place in a trace, as the header ``traceparent`` of W3C Trace Context says it; "" for none."""
    log: JobLog

    @property
    def trace_id(self) -> str:
        """The task's id, by the name that this had in 0.2.0."""

    @property
    def deadline_s(self) -> float:
        """The seconds that are left of the timeout."""

    @property
    def after(self) -> Outcome | None:
        """The outcome of the task that this one was sent with, as its ``then`` or ``on_failure``; None for a
        task that follows upon no other. Its ``value`` is what that task returned."""

    @property
    def cancelled(self) -> bool:
        """True once the attempt must end."""

    def check(self) -> None:
        """Raise Cancelled if the attempt must end."""

    def progress(self, fraction: float | None = None, note: str = "", **numbers: float) -> None:
        """Report how far the work is: ``fraction`` from 0 to 1, and a ``note`` for people. It shows that the
        task advances, so it extends a lease and restarts ``stall_s``. It is cheap to call."""

    def send(self, target: str, body: Any, *, key: str = "", delay_s: float = 0.0) -> None:
        """Send an effect: ``body``, a value that JSON can hold or bytes, to a ``target`` by name or URL: a
        stream, a type of task or an outbox of the app, a queue, or a webhook.

        The effect is stored with the task's outcome, and handed over after that, at least once, if this
        attempt ends the task by success. If it raises, or its right to run is lost, nothing is sent. Effects
        with the same target and ``key`` are handed over in order; ``delay_s`` after the outcome at the
        earliest, at most a day, and then out of that order. A target that is a stream needs a ``key``.

        Raises ConfigError for an unknown target, InvalidMessage, TooLarge (one task may send 100 effects, of
        256 KiB each and 1 MiB together), and HandlerFailed for a body that JSON can't hold.
        """

    def on_terminate(self, hook: Callable[[], object]) -> None:
        """Add a function that is called if the attempt must end, after Cancelled was raised in the handler.
        The newest is called first, in a separate thread. All of them and the handler have half a second
        together."""


Handler = Callable[[Any, Job], Any]
"""A function of (body, job), sync or async, or a class with such a method ``run``. Each slot makes one
instance of the class. Its method ``terminate(job)``, if any, is called if the attempt must end."""
