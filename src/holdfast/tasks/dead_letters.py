"""The dead letters of an app's tasks: found by what they say, kept elsewhere too, sent again."""

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
from holdfast.tasks.discovery import Directory
from holdfast.tasks.names import task_queue
from holdfast.tasks.producer import Producer

T = TypeVar("T")

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
        check_settings("choice", self)
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
    given. Raises as queues, stores and back-ups do; what fails for one type is raised once the others are
    done."""

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

    async def back_up(self, backup: Backup, types: Collection[str], choice: Choice) -> int:
        """Keep the letters that are chosen, and that the back-up hasn't yet; returns how many."""

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
        """Send the letters that are chosen to their queues again, the oldest first, each with all its tries;
        returns how many."""

        async def send(task_type: str) -> int:
            found = [letter async for letter in self._chosen(task_type, choice)]
            return await self._producer.redrive(task_type, sorted(found, key=lambda letter: letter.at))

        return sum(await self._each(types, send))

    async def redrive_kept(self, backup: Backup, types: Collection[str], choice: Choice) -> tuple[int, int]:
        """Send those again that were kept, of a task that failed more than once the last letter. Returns how
        many, and how many were passed over because their tasks wait, run or have succeeded since."""
        found: dict[tuple[str, str], Kept] = {}
        async for kept in backup.letters(self._app):
            if choice.holds(kept.letter) and (not types or kept.type in types):
                found[kept.type, kept.letter.key or kept.letter.id] = kept

        async def send(task_type: str) -> tuple[int, int]:
            some = [kept.letter for kept in found.values() if kept.type == task_type]
            return await self._producer.redrive_kept(task_type, some)

        done = await self._each(sorted({kept.type for kept in found.values()}), send) if found else []
        return sum(sent for sent, _ in done), sum(passed for _, passed in done)

    def _chosen(self, task_type: str, choice: Choice) -> AsyncIterator[DeadLetter]:
        queue = self._queue(task_queue(self._app, task_type))
        found = dead_letters(queue, choice.trace or None)
        return (letter async for letter in found if choice.holds(letter))

    async def _each(self, types: Collection[str], do: Callable[[str], Awaitable[T]]) -> list[T]:
        """Do something for each type, whatever becomes of the others. Of types that the store alone knows
        there may be no queue: such a task was sent, and nobody declares its type."""
        done, failed = list[T](), dict[str, HoldfastError]()
        for task_type in types or await self._types():
            try:
                done.append(await do(task_type))
            except HoldfastError as error:
                self._log.warning(
                    "could not reach a type's dead letters",
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
        """The types of which the store knows tasks, and those that nodes run: a message that nobody could
        read is no task."""
        known = {task_type for task_type, _ in await self._store.counts()}
        try:
            known |= (await self._directory.read()).types.keys()
        except InvalidMessage as error:
            self._log.warning("which types nodes run can't be read", app=self._app, error=str(error))
        return sorted(known)
