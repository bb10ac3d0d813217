"""The status of an owner, as its shell reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.common.effects import PendingReport
from holdfast.common.held import Held
from holdfast.rules.streams.agenda import Agenda
from holdfast.rules.streams.backlog import Backlog
from holdfast.rules.streams.blame import Blame
from holdfast.rules.streams.commit_plan import CommitPlan
from holdfast.rules.streams.inbox import Inbox
from holdfast.rules.streams.options import OwnerRules
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.rest import Rest
from holdfast.rules.streams.restarts import Restarts
from holdfast.rules.streams.run_plan import RunPlan
from holdfast.rules.streams.standstill import Standstill


class OwnerStatus:
    """The parts of an owner, and what a shell may ask of them. Nothing here changes anything but the
    clock."""

    __slots__ = (
        "_backlog",
        "_blame",
        "_commits",
        "_inbox",
        "_rest",
        "_restarts",
        "_runs",
        "agenda",
        "epoch",
        "generation",
        "is_held_back",
        "key",
        "phase",
        "rules",
        "suspended",
    )

    agenda: Agenda
    _backlog: Backlog
    _blame: Blame
    _commits: CommitPlan
    _inbox: Inbox
    _rest: Rest
    _restarts: Restarts
    _runs: RunPlan
    epoch: int
    generation: int
    is_held_back: bool
    key: str
    phase: OwnerPhase
    rules: OwnerRules
    suspended: bool

    @property
    def wake_at(self) -> float | None:
        """The time to call ``ticked``; None if only another event changes anything."""
        return self.agenda.wake_at

    @property
    def number(self) -> int:
        """The number of commits of the stream that are answered."""
        return self._commits.number

    @property
    def parked(self) -> str:
        """The reason for which the stream is parked; empty if it isn't."""
        return self._commits.parked

    @property
    def state(self) -> bytes | None:
        """The handler's newest state, which may not be committed yet."""
        return self._commits.state

    @property
    def state_version(self) -> int:
        """The version of the handler that made the state."""
        return self._commits.state_version

    @property
    def obstacle(self) -> str:
        """The reason for which the stream can't run on this node; empty if it can."""
        return self._runs.obstacle

    @property
    def waiting(self) -> int:
        """The number of messages held, in any state."""
        inbox = self._inbox
        return len(inbox.held) + len(inbox.unjudged) + len(inbox.doubts.covered)

    @property
    def gapped(self) -> bool:
        """True while the messages wait behind a missing one, or behind effects that no target takes."""
        return self._runs.is_gapped

    def leaves_behind(self, now: float) -> tuple[bool, tuple[str, float] | None]:
        """Return what the next owner must know if the stream moves: whether its key is reserved, and what it
        waits for and for how many seconds."""
        return self.is_reserved, self._commits.seq.waited(now)

    @property
    def waits_for_gap(self) -> bool:
        """True while the stream waits for a missing message, as long as the timeout allows."""
        return self._runs.misses

    @property
    def pending_effects(self) -> PendingReport | None:
        """The effects that no target has taken yet; None if there are none."""
        return self._commits.effects.report()

    @property
    def running(self) -> str:
        """The first message that its handler is called for; "" if it isn't called."""
        return self._runs.running[0].name if self._runs.running else ""

    @property
    def needs_slot(self) -> bool:
        """True while its slot is called, which may work at others first."""
        return bool(self._runs.running) or self._runs.loading

    def standstill(self) -> Standstill | None:
        """Return what the stream waits for; None while its handler works, or while there is nothing to do."""
        if self.parked:
            return Standstill("parked", f"parked: {self.parked}")
        if not self.waiting or self._runs.running:
            return None
        if self.suspended:
            return Standstill("membership", "its node's membership or claim was lost, and is looked into")
        if self.phase in (OwnerPhase.CLAIMED, OwnerPhase.OPENING):
            return Standstill("opening", "the state store or the coordinator, to open it")
        if self.phase is not OwnerPhase.OWNER:
            return Standstill("moving", self._rest.text)
        return self._runs.standstill(is_held_back=self.is_held_back)

    @property
    def leaving(self) -> bool:
        """True while the claim is being transferred or released, so that a change of the claim is
        expected."""
        return self.phase in (OwnerPhase.TRANSFERRING, OwnerPhase.RELEASING)

    @property
    def at_risk(self) -> str:
        """The head that is blamed if the node dies now, or "". It is at risk from its Start until the store
        has answered the commit that covers it, or that takes its mark away."""
        return self._runs.at_risk

    @property
    def is_reserved(self) -> bool:
        """True while the queue keeps for this owner what finds no room here."""
        return self._backlog.is_reserved

    @property
    def survived(self) -> Mapping[str, int]:
        """By head: how many openings of this node began it and ended without the node's death."""
        return +self._blame.survived

    def holding(self) -> Iterator[Held]:
        """Yield the messages whose deliveries must be extended. Left out are the ones that wait for a message
        which the queue hasn't delivered: it delivers that one only when it may deliver these again too."""
        return self._inbox.to_extend()
