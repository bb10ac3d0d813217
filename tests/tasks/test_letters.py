"""Dead letters of tasks: which are meant, and what a file of them holds."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.adapters.memory.queue import MemoryQueue
from holdfast.errors import ConfigError
from holdfast.ports.queue import DeadLetter
from holdfast.tasks.letters import Choice, back_up, chosen
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
    types = [kind async for kind, letter in found if letter.reason == "refused"]
    assert (types.count("publish"), types.count("mail.send"), len(types)) == (60, 60, 120)


async def test_a_file_has_each_letter_once_with_all_that_is_known(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"

    async def some(*letters: DeadLetter) -> AsyncIterator[tuple[str, DeadLetter]]:
        for letter in letters:
            yield "publish", letter

    other = DeadLetter("publish/t-2", b"{}", "failed", key="t-2")
    assert await back_up(some(LETTER), file) == 1
    assert await back_up(some(LETTER, other), file) == 1
    assert await back_up(some(), file) == 0
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["trace_id"], first["type"], first["reason"]) == ("t-1", "publish", "failed: no such table")
    assert (first["detail"], base64.b64decode(first["body"])) == ("line 3", b"\xff\x00")
    assert second["id"] == "publish/t-2"
