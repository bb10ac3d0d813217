"""The state store: epochs, numbered commits, results, and which keys are due. It alone decides who may
write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from holdfast.errors import TooLarge
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result


class Logged(msgspec.Struct, frozen=True):
    """A result in the log. ``cursor`` grows in the order of commits over all streams."""

    cursor: int
    key: str
    epoch: int
    result: Result
    at: float


def check_state(holder: Checkpoint | Commit, max_state_bytes: int) -> None:
    """Raise TooLarge if the state in a checkpoint or commit is over the limit of a store."""
    size = len(holder.state or b"")
    if size > max_state_bytes:
        raise TooLarge(f"{holder.key}: a state of {size} bytes is over max_state_bytes, {max_state_bytes}")


class Risk(NamedTuple):
    """A risk at ``server`` (``host:port``, "" for the only one), and what to do about it. ``failed``:
    Holdfast can't work with the server, or will lose commits. ``warning``: it may lose commits in an
    accident."""

    server: str
    verdict: Literal["warning", "failed"]
    text: str
    fix: str


class DatabaseHealth(msgspec.Struct, frozen=True):
    """The old versions of rows in a database, and the reason why it can't remove them.

    ``snapshot_s`` is the age of the oldest snapshot, and ``snapshot_transactions`` the number of later
    transactions, by the kind of its holder; a kind whose age isn't known is left out. ``dead_rows`` and
    ``live_rows`` count the old versions of rows, and the rows, of each of Holdfast's tables."""

    snapshot_s: Mapping[str, float]
    snapshot_transactions: Mapping[str, int]
    dead_rows: Mapping[str, int]
    live_rows: Mapping[str, int]


class StateStore(Protocol):
    """Checkpoints by key; every change is a compare-and-set on epoch and commit number.

    ``key`` is the full key, ``stream/key``.

    Attributes:
        max_state_bytes: the largest state of one checkpoint, in bytes.
    """

    max_state_bytes: int

    async def peek(self, key: str) -> Checkpoint | None:
        """Return the present checkpoint, in which ``recent`` may be empty; None for an unknown key."""

    async def now(self, key: str) -> float:
        """Return the wall time of the clock that dates the key's commits (``Checkpoint.at``). Only this clock
        shows how long ago a commit was."""

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        """Set a higher epoch if the present one is ``expect`` (0: the key is new), and return the checkpoint.
        The epoch is below 2**53, and was never issued for the key before, even if the store has lost its last
        writes since.

        Raises Fenced if the present epoch is another one, and OutcomeUnknown if the answer was lost."""

    async def start(self, key: str, epoch: int, head: str) -> int:
        """Count that the handler of ``head`` is about to run for the first time in this opening. Returns in
        how many openings it has begun. Each opening counts once for each head, even if the call is repeated.
        Raises Fenced, OutcomeUnknown."""

    async def commit(self, commit: Commit) -> None:
        """Apply the next commit. A repeat of the last commit is answered as done. Raises Fenced if epoch or
        number are not the next, OutcomeUnknown, and TooLarge for a state over ``max_state_bytes``."""

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        """Return up to ``limit`` keys whose ``due`` is below the wall time ``before``, the longest due first.
        Each becomes due again at ``before + lease_s``, so that no other caller gets it until then; a commit
        replaces that time."""

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        """Return results with a cursor above ``after``, waiting up to ``wait_s`` for the first; only of one
        ``stream`` if named. A reader that goes on from the last cursor misses no stored result."""

    async def result(self, key: str, name: str) -> Logged | None:
        """Return the stored result of one message (``name``: ``run:seq``), if it is still kept."""

    async def identities(self, key: str, limit: int) -> list[str]:
        """Return the newest identities of the present checkpoint, oldest first and ``limit`` at most; none
        if the stream needs none."""

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        """Return checkpoints in order of key, after the key ``after``, without state, ``recent`` and
        ``effects``."""

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        """Delete results and idle checkpoints older than these wall times; returns how many of each.

        An expired checkpoint leaves its epoch and number, so that fencing still holds. One with timers or
        pending effects doesn't expire."""

    async def close(self) -> None:
        """Close all connections."""


class TransferableState(StateStore, Protocol):
    """A state store whose contents can be read and written as they are. Meanwhile no process opens or
    commits."""

    async def stored(self, keys: Sequence[str]) -> list[Checkpoint]:
        """Return all of the present checkpoints of these keys, in this order, without unknown keys."""

    async def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Write checkpoints as another store had them. A key that this store knows keeps what it has. Later
        epochs of a key are above that of its checkpoint. Raises TooLarge."""

    async def last_cursor(self) -> int:
        """Return the highest cursor so far, also of results that have expired; 0 for none."""

    async def restore_results(self, results: Sequence[Logged], above: int = 0) -> None:
        """Write results as another store had them, in order of their cursors. A cursor that this store knows
        keeps what it has. Later cursors are above all of these and above ``above``."""
