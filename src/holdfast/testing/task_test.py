"""Tests a handler of a task without queue, node or process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Unpack

import msgspec

from holdfast.app.app import App
from holdfast.errors import ConfigError
from holdfast.ports.slots import Attempt, Progress
from holdfast.rules.tasks.task import Task
from holdfast.slots.sends import AnyName
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.follow_ups import event_of
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.spec import TaskSettings, TaskSpec
from holdfast.tasks.task_type import TaskType
from holdfast.tasks.worker import TaskExecutor
from holdfast.testing.in_process import HandlerDriver
from holdfast.testing.sent import SentEffect, sent_effect


class TaskTest:
    """Runs attempts of a task as a slot does.

    >>> def publish(body, job):
    ...     for n in range(body["pages"]):
    ...         job.progress((n + 1) / body["pages"], note="page")
    ...     return f"{body['pages']} pages"
    >>> test = TaskTest(publish)
    >>> test.run({"pages": 2})
    '2 pages'
    >>> [step.fraction for step in test.steps]
    [0.5, 1.0]

    To test what a handler does when it must end::

        test = TaskTest(publish, cancel_at=1)
        with pytest.raises(Cancelled):
            test.run({"pages": 9})

    Args:
        handler: a function, a class, what ``App.task`` made of it, or an App; ``task`` then names its type.
        body: the type of the body, as for ``App.task``.
        settings: other settings of ``App.task``, such as ``timeout_s``. A declared task has its own.
        attempt, epoch, task_id: the values of the job.
        after: the outcome of the task that this one follows upon, for ``job.after``.
        cancel_at: the number of the progress call, from 1, at which the attempt is cancelled; 0 for never.
        over_time_at: the number of the progress call at which the attempt exceeds its timeout; 0 for never.

    Attributes:
        steps: what the handler reported with ``job.progress``.
        lines: what it wrote with ``job.log``: (level, event, values).
        sent: the effects that it sent with ``job.send``, of all runs that succeeded.
    """

    __test__ = False  # pytest shall not take this class for tests of its own

    def __init__(
        self,
        handler: Callable[..., Any] | type[Any] | TaskType[Any, Any] | App,
        task: str = "",
        *,
        body: Any = dict,
        attempt: int = 1,
        epoch: int = 1,
        task_id: str = "test",
        after: Outcome | None = None,
        cancel_at: int = 0,
        over_time_at: int = 0,
        **settings: Unpack[TaskSettings],
    ) -> None:
        targets: Collection[str] = AnyName()
        if isinstance(handler, TaskType):
            name, spec = "test", handler.spec
        elif isinstance(handler, App):
            name, spec, targets = handler.name, _find(handler, task), handler.targets
        else:
            name, app = "test", App("test")
            spec = app.task(task or "test", body=body, **settings)(handler).spec
        self.steps: list[Progress] = []
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []
        self.sent: list[SentEffect] = []
        self._spec = spec
        self._task = Task(task_id, self._spec.name, epoch=epoch, attempts=attempt)
        self._after = b"" if after is None else event_of(after)
        self._cancel_at = cancel_at
        self._over_time_at = over_time_at
        self._now = 0.0
        self._worker = TaskExecutor(name, {spec.name: spec}, self, targets)
        self._driver = HandlerDriver()
        self._errors: list[BaseException] = []

    def run(self, body: Any = None) -> Any:
        """Run one attempt with that body: a protobuf message, a text or its bytes, a value that JSON can
        hold, or a Body. Returns the result as its producer gets it.

        Raises what the handler raises: Cancelled if it was cancelled and let that pass, ``TimeoutError`` if
        its time was over. Raises InvalidMessage if the body doesn't fit the handler's type.
        """
        travelling = body if isinstance(body, Body) else body_of(body)
        self.steps.clear()
        self.lines.clear()
        tried = self._driver.drive(
            self._worker.attempt(1, self._spec.attempt(travelling, self._task, after=self._after))
        )
        if self._over_time_at and len(self.steps) >= self._over_time_at:
            raise TimeoutError(f"over its time: timeout_s = {self._spec.timeout_s:g}")
        if tried.error:
            raise self._errors[-1]
        self.sent += map(sent_effect, tried.sends)
        return msgspec.json.decode(tried.result) if tried.result else None

    # The methods of the worker's host.

    def now(self) -> float:
        return self._now

    def progress(self, number: int, progress: Progress) -> None:
        self.steps.append(progress)
        if len(self.steps) == self._over_time_at:
            self._now += self._spec.timeout_s
        if len(self.steps) in (self._cancel_at, self._over_time_at):
            self._worker.cancel("the test says so")
            self._worker.raise_if_cancelled()

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        self.lines.append((level, event, values))

    async def begin(self, attempt: Attempt) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self._errors.append(error)

    def interrupt(self) -> None:
        pass


def _find(app: App, task: str) -> TaskSpec:
    names = sorted(app.tasks)
    name = task or (names[0] if len(names) == 1 else "")
    if name not in app.tasks:
        raise ConfigError(f"app {app.name!r} has no task {task!r}; name one of {names}")
    return app.tasks[name]
