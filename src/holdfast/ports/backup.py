"""Where dead letters of tasks are kept beside their queues: for longer, and for other programs to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from holdfast.ports.queue import DeadLetter


class Kept(msgspec.Struct, frozen=True):
    """A dead letter with the app and the type of its task."""

    app: str
    type: str
    letter: DeadLetter

    @property
    def identity(self) -> tuple[str, str, float]:
        """A task that fails again makes a letter of the same id at another time."""
        return self.app, self.letter.id, self.letter.at


class Backup(Protocol):
    """Letters of any number of apps. Raises Unavailable (nothing happened) or OutcomeUnknown; all may be
    repeated."""

    async def add(self, letters: Sequence[Kept]) -> int:
        """Keep letters; returns how many were not there before."""

    def letters(self, app: str) -> AsyncIterator[Kept]:
        """All letters of an app, the oldest first. Of them ``stream``, ``run`` and ``seq`` are not kept."""

    async def close(self) -> None:
        """Release connections."""
