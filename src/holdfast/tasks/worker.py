"""The worker inside a slot for tasks: it runs one attempt at a time, and can end it in the middle.

It is a coroutine, so that a simulator can run it in its loop. Without a loop it never suspends, and async
handlers get a loop of the worker's."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.common.codec import encode_result
from holdfast.common.user_code import describe, explain, resolve
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.ports.slots import Attempt, AttemptReport, Progress, TaskHost
from holdfast.ports.tracing import TracedCall
from holdfast.slots.sends import SendRecorder, check_seconds
from holdfast.slots.traced import handling, joins
from holdfast.system.values import ADVICE
from holdfast.tasks import reading  # noqa: F401 (slots are forked with it, or each would import it)
from holdfast.tasks.body import Body
from holdfast.tasks.handler import SEND_DELAY_MAX_S, Cancelled, Job, JobLog, Retry
from holdfast.tasks.outcome import RESULT_BYTES_MAX, Outcome
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import decode_event

Run = Callable[[Any, Job], Any]


class JobHost(Protocol):
    """The part of a TaskHost that a job needs."""

    def now(self) -> float: ...
    def progress(self, number: int, progress: Progress) -> None: ...
    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None: ...


class AttemptLog:
    """The JobLog of one attempt."""

    __slots__ = ("_host", "_number")

    def __init__(self, host: JobHost, number: int) -> None:
        self._host = host
        self._number = number

    def debug(self, event: str, /, **values: Any) -> None:
        self._host.log(self._number, "debug", event, values)

    def info(self, event: str, /, **values: Any) -> None:
        self._host.log(self._number, "info", event, values)

    def warning(self, event: str, /, **values: Any) -> None:
        self._host.log(self._number, "warning", event, values)

    def error(self, event: str, /, **values: Any) -> None:
        self._host.log(self._number, "error", event, values)


class AttemptJob:
    """The Job of one attempt, by its number in the slot. Handlers may leave things on it for their hooks and
    probes."""

    def __init__(
        self, host: JobHost, app: str, number: int, attempt: Attempt, targets: Collection[str]
    ) -> None:
        self._host = host
        self.recorder = SendRecorder(targets, "task")
        self._number = number
        self._began_at = host.now()
        self._timeout_s = attempt.timeout_s
        self._reason: str | None = None
        self._hooks: list[Callable[[], object]] = []
        self.app = app
        self.type = attempt.type
        self.task_id = attempt.task_id
        self.attempt = attempt.attempt
        self.tries = attempt.tries
        self.epoch = attempt.epoch
        self.pauses = attempt.pauses
        self.traceparent = attempt.traceparent
        self._after = attempt.after
        self.log: JobLog = AttemptLog(host, number)
        self.within = False
        """True while its handler may be interrupted, which is at most once."""
        self.task: asyncio.Task[Any] | None = None
        """The task of an async handler."""

    @property
    def trace_id(self) -> str:
        return self.task_id

    @property
    def deadline_s(self) -> float:
        return max(0.0, self._timeout_s - self.took_s)

    @property
    def after(self) -> Outcome | None:
        return decode_event(self._after) if self._after else None

    @property
    def took_s(self) -> float:
        """The seconds that it has run."""
        return self._host.now() - self._began_at

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    def check(self) -> None:
        if self._reason is not None:
            raise Cancelled(self._reason)

    def progress(self, fraction: float | None = None, note: str = "", **numbers: float) -> None:
        if fraction is not None:
            fraction = min(1.0, max(0.0, float(fraction)))
        progress = Progress(fraction, str(note), {k: float(v) for k, v in numbers.items()})
        self._host.progress(self._number, progress)

    def send(self, target: str, body: Any, *, key: str = "", delay_s: float = 0.0) -> None:
        check_seconds("delay_s", delay_s, SEND_DELAY_MAX_S)
        self.recorder.send(target, body, key, delay_s)

    def on_terminate(self, hook: Callable[[], object]) -> None:
        self._hooks.append(hook)

    def cancel(self, reason: str) -> None:
        """Note that the attempt must end."""
        self._reason = self._reason or reason

    def run_hooks(self) -> None:
        """Run the terminate hooks, each once. An error is logged, and the other hooks still run."""
        while self._hooks:
            hook = self._hooks.pop()
            try:
                hook()
            except BaseException as error:  # noqa: BLE001 - hooks are user code, the others run all the same
                self.log.error("terminate hook failed", error=describe(error), traceback=explain(error))


class TaskExecutor:
    """Runs the handlers of an app's tasks. ``targets`` are the names that their effects may have."""

    def __init__(
        self, app: str, specs: Mapping[str, TaskSpec], host: TaskHost, targets: Collection[str] = ()
    ) -> None:
        self._app = app
        self._targets = targets
        self._specs = specs
        self._host = host
        self._runs: dict[str, tuple[Run, Callable[[Job], object] | None]] = {}
        self._job: AttemptJob | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def attempt(self, number: int, attempt: Attempt) -> AttemptReport:
        """See TaskWorker.attempt."""
        job = AttemptJob(self._host, self._app, number, attempt, self._targets)
        traced = TracedCall() if attempt.traceparent and joins(attempt.traceparent) else None
        try:
            if traced is None:
                result = await self._attempt(attempt, job)
            else:
                with handling(traced, 0, attempt.traceparent, time.time):
                    result = await self._attempt(attempt, job)
        except BaseException as error:  # noqa: BLE001 - nor may sys.exit() end the slot
            failed = self._failed(attempt, job, error)
            return failed if traced is None else msgspec.structs.replace(failed, traced=traced)
        finally:
            self._job = None
        return AttemptReport(result, took_s=job.took_s, sends=job.recorder.take_sends(), traced=traced)

    def cancel(self, reason: str) -> None:
        """See TaskWorker.cancel: the handler is interrupted first, then the hooks run, here."""
        if (job := self._job) is not None:
            job.cancel(reason)
            self._host.interrupt()
            job.run_hooks()

    def raise_if_cancelled(self) -> None:
        """See TaskWorker.raise_if_cancelled. An async handler is cancelled where it awaits."""
        job = self._job
        if job is None or not job.cancelled or not job.within:
            return
        job.within = False
        if job.task is not None and asyncio.current_task(job.task.get_loop()) is not job.task:
            job.task.get_loop().call_soon_threadsafe(job.task.cancel)
        else:
            job.check()

    def coroutines(self) -> Collection[asyncio.Task[Any]]:
        """See TaskWorker.coroutines."""
        job = self._job
        return asyncio.all_tasks(job.task.get_loop()) if job is not None and job.task is not None else ()

    async def _attempt(self, attempt: Attempt, job: AttemptJob) -> bytes:
        spec = self._specs.get(attempt.type)
        if spec is None:
            raise InvalidMessage(f"the app declares no task {attempt.type!r}; it has {sorted(self._specs)}")
        body = spec.read(Body(attempt.body, attempt.body_name))
        run, terminate = self._runs.get(spec.name) or self._make(spec)
        if terminate is not None:
            job.on_terminate(functools.partial(terminate, job))
        try:
            self._job = job
            await self._host.begin(attempt)
            job.within = True
            value = run(body, job)
            if inspect.isawaitable(value):
                value = await self._await(value, job)
        finally:
            job.within = False
        try:
            return encode_result(value, attempt.result_bytes_max, takes_bytes=False) or b""
        except TooLarge as error:
            advice = ADVICE if attempt.result_bytes_max <= RESULT_BYTES_MAX else ""
            raise TooLarge(f"{error}{advice}") from None

    def close(self) -> None:
        """Close the loop in which async handlers ran, if there is one."""
        if self._loop is not None:
            self._loop.close()

    def _make(self, spec: TaskSpec) -> tuple[Run, Callable[[Job], object] | None]:
        handler: Any = spec.handler
        if inspect.isclass(handler):
            made: Any = handler()
            run = made.run, getattr(made, "terminate", None)
        else:
            run = handler, None
        self._runs[spec.name] = run
        return run

    async def _await(self, value: Awaitable[Any], job: AttemptJob) -> Any:
        """The outcome of an async handler. Tasks that it leaves behind in a loop of ours are cancelled."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._block(value, job)
        return await value

    def _block(self, value: Awaitable[Any], job: AttemptJob) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        loop = self._loop
        job.task = loop.create_task(_awaited(value))
        try:
            return loop.run_until_complete(job.task)
        finally:
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left))

    def _failed(self, attempt: Attempt, job: AttemptJob, error: BaseException) -> AttemptReport:
        """Return the report of an attempt that raised. Raises the slot's end again, as no handler's error."""
        cancelled = isinstance(error, Cancelled)
        if isinstance(error, asyncio.CancelledError):
            if not job.cancelled and _ending():
                raise error
            cancelled = job.cancelled
        self._host.failed(error)
        spec = self._specs.get(attempt.type)
        no_use = isinstance(error, InvalidMessage) or (spec is not None and isinstance(error, spec.permanent))
        return AttemptReport(
            error=describe(error),
            detail=explain(error),
            permanent=no_use or getattr(error, "permanent", False) is True,
            cancelled=cancelled,
            spoiled=isinstance(error, MemoryError),
            took_s=job.took_s,
            pause_s=error.after_s if isinstance(error, Retry) else 0.0,
        )


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _ending() -> bool:
    """Return True if the worker itself is cancelled, and not a task of user code."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def load(host: TaskHost, app: str) -> TaskExecutor:
    """A worker for the tasks of the app at ``module:name``. Raises ConfigError if it can't be loaded."""
    found = resolve(app)
    specs = getattr(found, "tasks", None)
    if not isinstance(specs, Mapping):
        raise ConfigError(f"{app} isn't a holdfast.App; name the variable that holds one")
    return TaskExecutor(found.name, specs, host, found.targets)
