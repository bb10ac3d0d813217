"""The state store in memory: the ledger makes every decision, and all are recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged, check_state
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit
from holdfast.system.bell import Bell


class OpenRecord(msgspec.Struct, frozen=True):
    """An attempt to open, with the checkpoint before and after; ``after`` is None if it was refused."""

    at: float
    key: str
    expect: int
    member: str
    before: Checkpoint | None
    after: Checkpoint | None


class StartRecord(msgspec.Struct, frozen=True):
    """An attempt to count a start, as :class:`OpenRecord`."""

    at: float
    key: str
    epoch: int
    head: str
    before: Checkpoint | None
    after: Checkpoint | None


class CommitRecord(msgspec.Struct, frozen=True):
    """An attempt to commit, as :class:`OpenRecord`. ``repeated``: it was the last one again."""

    at: float
    commit: Commit
    before: Checkpoint | None
    after: Checkpoint | None
    repeated: bool = False


class LossRecord(msgspec.Struct, frozen=True):
    """The loss of the last writes: everything after ``since`` is undone."""

    at: float
    since: float


class MemoryState:
    """One state store, for all nodes.

    Args:
        clock: its time.
        history: where attempts go; share one list between services to have one order of all events.
    """

    def __init__(
        self, clock: Clock, *, max_state_bytes: int = 8 << 20, history: list[Any] | None = None
    ) -> None:
        self.max_state_bytes = max_state_bytes
        self.history: list[Any] = [] if history is None else history
        self.standing: dict[str, Checkpoint] = {}
        self.logged: list[Logged] = []
        self._clock = clock
        self._bell = Bell(clock)
        self._closings = 0
        self._cursors = 0
        self._by_name: dict[tuple[str, str], Logged] = {}
        self._issued: dict[str, int] = {}

    # --- checkpoints

    async def peek(self, key: str) -> Checkpoint | None:
        return self.standing.get(key)

    async def now(self, key: str) -> float:
        return self._clock.wall()

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        before, now = self.standing.get(key), self._clock.monotonic()
        try:
            after = ledger.open_(before, key, expect, member)
        except Fenced:
            self.history.append(OpenRecord(now, key, expect, member, before, None))
            raise
        epoch = self._issued[key] = max(after.epoch, self._issued.get(key, 0) + 1)
        self.standing[key] = after = msgspec.structs.replace(after, epoch=epoch)
        self.history.append(OpenRecord(now, key, expect, member, before, after))
        return after

    async def start(self, key: str, epoch: int, head: str) -> int:
        before, now = self.standing.get(key), self._clock.monotonic()
        try:
            after = ledger.start(before, key, epoch, head)
        except Fenced:
            self.history.append(StartRecord(now, key, epoch, head, before, None))
            raise
        self.standing[key] = after
        self.history.append(StartRecord(now, key, epoch, head, before, after))
        return after.started.openings if after.started else 0

    async def commit(self, commit: Commit) -> None:
        check_state(commit, self.max_state_bytes)
        before, now = self.standing.get(commit.key), self._clock.monotonic()
        try:
            after = ledger.commit(before, commit, self._clock.wall())
        except Fenced:
            self.history.append(CommitRecord(now, commit, before, None))
            raise
        self.history.append(CommitRecord(now, commit, before, after or before, repeated=after is None))
        if after is not None:
            self.standing[commit.key] = after
            self._publish(commit)

    async def identities(self, key: str, limit: int) -> list[str]:
        standing = self.standing.get(key)
        return list(standing.recent[-limit:]) if standing is not None else []

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        keys = sorted(key for key in self.standing if key > after)
        left_out: dict[str, Any] = {"state": None, "recent": (), "effects": ()}
        return [msgspec.structs.replace(self.standing[k], **left_out) for k in keys[:limit]]

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        longest = sorted(self.standing.values(), key=lambda checkpoint: (checkpoint.due, checkpoint.key))
        leased = [
            after
            for checkpoint in longest
            if (after := ledger.lease_due(checkpoint, before, lease_s)) is not None
        ][:limit]
        self.standing.update({checkpoint.key: checkpoint for checkpoint in leased})
        return [checkpoint.key for checkpoint in leased]

    # --- results

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        while True:
            begin = bisect_right(self.logged, after, key=attrgetter("cursor"))
            found = [r for r in self.logged[begin:] if not stream or r.key.startswith(f"{stream}/")]
            remaining_s = deadline - self._clock.monotonic()
            if found or remaining_s <= 0 or self._closings != closings:
                return found[:limit]
            await self._bell.wait(remaining_s)

    async def result(self, key: str, name: str) -> Logged | None:
        return self._by_name.get((key, name))

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        kept = [r for r in self.logged if r.at >= results_before]
        dropped, self.logged = len(self.logged) - len(kept), kept
        self._by_name = {(r.key, r.result.name): r for r in kept}
        idle = [c for c in self.standing.values() if ledger.may_expire(c, idle_before)]
        for checkpoint in idle:
            self.standing[checkpoint.key] = ledger.expire(checkpoint)
        return dropped, len(idle)

    # --- transfer

    async def stored(self, keys: Sequence[str]) -> list[Checkpoint]:
        return [self.standing[key] for key in keys if key in self.standing]

    async def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            check_state(checkpoint, self.max_state_bytes)
        for checkpoint in checkpoints:
            if checkpoint.key not in self.standing:
                self.standing[checkpoint.key] = checkpoint
                self._issued[checkpoint.key] = checkpoint.epoch

    async def last_cursor(self) -> int:
        return self._cursors

    async def restore_results(self, results: Sequence[Logged], above: int = 0) -> None:
        known = {logged.cursor for logged in self.logged}
        self.logged += [logged for logged in results if logged.cursor not in known]
        self.logged.sort(key=attrgetter("cursor"))
        self._by_name = {(r.key, r.result.name): r for r in self.logged}
        self._cursors = max(self._cursors, above, *(logged.cursor for logged in self.logged), 0)
        self._bell.ring()

    async def close(self) -> None:
        self._closings += 1
        self._bell.ring()

    def rewind(self, seconds: float) -> None:
        """Forget the last writes, as when a server's replica takes over. No epoch is issued again."""
        now = self._clock.monotonic()
        since, forgotten = now - seconds, set[tuple[str, int, str]]()
        for event in reversed(self.history):
            if isinstance(event, LossRecord) or (
                isinstance(event, OpenRecord | StartRecord | CommitRecord) and event.at < since
            ):
                break
            if not isinstance(event, OpenRecord | StartRecord | CommitRecord) or event.after is None:
                continue
            key = event.commit.key if isinstance(event, CommitRecord) else event.key
            if isinstance(event, CommitRecord) and not event.repeated:
                forgotten.update((key, event.commit.epoch, result.name) for result in event.commit.results)
            if event.before is None:
                self.standing.pop(key, None)
            else:
                self.standing[key] = event.before
        self.logged = [r for r in self.logged if (r.key, r.epoch, r.result.name) not in forgotten]
        self._by_name = {(r.key, r.result.name): r for r in self.logged}
        self.history.append(LossRecord(now, since))

    def _publish(self, commit: Commit) -> None:
        at = self._clock.wall()
        for result in commit.results:
            self._cursors += 1
            logged = Logged(self._cursors, commit.key, commit.epoch, result, at)
            self.logged.append(logged)
            self._by_name[commit.key, result.name] = logged
        if commit.results:
            self._bell.ring()
