"""Queue setup: makes and checks the queues of an app, where a service doesn't make them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Made:
    """What was done to one queue. ``changed`` names the attributes that were not as asked."""

    name: str
    url: str
    action: Literal["created", "already right", "changed"]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """One thing about a queue, and what to do about it if that is anything."""

    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


class QueueSetup(Protocol):
    """The queues of a service, each named by its stream."""

    async def create(
        self, stream: str, *, visibility_s: float, tags: Mapping[str, str], encrypt: bool, kms_key: str
    ) -> Sequence[Made]:
        """Make the stream's queue and that of its dead letters, or set right what is not as asked."""

    async def check(self, stream: str, *, visibility_s: float) -> Iterable[QueueFinding]:
        """What there is to say of the stream's queue."""

    async def lacking(self, stream: str) -> str:
        """What is missing beside a stream's queue, in words, or nothing. What can't be asked counts as there.
        Raises ConfigError if it is the queue itself."""

    async def identity(self) -> str:
        """By which credentials the service is used, and where. Raises ConfigError, Unavailable."""

    async def statement(self, streams: Iterable[str]) -> dict[str, Any]:
        """What a node must be allowed on the queues of ``streams``, as a statement of an IAM policy."""
