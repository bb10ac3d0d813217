"""Dead letters of tasks: which are meant, and what a file of them holds."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.adapters.file.backup import FileBackup
from holdfast.adapters.memory.queue import MemoryQueue
from holdfast.errors import ConfigError
from holdfast.ports.backup import Kept
from holdfast.ports.queue import DeadLetter
from holdfast.tasks.letters import TOGETHER, Choice, back_up, chosen, kept
from holdfast.tasks.names import task_queue
from holdfast.testing.simulator.loop import SimClock

APP = "reports"
LETTER = DeadLetter("publish/t-1", b"\xff\x00", "failed: no such table", detail="line 3", key="t-1", at=100.0)


@pytest.mark.parametrize(
    "choice, holds",
    [
        ({}, True),
        ({"trace": "t-1"}, True),
        ({"trace": "t-2"}, False),
        ({"since": 100.0}, True),
        ({"since": 100.1}, False),
        ({"until": 100.0}, False),
        ({"error": "no such (table|file)"}, True),
        ({"error": "^line 3$"}, False),
        ({"error": r"(?m)^line 3$"}, True),
        ({"error": "refused"}, False),
        ({"trace": "t-1", "error": "refused"}, False),
    ],
)
def test_a_choice(choice: dict[str, Any], holds: bool) -> None:
    assert Choice(**choice).holds(LETTER) is holds


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        Choice(error="(")


async def test_letters_of_types_are_found_by_what_they_say() -> None:
    clock = SimClock(Random(1), "c")
    queues = {task_queue(APP, kind): MemoryQueue(clock) for kind in ("publish", "mail.send", "other")}
    for name, queue in queues.items():
        reasons = ["refused", "no such table"] * 60  # more than a page
        for start in range(0, len(reasons), queue.max_batch):
            await queue.bury(
                [
                    DeadLetter(f"{name}/{n}", b"{}", reasons[n], key=f"{n}")
                    for n in range(start, start + queue.max_batch)
                ]
            )
    found = chosen(APP, ["publish", "mail.send"], queues.__getitem__, Choice(error="refused"))
    types = [each.type async for each in found if each.letter.reason == "refused"]
    assert (types.count("publish"), types.count("mail.send"), len(types)) == (60, 60, 120)


async def some(*letters: DeadLetter) -> AsyncIterator[Kept]:
    for letter in letters:
        yield Kept(APP, "publish", letter)


async def test_letters_are_kept_once_and_found_again(tmp_path: Path) -> None:
    backup = FileBackup(tmp_path / "letters.jsonl")
    again = msgspec.structs.replace(LETTER, reason="failed: refused", at=200.0)
    unread = DeadLetter("publish/odd", b"{ no json", "malformed", at=300.0)
    assert await back_up(some(LETTER), backup) == 1
    assert await back_up(some(LETTER, again, unread), backup) == 2
    assert await back_up(some(), backup) == 0
    assert await kept(APP, [], backup, Choice()) == {"publish": [again, unread]}, "of a task the last"
    assert await kept(APP, [], backup, Choice(error="no such table")) == {"publish": [LETTER]}
    assert await kept(APP, ["publish"], backup, Choice(since=250.0)) == {"publish": [unread]}
    assert await kept(APP, ["other"], backup, Choice()) == {}
    assert await kept("other", [], backup, Choice()) == {}


async def test_as_many_as_there_are(tmp_path: Path) -> None:
    backup = FileBackup(tmp_path / "letters.jsonl")
    many = [DeadLetter(f"publish/{n}", b"{}", "failed", key=f"{n}") for n in range(TOGETHER + 1)]
    assert await back_up(some(*many), backup) == len(many)
