"""What a type of task is declared as: what its handler gets, how long it may take, how often it is tried."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.message import check_key
from holdfast.core.retry import Backoff
from holdfast.core.task import Task
from holdfast.core.turns import Share
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.ports.task_slots import Attempt, Sign
from holdfast.tasks.body import Body
from holdfast.tasks.handler import Handler, Job
from holdfast.tasks.reading import reader

NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
SIGNS = ("progress", "output", "cpu", "probe")
HOLDS = ("timeout", "lease")
POSITIVE = ("timeout_s", "lease_s", "margin_s", "stall_s", "weight")
NOT_NEGATIVE = ("memory_mb", "group_limit", "group_rate")

Probe = Callable[[Any, Job], object]


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared type of task. Made by ``App.task``; see there for the meaning of each setting."""

    name: str
    handler: Handler | type[Any]
    body: Any = dict
    timeout_s: float = 300.0
    tries: int = 3
    backoff: Backoff = Backoff(1.0, 60.0)
    permanent: tuple[type[BaseException], ...] = ()
    hold: Literal["timeout", "lease"] = "timeout"
    margin_s: float = 10.0
    lease_s: float = 30.0
    advances: tuple[Sign, ...] = ("progress",)
    probe: Probe | None = None
    stall_s: float | None = None
    memory_mb: int = 0
    weight: float = 1.0
    priority: int = 0
    resumable: bool = False
    group: str | Callable[[Any], str] = ""
    group_limit: int = 0
    group_rate: float = 0.0

    def __post_init__(self) -> None:
        if not NAME.fullmatch(str(self.name)):
            raise ConfigError(f"task name {self.name!r} must be 1 to 80 letters, digits, '.', '-' and '_'")
        run = getattr(self.handler, "run", None) if inspect.isclass(self.handler) else self.handler
        if not callable(run):
            raise ConfigError(f"{self}: {self.handler!r} is neither a function nor a class with a method run")
        for setting in POSITIVE:
            if (value := getattr(self, setting)) is not None and not value > 0:
                raise ConfigError(f"{self}: {setting} must be above 0")
        for setting in NOT_NEGATIVE:
            if not getattr(self, setting) >= 0:
                raise ConfigError(f"{self}: {setting} must not be negative; 0 is for no limit")
        if self.tries < 1:
            raise ConfigError(f"{self}: tries must be at least 1")
        if self.hold not in HOLDS:
            raise ConfigError(f"{self}: hold is {self.hold!r}; it is one of {', '.join(HOLDS)}")
        if any(sign not in SIGNS for sign in self.advances):
            raise ConfigError(
                f"{self}: advances is {self.advances!r}; it is one or more of {', '.join(SIGNS)}"
            )
        if ("probe" in self.advances) is not (self.probe is not None):
            raise ConfigError(
                f"{self}: the sign 'probe' in advances= and the function probe= need each other"
            )
        if self.hold == "lease" and not self.advances:
            raise ConfigError(
                f"{self}: advances is empty; hold='lease' needs at least one of {', '.join(SIGNS)}"
            )
        kinds: tuple[Any, ...] = self.permanent
        if not all(inspect.isclass(kind) and issubclass(kind, BaseException) for kind in kinds):
            raise ConfigError(f"{self}: permanent is {self.permanent!r}; it is a tuple of exception types")
        group: Any = self.group
        if not (isinstance(group, str) or callable(group)):
            raise ConfigError(
                f"{self}: group is {self.group!r}; it is the name of a field of the body or a function of it"
            )

    def __str__(self) -> str:
        return f"task {self.name!r}"

    @property
    def takes_text(self) -> bool:
        """True if its handler takes plain text, which needs no JSON around it."""
        return self.body in (str, bytes)

    @property
    def share(self) -> Share:
        """What it may take of a node's slots."""
        return Share(self.weight, self.group_limit, self.group_rate)

    @property
    def visibility_s(self) -> float:
        """How long a delivery is held at a time."""
        return self.lease_s if self.hold == "lease" else self.timeout_s + self.margin_s

    @property
    def stalls_s(self) -> float:
        """How long it may stand still; 0 for as long as it may take. A lease is for what advances."""
        return self.stall_s or (self.lease_s if self.hold == "lease" else 0.0)

    def attempt(self, body: Body, task: Task, timeout_s: float | None = None) -> Attempt:
        """The attempt that a task stands at, for a slot; ``timeout_s`` is its own unless given."""
        return Attempt(
            task.trace,
            self.name,
            body.data,
            body.name,
            task.attempts,
            self.tries,
            task.epoch,
            self.timeout_s if timeout_s is None else timeout_s,
            self.stalls_s,
            self.advances,
            self.memory_mb,
            self.visibility_s,
        )

    def read(self, body: Body) -> Any:
        """The body as its handler gets it. Raises InvalidMessage."""
        return _reader(self.body)(body.data, body.name)

    def group_of(self, body: Body) -> str:
        """Whose limits a task with this body counts against, "" for nobody's. Raises InvalidMessage."""
        if not self.group:
            return ""
        read = self.read(body)
        try:
            found = self.group(read) if callable(self.group) else _look_up(read, self.group)
        except Exception as error:
            raise InvalidMessage(f"{self} can't tell its group from the body: {error!r}") from error
        return "" if found in (None, "") else check_key(found, "group")


def _look_up(value: Any, field: str) -> Any:
    for name in field.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


_reader = functools.cache(reader)
