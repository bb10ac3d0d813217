"""A type of task as ``App.task`` returns it: it sends tasks of its type, and can be called in tests."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from holdfast.ports.slots import Progress
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.handler import Job
from holdfast.tasks.order import Order
from holdfast.tasks.rules.task import Task
from holdfast.tasks.spec import TaskSpec

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TaskClass(Protocol[B_contra, R_co]):
    """A class of handlers, for type checkers: its method ``run`` takes bodies of type B."""

    def run(self, handler: Any, body: B_contra, job: Job, /) -> R_co: ...


class TaskDecorator(Protocol[B]):
    """What ``App.task`` returns: it takes a handler of bodies of type B."""

    @overload
    def __call__(self, handler: TaskClass[B, R], /) -> TaskType[B, R]: ...
    @overload
    def __call__(self, handler: Callable[[B, Job], R], /) -> TaskType[B, R]: ...


class Sender(Protocol):
    """Sends tasks, for callers with an event loop and without."""

    def send_many(self, orders: Sequence[Order], /) -> list[str]: ...

    async def asend_many(self, orders: Sequence[Order], /) -> list[str]: ...


class Signature(Order, frozen=True, kw_only=True):
    """A task that is ready to be sent: now, later, with others by ``Client.send_many``, or as one of those
    that a periodic function returns. Made by :meth:`TaskType.s`."""

    sender: Callable[[], Sender]

    def send(self) -> str:
        """Send it; returns its trace id. Raises as :meth:`TaskType.send`."""
        return self.sender().send_many([self])[0]

    async def asend(self) -> str:
        """The same for programs with an event loop."""
        return (await self.sender().asend_many([self]))[0]


class TaskType(Generic[B, R]):
    """A declared type of task, of which B is the body and R what its handler returns.

    Called with a body it runs the handler, here and now: for tests. ``send`` has a node run it. ``handler``
    is the function or class that was declared.
    """

    def __init__(self, spec: TaskSpec, app: str, sender: Callable[[], Sender]) -> None:
        self.spec = spec
        self.name = spec.name
        self.handler = spec.handler
        self.__name__: str = getattr(spec.handler, "__name__", spec.name)
        self._app = app
        self._sender = sender
        functools.update_wrapper(cast("Callable[..., Any]", self), spec.handler, updated=())

    def __call__(self, body: B, job: Job | None = None) -> R:
        """What the handler returns for that body; with an ``async`` handler, await it. Without a ``job`` it
        gets one that is at its first attempt, and whose progress and log nobody reads."""
        handler: Any = self.handler
        if inspect.isclass(handler):
            made: Any = handler()
            handler = made.run
        result: R = handler(body, self._unread_job() if job is None else job)
        return result

    def __repr__(self) -> str:
        return f"<{self.spec} of app {self._app!r}>"

    def send(
        self,
        body: B,
        *,
        trace_id: str = "",
        dedupe: str = "",
        group: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
    ) -> str:
        """Send a task; returns its trace id. It goes where the app's nodes are (:attr:`holdfast.App.client`).

        Args:
            body: what its handler gets, of the declared type.
            trace_id: its id (default: made up, or from ``dedupe``).
            dedupe: of the tasks of one type with the same key, only the first is run (default: none).
            group: whose limits it counts against, such as a customer (default: what the declared ``group``
                finds in the body).
            priority: the higher the sooner (default 0: the declared one).
            delay_s: it may begin after so many seconds (default 0).

        Raises InvalidMessage for what can't be sent, TooLarge, ConfigError, and Unavailable or OutcomeUnknown
        where the queue or the task store doesn't answer.
        """
        return self.s(
            body, trace_id=trace_id, dedupe=dedupe, group=group, priority=priority, delay_s=delay_s
        ).send()

    async def asend(
        self,
        body: B,
        *,
        trace_id: str = "",
        dedupe: str = "",
        group: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
    ) -> str:
        """As :meth:`send`, for programs with an event loop."""
        return await self.s(
            body, trace_id=trace_id, dedupe=dedupe, group=group, priority=priority, delay_s=delay_s
        ).asend()

    def s(
        self,
        body: B,
        *,
        trace_id: str = "",
        dedupe: str = "",
        group: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
    ) -> Signature:
        """A task to send later, or together with others; the arguments are those of :meth:`send`. Raises
        InvalidMessage, which names the field, for an argument of another type or out of range."""
        return Signature(
            task_type=self.name,
            body=body,
            trace_id=trace_id,
            dedupe=dedupe,
            group=group,
            priority=priority,
            delay_s=delay_s,
            sender=self._sender,
        )

    def group_of(self, body: B) -> str:
        """Whose limits a task with this body counts against, where the producer doesn't say: what the
        declared ``group`` finds in it, "" for nobody. Raises InvalidMessage."""
        return self.spec.group_of(body_of(body))

    def _unread_job(self) -> Job:
        from holdfast.tasks.worker import AttemptJob  # noqa: PLC0415 - for tests alone

        task = Task("test", self.name, attempts=1, epoch=1)
        return AttemptJob(_Unread(), self._app, 1, self.spec.attempt(Body(b""), task))


class _Unread:
    """Where the progress and the log of a job go that nobody reads."""

    def now(self) -> float:
        return time.monotonic()

    def progress(self, number: int, progress: Progress) -> None:
        pass

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        pass
