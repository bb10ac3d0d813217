"""The task store: how every task of one app stands, and who may end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.errors import Fenced
from holdfast.tasks.rules.task import AttemptBeat, EndAttempt, ReturnAttempt, StartAttempt, State, Task


class TaskStore(Protocol):
    """The tasks of one app by trace; each change is one of the functions of :mod:`holdfast.tasks.rules.task`,
    applied atomically. Batches are applied in order, each item by itself: one that is Fenced harms no other.
    A store that may have lost its last writes gives an attempt a higher epoch than the rule does, one that
    was never issued for the task.

    Every call may raise Unavailable (nothing happened) or OutcomeUnknown; all may be repeated as they are.
    """

    async def queue(self, tasks: Sequence[Task]) -> list[Task]:
        """Note tasks as sent; returns how each stands, one known before as it was."""

    async def start(self, wishes: Sequence[StartAttempt]) -> list[Task]:
        """Begin attempts; returns how each task stands then."""

    async def beat(self, beats: Sequence[AttemptBeat]) -> list[Task | Fenced]:
        """Keep attempts from lapsing and tell how far they are; returns how each task stands (look at its
        ``cancel``), or that the attempt is over."""

    async def give_back(self, returns: Sequence[ReturnAttempt]) -> list[Task | Fenced]:
        """End attempts without an outcome."""

    async def end(self, ends: Sequence[EndAttempt]) -> list[Task | Fenced]:
        """Note outcomes."""

    async def briefed(self, sent: Sequence[tuple[str, int]]) -> None:
        """Note (trace, epoch) of outcomes whose briefs have been sent. Unknown ones are passed over."""

    async def cancel(self, trace: str, reason: str) -> Task | None:
        """Have a task end; None if it is not known."""

    async def reset(self, traces: Sequence[str]) -> list[Task | None]:
        """Queue tasks anew with all their tries, those that run or have succeeded excepted; returns how each
        stands, None for one not known."""

    async def get(self, trace: str) -> Task | None:
        """How a task stands."""

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the task's word for it
        since: float = 0.0,
    ) -> list[Task]:
        """Tasks in order of trace, after the trace ``after``; those of one state or type, or queued, started
        or ended at ``since`` (wall time) or later, if given. Traces are compared as UTF-8."""

    async def counts(self) -> dict[tuple[str, State], int]:
        """How many tasks of each type stand in each state."""

    async def now(self) -> float:
        """The wall time of the clock that dates the tasks."""

    async def expire(self, before: float) -> int:
        """Drop tasks to which nothing has happened since this wall time; returns how many."""

    async def close(self) -> None:
        """Release connections."""
