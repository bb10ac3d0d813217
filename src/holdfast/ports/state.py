"""The state store: epochs, numbered commits, results. It alone judges who may write."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import msgspec

from holdfast.streams.rules.ledger import Checkpoint, Commit, Result


class Logged(msgspec.Struct, frozen=True):
    """A result in the log. ``cursor`` grows in the order of commits over all streams."""

    cursor: int
    key: str
    epoch: int
    result: Result
    at: float


class Risk(NamedTuple):
    """What may happen at ``server`` (``host:port``, "" for the only one), and what to do about it.
    ``failed``: Holdfast can't work with it, or will lose what it committed; ``warning``: in an accident."""

    server: str
    verdict: Literal["warning", "failed"]
    text: str
    fix: str


class StateStore(Protocol):
    """Checkpoints by key; every change is a compare-and-set on epoch and commit number.

    ``key`` is the full key, ``stream/key``.

    Attributes:
        max_state_bytes: largest state of one checkpoint.
    """

    max_state_bytes: int

    async def peek(self, key: str) -> Checkpoint | None:
        """The checkpoint as it stands (``recent`` may be left empty); None for an unknown key."""

    async def now(self, key: str) -> float:
        """The wall time of the clock that dates the key's commits (``Checkpoint.at``): how long ago one was,
        no other clock can tell."""

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        """Set a higher epoch if ``expect`` stands (0: the key is new) and return the checkpoint. It is below
        2**53, and one never issued for the key before, even where the store has lost its last writes since.

        Raises Fenced if another epoch stands, OutcomeUnknown if the answer was lost."""

    async def start(self, key: str, epoch: int, head: str) -> int:
        """Count that ``head``'s handler is about to run for the first time in this opening; returns in
        how many openings it has begun. An opening counts once for each head, however often it says so.
        Raises Fenced, OutcomeUnknown."""

    async def commit(self, commit: Commit) -> None:
        """Apply the next commit, or the last one again (answered as done). Raises Fenced if epoch or
        number are not next, OutcomeUnknown, TooLarge (state over ``max_state_bytes``)."""

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        """Results with a cursor above ``after``, waiting up to ``wait_s`` for the first; only those of one
        ``stream`` if named. A reader that goes on from the last cursor misses none that are kept."""

    async def result(self, key: str, name: str) -> Logged | None:
        """The stored result of one message (``name``: ``run:seq``), if it is still kept."""

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        """Checkpoints in order of key, after the key ``after``, without state and ``recent``."""

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        """Drop results and idle checkpoints older than these wall times; returns how many of each.

        An expired checkpoint leaves its epoch and number, so that fencing still holds."""

    async def close(self) -> None:
        """Release connections."""
