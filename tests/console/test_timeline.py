"""The life of a stream as its page and the API tell it."""

from __future__ import annotations

from typing import Any

from holdfast.console.life import SeenOpening, StreamEvents
from holdfast.console.timeline import life_of
from holdfast.operate.explanation import Why
from holdfast.ports.queue import DeadLetter
from holdfast.streams.rules.ledger import Checkpoint

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
