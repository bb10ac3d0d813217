"""The dead letters of an app's tasks: found by what they say, kept elsewhere too, sent again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection

import msgspec

from holdfast.errors import ConfigError
from holdfast.ports.backup import Backup, Kept
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.runtime import operations
from holdfast.tasks.discovery import Directory
from holdfast.tasks.names import task_queue
from holdfast.tasks.producer import Producer

TOGETHER = 500
"""Letters that are kept in one call."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters: of one trace, set aside in [since, until) (wall times), with a reason in which ``error``
    (a regular expression) is found. What is left out doesn't matter. Raises ConfigError."""

    trace: str = ""
    since: float = 0.0
    until: float = float("inf")
    error: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.error)
        except re.error as wrong:
            raise ConfigError(f"error {self.error!r} is no regular expression: {wrong}") from None

    def holds(self, letter: DeadLetter) -> bool:
        """True for a letter that is chosen."""
        return (
            self.since <= letter.at < self.until
            and self.trace in ("", letter.key)
            and re.search(self.error, f"{letter.reason}\n{letter.detail}") is not None
        )


class Letters:
    """The dead letters of an app's tasks. ``types`` are those that are meant, all that are known if none is
    given. Raises as queues, stores and back-ups do."""

    def __init__(
        self,
        app: str,
        queue: Callable[[str], Queue],
        store: TaskStore,
        directory: Directory,
        producer: Producer,
    ) -> None:
        self._app = app
        self._queue = queue
        self._store = store
        self._directory = directory
        self._producer = producer

    async def back_up(self, backup: Backup, types: Collection[str], choice: Choice) -> int:
        """Keep the letters that are chosen, and that the back-up hasn't yet; returns how many."""
        count, some = 0, list[Kept]()
        for task_type in types or await self._types():
            async for letter in self._chosen(task_type, choice):
                some.append(Kept(self._app, task_type, letter))
                if len(some) == TOGETHER:
                    count += await backup.add(some)
                    some = []
        return count + await backup.add(some)

    async def redrive(self, types: Collection[str], choice: Choice) -> int:
        """Send the letters that are chosen to their queues again, the oldest first, each with all its tries;
        returns how many."""
        count = 0
        for task_type in types or await self._types():
            found = [letter async for letter in self._chosen(task_type, choice)]
            count += await self._producer.redrive(task_type, sorted(found, key=lambda letter: letter.at))
        return count

    async def redrive_kept(self, backup: Backup, types: Collection[str], choice: Choice) -> tuple[int, int]:
        """Send those again that were kept, of a task that failed more than once the last letter. Returns how
        many, and how many were passed over because their tasks wait, run or have succeeded since."""
        found: dict[tuple[str, str], Kept] = {}
        async for kept in backup.letters(self._app):
            if choice.holds(kept.letter) and (not types or kept.type in types):
                found[kept.type, kept.letter.key or kept.letter.id] = kept
        sent = passed = 0
        for task_type in sorted({kept.type for kept in found.values()}):
            some = [kept.letter for kept in found.values() if kept.type == task_type]
            done, left = await self._producer.redrive_kept(task_type, some)
            sent, passed = sent + done, passed + left
        return sent, passed

    def _chosen(self, task_type: str, choice: Choice) -> AsyncIterator[DeadLetter]:
        queue = self._queue(task_queue(self._app, task_type))
        found = operations.letters(queue, choice.trace or None)
        return (letter async for letter in found if choice.holds(letter))

    async def _types(self) -> list[str]:
        """The types of which the store knows tasks, and those that nodes run: a message that nobody could
        read is no task."""
        counts = await self._store.counts()
        listing = await self._directory.read()
        return sorted({task_type for task_type, _ in counts} | listing.types.keys())
