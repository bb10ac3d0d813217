"""A type of task, as ``App.task`` returns it: it sends tasks of its type, and can be called in tests."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from holdfast.errors import InvalidMessage
from holdfast.ports.slots import Progress
from holdfast.rules.tasks.task import Task
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.handler import Job
from holdfast.tasks.order import Order, SendOptions
from holdfast.tasks.sent import SentTask, result_reader
from holdfast.tasks.spec import TaskSpec

if TYPE_CHECKING:
    # With a default, which typing has from Python 3.13 on.
    from typing_extensions import TypeVar as DefaultTypeVar

    from holdfast.tasks.outcome import Outcome

    R_any = DefaultTypeVar("R_any", default=Any)
else:
    R_any = TypeVar("R_any")

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class TaskClass(Protocol[B_contra, R_co]):
    """A class of handlers as type checkers see it: its method ``run`` takes bodies of type B."""

    def run(self, handler: Any, body: B_contra, job: Job, /) -> R_co: ...


class TaskDecorator(Protocol[B]):
    """The decorator that ``App.task`` returns. It takes a handler of bodies of type B."""

    @overload
    def __call__(self, handler: TaskClass[B, R], /) -> TaskType[B, R]: ...
    @overload
    def __call__(self, handler: Callable[[B, Job], R], /) -> TaskType[B, R]: ...


class Sender(Protocol):
    """Sends tasks, for callers with or without an event loop."""

    def send_many(self, orders: Sequence[Order], /) -> list[str]: ...

    async def asend_many(self, orders: Sequence[Order], /) -> list[str]: ...

    def wait(self, task_id: str, timeout_s: float | None = None) -> Outcome: ...

    async def aoutcome(self, task_id: str, timeout_s: float | None = None) -> Outcome: ...

    def cancel(self, task_id: str, reason: str = ...) -> Task | None: ...


class Signature(Order, Generic[R_any], frozen=True, kw_only=True):
    """A task that is ready to be sent: by its ``send``, with others by ``Client.send_many``, or by a periodic
    function that returns it. Made by :meth:`TaskType.s`."""

    sender: Callable[[], Sender]
    read: Callable[[Any], Any]

    def send(self) -> SentTask[R_any]:
        """Send the task; returns its task id. Raises as :meth:`TaskType.send`."""
        return SentTask(self.sender().send_many([self])[0], self.sender, self.read)

    async def asend(self) -> SentTask[R_any]:
        """Like ``send``, for programs with an event loop."""
        return SentTask((await self.sender().asend_many([self]))[0], self.sender, self.read)


class TaskType(Generic[B, R_co]):
    """A declared type of task. B is the type of the body, and R what the handler returns.

    ``send`` sends a task for a node to run. Calling the object with a body runs the handler in this process,
    for tests. ``handler`` is the declared function or class.
    """

    def __init__(self, spec: TaskSpec, app: str, sender: Callable[[], Sender]) -> None:
        self.spec = spec
        self.name = spec.name
        self.handler = spec.handler
        self.__name__: str = getattr(spec.handler, "__name__", spec.name)
        self._app = app
        self._sender = sender
        self._read = result_reader(spec.handler)
        functools.update_wrapper(cast("Callable[..., Any]", self), spec.handler, updated=())

    def __call__(self, body: B, job: Job | None = None) -> R_co:
        """Run the handler with that body, and return what it returns; await it for an ``async`` handler.
        Without a ``job``, the handler gets one for a first attempt, whose progress, log and effects are
        dropped."""
        handler: Any = self.handler
        if inspect.isclass(handler):
            made: Any = handler()
            handler = made.run
        result: R_co = handler(body, self._unread_job() if job is None else job)
        return result

    def __repr__(self) -> str:
        return f"<{self.spec} of app {self._app!r}>"

    @overload
    def send(
        self: TaskType[B, Coroutine[Any, Any, T]], body: B, **options: Unpack[SendOptions]
    ) -> SentTask[T]: ...
    @overload
    def send(self, body: B, **options: Unpack[SendOptions]) -> SentTask[R_co]: ...
    def send(self, body: B, **options: Unpack[SendOptions]) -> SentTask[Any]:
        """Send a task with :attr:`holdfast.App.client`; returns its task id, a text that also reads the
        outcome.

        Args:
            body: what the handler gets, of the declared type.
            options: ``task_id``: the task's id (default: a random one, or one made from ``dedupe``).
                ``dedupe``: of the tasks of one type with the same key, only the first is run (default: none).
                ``group``: the group whose limits the task counts toward, such as a customer (default: what
                the declared ``group`` finds in the body).
                ``priority``: tasks with a higher one run sooner; it is added to the declared one (default 0).
                ``delay_s``: after how many seconds the task may begin (default 0).
                ``at``: the time at which it may begin, an aware datetime, instead of ``delay_s``. A time that
                is over means at once.
                ``timeout_s``: the total time of one attempt (default: the declared one).
                ``tries``: how many attempts the task gets if they fail (default: the declared number).
                ``then``: the task, or a list of tasks, to send once this one has succeeded, each made by
                :meth:`s`. Its handler reads the outcome of this one from ``job.after`` (default: none).
                ``on_failure``: the same for when it ends otherwise, by being cancelled too (default: none).

        Raises InvalidMessage for a body that can't be sent or an impossible option, TooLarge, ConfigError,
        and Unavailable or OutcomeUnknown if the queue or the task store doesn't answer.
        """
        return self.s(body, **options).send()

    @overload
    async def asend(
        self: TaskType[B, Coroutine[Any, Any, T]], body: B, **options: Unpack[SendOptions]
    ) -> SentTask[T]: ...
    @overload
    async def asend(self, body: B, **options: Unpack[SendOptions]) -> SentTask[R_co]: ...
    async def asend(self, body: B, **options: Unpack[SendOptions]) -> SentTask[Any]:
        """Like :meth:`send`, for programs with an event loop."""
        return await self.s(body, **options).asend()

    @overload
    def s(
        self: TaskType[B, Coroutine[Any, Any, T]], body: B, **options: Unpack[SendOptions]
    ) -> Signature[T]: ...
    @overload
    def s(self, body: B, **options: Unpack[SendOptions]) -> Signature[R_co]: ...
    def s(self, body: B, **options: Unpack[SendOptions]) -> Signature[Any]:
        """Return a task to send later, or together with others. Arguments and errors are as for
        :meth:`send`."""
        if self.spec.group and not options.get("group"):
            # A node looks for it in the body too, but not in one that is stored because it is large. What is
            # wrong about a body, the node says.
            with contextlib.suppress(InvalidMessage):
                options["group"] = self.group_of(body)
        return Signature(task_type=self.name, body=body, sender=self._sender, read=self._read, **options)

    def group_of(self, body: B) -> str:
        """Return what the declared ``group`` finds in a body, "" for none. Tasks for which the producer sets
        no group count toward the limits of this one. Raises InvalidMessage."""
        return self.spec.group_of(body_of(body))

    def _unread_job(self) -> Job:
        from holdfast.slots.sends import AnyName  # noqa: PLC0415 - for tests alone
        from holdfast.tasks.worker import AttemptJob  # noqa: PLC0415 - as above

        task = Task("test", self.name, attempts=1, epoch=1)
        return AttemptJob(_Unread(), self._app, 1, self.spec.attempt(Body(b""), task), AnyName())


class _Unread:
    """Drops the progress and the log of a job."""

    def now(self) -> float:
        return time.monotonic()

    def progress(self, number: int, progress: Progress) -> None:
        pass

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        pass
