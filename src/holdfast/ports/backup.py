"""A back-up of the dead letters of tasks: it keeps them for longer than their queues, and other programs can
read it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from holdfast.ports.queue import DeadLetter


class Kept(msgspec.Struct, frozen=True):
    """A dead letter with the app and the type of its task."""

    app: str
    type: str
    dead_letter: DeadLetter

    @property
    def identity(self) -> tuple[str, str, float]:
        """The identity of the dead letter. A task that fails again makes one with the same id at another
        time."""
        return self.app, self.dead_letter.id, self.dead_letter.at


class Backup(Protocol):
    """Dead letters of any number of apps. Calls raise Unavailable (nothing happened) or OutcomeUnknown; all
    may be repeated."""

    async def add(self, letters: Sequence[Kept]) -> int:
        """Add dead letters; returns how many were not there before."""

    def dead_letters(self, app: str) -> AsyncIterator[Kept]:
        """Yield all dead letters of an app, oldest first. Their ``stream``, ``run`` and ``seq`` are not
        kept."""

    async def close(self) -> None:
        """Close all connections."""
