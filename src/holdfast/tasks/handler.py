"""What a user writes: a function or class that runs a task, and the job that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Cancelled(BaseException):
    """The attempt was told to end: by its timeout, by somebody's wish, or because its delivery lapsed.

    Raised in the midst of a handler, once, for it to clean up and let pass; after half a second its process
    may be killed. No ``Exception``, so that handlers that catch those don't catch it.
    """


class JobLog(Protocol):
    """Lines for the node's log, bound to the task."""

    def debug(self, event: str, /, **values: Any) -> None: ...
    def info(self, event: str, /, **values: Any) -> None: ...
    def warning(self, event: str, /, **values: Any) -> None: ...
    def error(self, event: str, /, **values: Any) -> None: ...


class Job(Protocol):
    """What a handler may know and say of the attempt at hand. Its calls may come from any thread."""

    app: str
    type: str
    trace_id: str
    attempt: int
    """1 on the first attempt, ``tries`` on the last."""
    tries: int
    epoch: int
    """The fencing token: greater with each attempt of the task. Pass it on to systems that can refuse a lower
    one, and an attempt that was given up for lost does no harm there."""
    log: JobLog

    @property
    def deadline_s(self) -> float:
        """Seconds left of the timeout."""

    @property
    def cancelled(self) -> bool:
        """True once the attempt was told to end."""

    def check(self) -> None:
        """Raise Cancelled if the attempt was told to end."""

    def progress(self, fraction: float | None = None, note: str = "", **numbers: float) -> None:
        """Say how far the work is: a part from 0 to 1, and whatever else helps people who watch. Shows that
        the task advances. Cheap."""

    def on_terminate(self, hook: Callable[[], object]) -> None:
        """Have a function called if the attempt is told to end, after Cancelled was raised in the handler;
        the newest first, in a thread of their own. They and the handler have half a second together."""


Handler = Callable[[Any, Job], Any]
"""A function of the body and the job, sync or async; or a class with such a method ``run``, of which each
slot makes one instance. Its method ``terminate``, if any, is called with the job as such a hook."""
