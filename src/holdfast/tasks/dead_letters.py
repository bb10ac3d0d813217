"""The dead letters of an app's tasks: they are chosen, backed up and redriven here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec

from holdfast.common.settings import check_settings
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, OperationRefused, Retry, Unavailable
from holdfast.ports.backup import Backup, Kept
from holdfast.ports.dead_letters import dead_letters
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import BATCH
from holdfast.tasks.discovery import Directory
from holdfast.tasks.names import task_queue
from holdfast.tasks.producer import Producer

T = TypeVar("T")

TOGETHER = 500
"""The most dead letters in one call to a back-up."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of dead letters: of one task, dead-lettered in [since, until) (wall times), with a reason that
    the regular expression ``error`` finds. A field that isn't set chooses all. Raises ConfigError."""

    task_id: str = ""
    since: float = 0.0
    until: float = float("inf")
    error: str = ""

    def __post_init__(self) -> None:
        check_settings("choice", self)
        try:
            re.compile(self.error)
        except re.error as wrong:
            raise ConfigError(f"error {self.error!r} isn't a regular expression: {wrong}") from None

    def holds(self, letter: DeadLetter) -> bool:
        """Return True for a dead letter that is chosen."""
        return (
            self.since <= letter.at < self.until
            and self.task_id in ("", letter.key)
            and re.search(self.error, f"{letter.reason}\n{letter.detail}") is not None
        )


class TaskDeadLetters:
    """The dead letters of an app's tasks. ``types`` are the types to use; empty for all known ones. Raises
    what queues, stores and back-ups raise. An error for one type is raised after the others are done."""

    def __init__(
        self,
        app: str,
        queue: Callable[[str], Queue],
        store: TaskStore,
        directory: Directory,
        producer: Producer,
        log: Any,
    ) -> None:
        self._app = app
        self._queue = queue
        self._store = store
        self._directory = directory
        self._producer = producer
        self._log = log

    async def first(self, limit: int, types: Collection[str], choice: Choice) -> list[DeadLetter]:
        """Return the chosen dead letters, ``limit`` at most."""
        found: list[DeadLetter] = []

        async def take(task_type: str) -> None:
            async for letter in self._chosen(task_type, choice):
                if len(found) == limit:
                    return
                found.append(letter)

        await self._each(types, take)
        return found

    async def back_up(self, backup: Backup, types: Collection[str], choice: Choice) -> int:
        """Copy the chosen dead letters to the back-up, without those it already has; returns how many."""

        async def keep(task_type: str) -> int:
            count, some = 0, list[Kept]()
            async for letter in self._chosen(task_type, choice):
                some.append(Kept(self._app, task_type, letter))
                if len(some) == TOGETHER:
                    count += await backup.add(some)
                    some = []
            return count + await backup.add(some)

        return sum(await self._each(types, keep))

    async def redrive(self, types: Collection[str], choice: Choice) -> int:
        """Send the chosen dead letters to their queues again, oldest first, each with all its tries; returns
        how many."""

        async def send(task_type: str) -> int:
            found = [letter async for letter in self._chosen(task_type, choice)]
            return await self._producer.redrive(task_type, sorted(found, key=lambda letter: letter.at))

        return sum(await self._each(types, send))

    async def redrive_kept(self, backup: Backup, types: Collection[str], choice: Choice) -> tuple[int, int]:
        """Send the chosen dead letters of a back-up again. Of a task that failed more than once, the last one
        is sent. Returns how many were sent, and how many were left out because their tasks wait, run or have
        succeeded since."""
        found: dict[tuple[str, str], Kept] = {}
        async for kept in backup.dead_letters(self._app):
            if choice.holds(kept.dead_letter) and (not types or kept.type in types):
                found[kept.type, kept.dead_letter.key or kept.dead_letter.id] = kept

        async def send(task_type: str) -> tuple[int, int]:
            some = [kept.dead_letter for kept in found.values() if kept.type == task_type]
            return await self._producer.redrive_kept(task_type, some)

        done = await self._each(sorted({kept.type for kept in found.values()}), send) if found else []
        return sum(sent for sent, _ in done), sum(passed for _, passed in done)

    def _chosen(self, task_type: str, choice: Choice) -> AsyncIterator[DeadLetter]:
        queue = self._queue(task_queue(self._app, task_type))
        found = dead_letters(queue, choice.task_id or None)
        return (letter async for letter in found if choice.holds(letter))

    async def _each(self, types: Collection[str], do: Callable[[str], Awaitable[T]]) -> list[T]:
        """Call ``do`` for each type, even if it fails for others. A type that only the store knows may have
        no queue, because no app declares it."""
        done, failed = list[T](), dict[str, HoldfastError]()
        for task_type in types or await self._types():
            try:
                done.append(await do(task_type))
            except HoldfastError as error:
                self._log.warning(
                    "cannot reach dead letters",
                    app=self._app,
                    type=task_type,
                    error=str(error),
                )
                if types or not isinstance(error, ConfigError):
                    failed[task_type] = error
        if not failed:
            return done
        first = next(iter(failed.values()))
        kind = OperationRefused if first.retry is Retry.NEVER else Unavailable
        raise kind(f"not done for {', '.join(failed)}; done for all others: {first}") from first

    async def _types(self) -> list[str]:
        """Return the types of all tasks in the store, and of all that nodes run: a dead letter that couldn't
        be read belongs to no task. A batch has no queue."""
        known = {task_type for task_type, _ in await self._store.counts()} - {BATCH}
        try:
            known |= (await self._directory.read()).types.keys()
        except InvalidMessage as error:
            self._log.warning("cannot read task types", app=self._app, error=str(error))
        return sorted(known)
