"""The parts of an owner, made one by one for their tests."""

from typing import Any

from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life, Place
from holdfast.rules.streams.backlog import Backlog
from holdfast.rules.streams.commands import Agenda, Command
from holdfast.rules.streams.commit_plan import CommitPlan
from holdfast.rules.streams.inbox import Inbox
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.owner import Rest
from holdfast.rules.streams.restarts import Restarts
from holdfast.rules.streams.run_plan import Blame, RunPlan
from holdfast.rules.streams.sequencer import Rules, Sequencer

KEY = "cameras/1"


def held(seq: int, *, run: int = 0, life: Life = Life.RECEIVED) -> Held:
    """A message of the queue."""
    return Held(Place(run, seq), b"", {}, [Receipt(f"r{seq}", 100.0)], life=life)


class Parts:
    """All parts of one opening from a checkpoint on, without the owner that calls them."""

    def __init__(
        self, checkpoint: dict[str, Any] | None = None, order: dict[str, Any] | None = None, **rules: Any
    ) -> None:
        self.rules = OwnerOptions(Rules(**{"first": 0, **(order or {})}), **rules)
        self.checkpoint = Checkpoint(KEY, **{"epoch": 1, **(checkpoint or {})})
        self.agenda = Agenda()
        self.backlog = Backlog(by_key=self.rules.by_key)
        self.blame = Blame(self.rules.max_starts)
        self.restarts = Restarts(self.rules.order.restart_after_s, 0.0)
        self.seq = Sequencer(self.rules.order, self.checkpoint, backlog=self.backlog)
        self.commits = CommitPlan(self.rules, self.checkpoint, self.seq, self.agenda, self.restarts)
        self.inbox = Inbox(self.rules, self.agenda, self.backlog, self.restarts)
        self.inbox.seq, self.inbox.commits = self.seq, self.commits
        self.runs = RunPlan(self.rules, self.inbox, self.commits, self.blame)
        self.rest = Rest(0.0)
        self.rest.runs = self.runs

    def offer(self, *messages: Held) -> None:
        """Offer messages to the inbox, which has room."""
        for message in messages:
            assert self.inbox.offer(message, 0.0, is_open=True, is_moving=False)

    def out(self) -> list[Command]:
        """The commands since the last call."""
        commands, self.agenda.commands = self.agenda.commands, []
        return commands
