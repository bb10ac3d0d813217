"""The dead letters of an app's tasks: found by what they say, kept elsewhere too, sent again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable

import msgspec

from holdfast.errors import ConfigError
from holdfast.ports.backup import Backup, Kept
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.runtime import operations
from holdfast.tasks.discovery import Directory
from holdfast.tasks.names import task_queue

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


async def chosen(
    app: str, types: Iterable[str], queue: Callable[[str], Queue], choice: Choice
) -> AsyncIterator[Kept]:
    """The letters of these types in their queues that are chosen."""
    for task_type in types:
        letters = operations.letters(queue(task_queue(app, task_type)), choice.trace or None)
        async for letter in letters:
            if choice.holds(letter):
                yield Kept(app, task_type, letter)


async def kept(
    app: str, types: Collection[str], backup: Backup, choice: Choice
) -> dict[str, list[DeadLetter]]:
    """The letters in a back-up that are chosen, by type (all, if none is given); of a task that failed more
    than once the last."""
    found: dict[tuple[str, str], Kept] = {}
    async for each in backup.letters(app):
        if choice.holds(each.letter) and (not types or each.type in types):
            found[each.type, each.letter.key or each.letter.id] = each
    by_type: dict[str, list[DeadLetter]] = {}
    for each in found.values():
        by_type.setdefault(each.type, []).append(each.letter)
    return by_type


async def back_up(letters: AsyncIterator[Kept], backup: Backup) -> int:
    """Keep letters that a back-up hasn't yet; returns how many. Raises as it does."""
    count, some = 0, list[Kept]()
    async for letter in letters:
        some.append(letter)
        if len(some) == TOGETHER:
            count += await backup.add(some)
            some = []
    return count + await backup.add(some)


async def known_types(store: TaskStore, directory: Directory) -> list[str]:
    """The types of which the store knows tasks, and those that nodes run: a message that nobody could read is
    no task."""
    counts = await store.counts()
    listing = await directory.read()
    return sorted({task_type for task_type, _ in counts} | listing.types.keys())
