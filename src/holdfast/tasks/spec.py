"""The declaration of a type of task."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from holdfast.common.message import check_key
from holdfast.common.retry import Backoff
from holdfast.common.settings import Count, Int32, Limit, Positive, RateLimit, Seconds, check_settings
from holdfast.common.user_code import run_user_code
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.ports.slots import Attempt
from holdfast.rules.tasks.fair_queue import TypeShare
from holdfast.rules.tasks.task import Task
from holdfast.tasks.body import Body
from holdfast.tasks.handler import Handler
from holdfast.tasks.outcome import RESULT_BYTES_MAX

if TYPE_CHECKING:
    from holdfast.tasks.reading import Read

NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


BACKOFF = Backoff(1.0, 60.0)
"""The default of ``backoff``."""


class TaskSettings(TypedDict, total=False):
    """The settings of ``App.task``, for functions that pass them on; ``App.task`` describes each."""

    timeout_s: float
    tries: int
    backoff: Backoff
    permanent: type[BaseException] | tuple[type[BaseException], ...]
    hold: Literal["timeout", "lease"]
    margin_s: float
    lease_s: float
    stall_s: float | None
    memory_mb: int
    weight: float
    priority: int
    resumable: bool
    group: str | Callable[[Any], str]
    group_limit: int
    group_rate: float
    rate: float


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared type of task. Made by ``App.task``, which describes each setting."""

    name: str
    handler: Handler | type[Any]
    body: Any = dict
    timeout_s: Seconds = 300.0
    tries: Count = 3
    backoff: Backoff = BACKOFF
    permanent: tuple[type[BaseException], ...] = ()
    hold: Literal["timeout", "lease"] = "timeout"
    margin_s: Seconds = 10.0
    lease_s: Seconds = 30.0
    stall_s: Seconds | None = None
    memory_mb: Limit = 0
    weight: Positive = 1.0
    priority: Int32 = 0
    resumable: bool = False
    group: str | Callable[[Any], str] = ""
    group_limit: Limit = 0
    group_rate: RateLimit = 0.0
    rate: RateLimit = 0.0

    def __post_init__(self) -> None:
        check_settings(str(self), self)
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"task name {self.name!r} must be 1 to 80 letters, digits, '.', '-' and '_'")
        run = getattr(self.handler, "run", None) if inspect.isclass(self.handler) else self.handler
        if not callable(run):
            raise ConfigError(f"{self}: {self.handler!r} is neither a function nor a class with a method run")
        if not all(issubclass(kind, BaseException) for kind in self.permanent):
            raise ConfigError(f"{self}: permanent is {self.permanent!r}; it is a tuple of exception types")

    def __str__(self) -> str:
        return f"task {self.name!r}"

    @property
    def takes_text(self) -> bool:
        """True if its handler takes plain text."""
        return self.body in (str, bytes)

    @property
    def share(self) -> TypeShare:
        """Its share of a node's slots."""
        return TypeShare(self.weight, self.group_limit, self.group_rate)

    @property
    def visibility_s(self) -> float:
        """The seconds for which the queue hides a delivery at a time."""
        return self.lease_s if self.hold == "lease" else self.timeout_s + self.margin_s

    @property
    def stalls_s(self) -> float:
        """The seconds an attempt may run without progress; 0: until its timeout. A lease needs progress."""
        return self.stall_s or (self.lease_s if self.hold == "lease" else 0.0)

    def attempt(
        self,
        body: Body,
        task: Task,
        timeout_s: float | None = None,
        tries: int | None = None,
        after: bytes = b"",
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> Attempt:
        """Return a task's attempt for a slot. ``timeout_s`` and ``tries`` replace the type's. ``after`` is
        the outcome event of the task before it."""
        return Attempt(
            task.task_id,
            self.name,
            body.data,
            body.name,
            task.attempts,
            self.tries if tries is None else tries,
            task.epoch,
            self.timeout_s if timeout_s is None else timeout_s,
            self.stalls_s,
            self.memory_mb,
            self.visibility_s,
            task.pauses,
            after,
            result_bytes_max,
        )

    def read(self, body: Body) -> Any:
        """Return the body as the handler gets it. Raises InvalidMessage."""
        return _reader(self.body)(body.data, body.name)

    def group_of(self, body: Body) -> str:
        """Return the group whose limits a task with this body counts toward; "" for none. Raises
        InvalidMessage."""
        if not self.group:
            return ""
        try:
            found = run_user_code(self._group_in, body)
        except InvalidMessage:
            raise
        except Exception as error:
            raise InvalidMessage(f"{self} can't read the group from the body: {error!r}") from error
        return "" if found in (None, "") else check_key(found, "group")

    def _group_in(self, body: Body) -> Any:
        read = self.read(body)
        return self.group(read) if callable(self.group) else _look_up(read, self.group)


def _look_up(value: Any, field: str) -> Any:
    for name in field.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


@functools.cache
def _reader(body: Any) -> Read:
    from holdfast.tasks.reading import reader  # noqa: PLC0415 (protobuf; who only declares tasks reads none)

    return reader(body)
