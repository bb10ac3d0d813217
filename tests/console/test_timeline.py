"""The life of a stream as its page and the API tell it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.console.index import IndexedStream
from holdfast.console.life import SeenOpening, StreamEvents
from holdfast.console.timeline import life_of
from holdfast.operate.explanation import Why
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import Checkpoint

NOW = 1000.0


class Letters:
    """A queue with these dead letters."""

    hides_dead_letters = False

    def __init__(self, letters: list[DeadLetter]) -> None:
        self.letters = letters

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        return self.letters


class Wired:
    """Services with one queue, at a time that stands still."""

    def __init__(self, letters: list[DeadLetter]) -> None:
        self.letters = Letters(letters)
        self.clock = self

    def wall(self) -> float:
        return NOW

    def queue(self, name: str) -> Letters:
        return self.letters


class Seen:
    """An index that has seen one opening."""

    life = StreamEvents()

    def __init__(self, stream: IndexedStream | None = None) -> None:
        self.stream = stream

    def get(self, key: str) -> IndexedStream | None:
        return self.stream

    def openings(self, key: str) -> list[SeenOpening]:
        return [SeenOpening(key, "node-a", 100.0, 200.0)]


async def nodes_of(*letters: DeadLetter) -> list[str]:
    """The nodes of these failures, the newest first, while node-b has had the stream for 300 s."""
    services: Any = Wired(list(letters))
    index: Any = Seen()
    why = Why("s/a", "node-b", 2, 300.0, 0.0, 0.0, 0.0, [])
    return [event.node for event in await life_of(services, index, Checkpoint("s/a"), why)]


def letter(at: float, reason: str = "broken") -> DeadLetter:
    return DeadLetter(f"s/a:{at}", b"", reason, at=at)


async def test_a_failure_names_the_present_owner_only_since_it_has_the_stream() -> None:
    assert await nodes_of(letter(150.0), letter(500.0), letter(701.0)) == ["node-b", "", "node-a"]


async def test_a_message_that_was_skipped_before_names_no_node_as_another_may_have_skipped_it() -> None:
    assert await nodes_of(letter(900.0, "skipped before: ValueError")) == [""]


@pytest.mark.parametrize(
    "commit_id, node",
    [("4.7.0", "node-c"), ("3.6.0", "")],
    ids=["of the last opening", "of an earlier one"],
)
async def test_the_node_of_the_last_commit_is_told_though_it_came_as_soon_as_the_stream_was_opened(
    commit_id: str, node: str
) -> None:
    at = 650.0  # nobody was seen to have the stream then
    point = Checkpoint("s/a", epoch=4, number=7, commit_id=commit_id, at=at)
    index: Any = Seen(IndexedStream("s/a", epoch=4, opener="node-c", since=660.0, until=NOW))
    services: Any = Wired([])
    why = Why("s/a", "node-c", 4, NOW - 660.0, 0.0, 0.0, 0.0, [])
    [commit] = await life_of(services, index, point, why)
    assert commit.text.startswith("last commit")
    assert commit.node == node
