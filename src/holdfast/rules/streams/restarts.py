"""Decides, for messages without a run, when lower numbers begin another run."""

from __future__ import annotations

from holdfast.common.held import Held
from holdfast.common.message import NO_RUN, Place
from holdfast.rules.streams.ledger import RunLog
from holdfast.rules.streams.sequencer import Sequencer


class Restarts:
    """Counts the runs of one stream. ``after_s`` is how long the stream must have been quiet before a lower
    number begins a run; None if messages carry their runs."""

    __slots__ = ("after_s", "heard_at", "run")

    def __init__(self, after_s: float | None, now: float) -> None:
        self.after_s = after_s
        self.run = 0
        """The run that messages without one have now."""
        self.heard_at = now
        """The monotonic time of the last message that shows its run."""

    def opened(self, heard_at: float) -> None:
        """Count from the checkpoint on."""
        self.run = 0
        self.heard_at = heard_at

    def place(self, held: Held, seq: Sequencer, now: float, *, waits: bool) -> None:
        """Give a message without a run the run that the owner counts. A lower seq begins the next run if no
        message came for ``after_s`` and none ``waits``. A repeat of the last seq doesn't."""
        if self.after_s is None:
            return
        self.run = max(self.run, answered_run(seq.log))
        if held.place.run != NO_RUN:
            self.go_on_from(held, seq)
            return
        held.counted = True
        held.place = Place(self.run, held.place.seq)
        if seq.has_fallen(held.place) and self.is_quiet(now - self.after_s, waits=waits):
            self.run += 1
            seq.quiet_run = self.run
            held.place = Place(self.run, held.place.seq)

    def go_on_from(self, held: Held, seq: Sequencer) -> None:
        """Continue with a run that was counted before and that no commit has recorded yet."""
        if held.counted and held.place.run > self.run:
            self.run = seq.quiet_run = held.place.run

    def is_quiet(self, since: float, *, waits: bool) -> bool:
        """Return True if no message has come ``since``, and none waits."""
        return not waits and self.heard_at <= since

    def with_quiet(self, log: RunLog | None, now: float, *, has_message: bool) -> RunLog | None:
        """Return the log as it is stored. A commit without a message of the stream records how long none
        came, so that timers and effects don't count as messages when the stream is opened again."""
        if log is None:
            return None
        quiet_s = 0.0 if has_message else max(0.0, now - self.heard_at)
        return RunLog(log.run, log.start, log.seq, log.skips, quiet_s)


def come_back(held: Held, log: RunLog | None) -> None:
    """Undo what was decided about a message, so that it can be judged again. Only a new run that no commit
    has recorded is kept: a commit may have ended the quiet time that showed the new run."""
    held.come_back()
    if held.counted and held.place.run <= answered_run(log):
        held.place = Place(NO_RUN, held.place.seq)


def answered_run(log: RunLog | None) -> int:
    """Return the run that the last answered commit has reached."""
    return log.run if log is not None else 0
