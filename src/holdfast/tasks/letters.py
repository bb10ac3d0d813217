"""The dead letters of an app's tasks: found by what they say, copied to a file, sent again."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.runtime import operations
from holdfast.tasks.names import task_queue


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
) -> AsyncIterator[tuple[str, DeadLetter]]:
    """The letters of these types that are chosen, each with its type."""
    for task_type in types:
        letters = operations.letters(queue(task_queue(app, task_type)), choice.trace or None)
        async for letter in letters:
            if choice.holds(letter):
                yield task_type, letter


async def back_up(letters: AsyncIterator[tuple[str, DeadLetter]], file: Path) -> int:
    """Add letters to a file of JSON lines, each with all that a redrive needs; returns how many. Those that
    the file has already are not added again."""
    known = await asyncio.to_thread(_ids, file)
    lines = [
        msgspec.json.encode({"type": task_type, **record(letter)}) + b"\n"
        async for task_type, letter in letters
        if letter.id not in known
    ]
    await asyncio.to_thread(_append, file, lines)
    return len(lines)


def _ids(file: Path) -> set[str]:
    if not file.exists():
        return set()
    return {msgspec.json.decode(line)["id"] for line in file.read_bytes().splitlines()}


def _append(file: Path, lines: Sequence[bytes]) -> None:
    with file.open("ab") as end:
        end.writelines(lines)


def record(letter: DeadLetter) -> dict[str, Any]:
    """A letter as a JSON record."""
    return {
        "id": letter.id,
        "trace_id": letter.key,
        "at": letter.at,
        "reason": letter.reason,
        "detail": letter.detail,
        "attributes": letter.attributes,
        "body": base64.b64encode(letter.body).decode(),
    }
