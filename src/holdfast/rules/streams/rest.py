"""Decides when an owner leaves its stream: because it moves to another node, or because nothing is to do.

Before a stream whose key is reserved moves, the owner puts what it holds back to the queue, and the next
owner takes it in order.
"""

from __future__ import annotations

from holdfast.rules.streams.commands import PutBack, Release, Transfer
from holdfast.rules.streams.run_plan import RunPlan

LOOK_S = 30.0
"""How often an owner that is parked, or holds at a gap, reads the store: an operator who changed the stream
there may not have been able to notify it."""


class Rest:
    """Decides when one owner leaves. It is asked while nothing runs and no commit or start is under way."""

    __slots__ = ("busy_at", "look_at", "putting_back", "runs", "target", "target_knows")

    runs: RunPlan
    """The plan of the present opening."""

    def __init__(self, now: float) -> None:
        self.busy_at = now
        """When the stream last had something to do, in monotonic seconds."""
        self.look_at = 0.0
        """When the store is read next though nothing happens."""
        self.target = ""
        """The membership to which the stream moves; empty if the claim is released."""
        self.target_knows = False
        """True if the target knows that the key is reserved."""
        self.putting_back = False
        """True while messages go back to the queue."""

    @property
    def text(self) -> str:
        """The reason for which a stream that moves still waits."""
        return f"its move to {self.target}" if self.target else "its release"

    def plan_move(self, now: float) -> Transfer | Release | None:
        """Take the next step of a move; return the last one. A move must not count as a start of the head,
        even if that gave up its turn. The next owner shall not hand over again what targets have taken."""
        runs, blame, effects = self.runs, self.runs.blame, self.runs.effects
        inbox, backlog = runs.inbox, runs.inbox.backlog
        if inbox.doubts.covered:
            return None  # the read of the store, which is under way, comes first
        if blame.marked:
            blame.suspect = ""
        if blame.marked or effects.has_taken or effects.has_refused:
            runs.commits.compose(now, runs.mark_next())
            return None
        if backlog.is_pending or self.putting_back:
            return None  # its answer comes
        if backlog.is_reserved and (gone := inbox.put_back(now)):
            self.putting_back = True
            runs.agenda.commands.append(PutBack(gone))
            return None
        return Transfer(self.target) if self.target else Release()

    def plan_idle(self, now: float) -> Release | None:
        """Return the release of a stream that has nothing to do. Otherwise have the store read from time to
        time while messages wait for others."""
        runs = self.runs
        inbox, agenda = runs.inbox, runs.agenda
        if inbox.doubts.covered:
            return None  # the read of the store, which is under way, comes first
        if inbox.held or inbox.backlog.is_used:
            if agenda.wake_at is None or self._waits_for_others:
                if now >= self.look_at:
                    self.look_at = now + LOOK_S
                    inbox.look()
                agenda.wake(self.look_at)
        elif not agenda.settling:
            step = runs.commits.before_release(now, self.busy_at)
            if step == "record":
                runs.commits.compose(now, runs.mark_next(), resting=True)
            elif step == "release":
                return Release()
        return None

    @property
    def _waits_for_others(self) -> bool:
        """True if held messages may wait for what no clock brings: an operator, a model, or a target."""
        runs = self.runs
        holds = runs.rules.order.on_gap == "hold"
        return bool(runs.commits.parked or runs.obstacle or runs.effects.is_full or holds)
