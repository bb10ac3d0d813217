"""Queue setup: makes and checks the queues of an app, for services that don't make them at their first
use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Made:
    """The changes that were made to one queue. ``changed`` names the attributes that were changed."""

    name: str
    url: str
    action: Literal["created", "already right", "changed"]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """A finding about a queue, and what to do about it, if anything."""

    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


class QueueSetup(Protocol):
    """The queues of a service, each named by its stream."""

    async def create(
        self, stream: str, *, visibility_s: float, tags: Mapping[str, str], encrypt: bool, kms_key: str
    ) -> Sequence[Made]:
        """Make the stream's queue and its dead-letter queue, or correct their attributes."""

    async def check(self, stream: str, *, visibility_s: float) -> Iterable[QueueFinding]:
        """Return the findings about the stream's queue."""

    async def lacking(self, stream: str) -> str:
        """Return a text about what a stream's queue lacks, such as its dead-letter queue; empty if nothing is
        missing. What can't be checked isn't reported. Raises ConfigError if the queue itself is missing."""

    async def identity(self) -> str:
        """Return whose credentials are used, and where. Raises ConfigError, Unavailable."""

    async def statement(self, streams: Iterable[str]) -> dict[str, Any]:
        """Return what a node must be allowed to do with the queues of ``streams``, as a statement of an IAM
        policy."""
