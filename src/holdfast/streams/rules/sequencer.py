"""Decides, for one stream, which waiting message is next, and what a delivery is worth.

Two positions matter. The *answered* one is the log of the last accepted commit: deliveries are judged by
it, so that nothing is called done before the store has said so. The *cursor* is ahead of it by what was
appended since: it says which message is next. A waiting message that the cursor has passed stays in the
inbox until the next accepted commit, and is judged then.
"""

from __future__ import annotations

import bisect
import enum
from collections import deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.common.message import Place, SeqKind, Span
from holdfast.streams.rules.ledger import Checkpoint, RunLog

PAST_RUNS_MAX = 8
"""Older runs whose ranges are kept to tell duplicates from late messages."""

SKIP_MARK = "!"
"""Marks a remembered identity as skipped rather than handled."""


class Verdict(enum.Enum):
    """What a delivery is, by the last answered checkpoint."""

    NEW = "new"
    DONE = "done"
    SKIPPED = "skipped"
    LATE = "late"
    FAR = "far"


class Rules(msgspec.Struct, frozen=True):
    """How a stream orders its messages; see ``App.stream`` for the meaning of each."""

    kind: SeqKind = "dense"
    first: int | Literal["first", "lowest"] = "lowest"
    gap_timeout_s: float = 45.0
    on_gap: Literal["skip", "hold", "dead-letter"] = "skip"
    inbox_limit: int = 256
    window: int = 1024
    start_timeout_s: float | None = None
    max_jump: int | None = None
    restart_after_s: float | None = None


class Ready(msgspec.Struct, frozen=True):
    """These places are next, in this order."""

    places: tuple[Place, ...]


class Gap(msgspec.Struct, frozen=True):
    """The missing seqs of ``span`` were waited for long enough: pass over them."""

    run: int
    span: Span


class Wait(msgspec.Struct, frozen=True):
    """Nothing is ready; look again at monotonic time ``until`` (None: only when something arrives).
    ``gap`` is True while waiting messages stand behind a missing one."""

    until: float | None
    gap: bool = False


class Missing(msgspec.Struct, frozen=True):
    """What waiting places stand behind, in words, and until when that is waited for (monotonic; None: until
    it comes)."""

    text: str
    until: float | None


class Composed(msgspec.Struct, frozen=True):
    """The position that a commit carries."""

    log: RunLog | None
    past: tuple[RunLog, ...]
    identities: tuple[str, ...]


class Sequencer:
    """Order of one stream. Holds places, not messages. ``now`` is monotonic seconds throughout."""

    __slots__ = (
        "_after",
        "_begun",
        "_begun_before",
        "_blocked_at",
        "_blocked_until",
        "_fresh",
        "_log",
        "_passed",
        "_past",
        "_recent",
        "_window",
        "inbox",
        "quiet_run",
        "rules",
    )

    def __init__(self, rules: Rules, checkpoint: Checkpoint) -> None:
        self.rules = rules
        self.inbox: list[Place] = []
        self.quiet_run: int | None = None  # one that began after a quiet time: no straggler is waited for
        self._after: dict[Place, int] = {}  # the seq that must be passed before, where the queue told
        self._log = checkpoint.log  # answered
        self._past = checkpoint.past
        self._begun = checkpoint.log  # the cursor
        self._passed = checkpoint.past
        heads = (*checkpoint.suspects, *((checkpoint.started,) if checkpoint.started else ()))
        self._begun_before = tuple(Place.named(started.head) for started in heads)
        self._window: deque[str] = deque(checkpoint.recent)
        self._recent = set(self._window)
        self._fresh: list[str] = []  # identities appended and not yet composed
        self._blocked_at: float | None = None
        self._blocked_until: float | None = None

    @property
    def cursor(self) -> RunLog | None:
        """The current run as appended so far."""
        return self._begun

    @property
    def passed(self) -> bool:
        """True while places wait only for the cursor to be committed, to be judged by it."""
        return self._first_ahead() > 0

    def judge(self, place: Place) -> Verdict:
        """What a delivery of ``place`` is, unless the owner holds it already."""
        if self.rules.kind != "dense":
            if place.name in self._recent:
                return Verdict.DONE
            if SKIP_MARK + place.name in self._recent:
                return Verdict.SKIPPED
            if self.rules.kind == "absent":
                return Verdict.NEW
        if self._log is None or place.run > self._log.run:
            too_low = isinstance(self.rules.first, int) and place.seq < self.rules.first
            if too_low and self.rules.kind == "dense":
                return Verdict.LATE
            return Verdict.FAR if self.is_far(place) else Verdict.NEW
        if place.run == self._log.run and place.seq > self._log.seq:
            return Verdict.FAR if self.is_far(place) else Verdict.NEW
        if self.rules.kind == "dense":
            for log in (self._log, *self._past):
                if log.run == place.run and log.start <= place.seq <= log.seq:
                    return Verdict.SKIPPED if log.skipped(place.seq) else Verdict.DONE
        return Verdict.LATE

    @property
    def log(self) -> RunLog | None:
        """The current run as answered."""
        return self._log

    def stands_at(self, place: Place) -> int | None:
        """The last seq passed, by the answered checkpoint, of the run of ``place``; None where a run may
        begin at any number."""
        if self._log is not None and place.run == self._log.run:
            return self._log.seq
        first = self.rules.first
        fixed = isinstance(first, int) and self.rules.kind == "dense" and self.rules.start_timeout_s is None
        return first - 1 if isinstance(first, int) and fixed else None

    def is_far(self, place: Place) -> bool:
        """True if the seq lies so far ahead that it is taken for a mistake of the producer's, rather than
        have the stream skip all that lies between."""
        at = self.stands_at(place)
        return at is not None and self.rules.max_jump is not None and place.seq - at > self.rules.max_jump

    def has_fallen(self, place: Place) -> bool:
        """True if the seq is below where the stream stands."""
        return self._log is not None and place.run == self._log.run and place.seq < self._log.seq

    def offer(self, place: Place, after: int | None = None) -> Place | None:
        """Take a NEW place into the inbox, to run once the seq ``after`` was passed. Returns what there is no
        room for: nothing, an evicted higher place, or ``place`` itself. A lower place always gets room: the
        stream may wait for it."""
        rejected = None
        if len(self.inbox) >= self.rules.inbox_limit:
            rejected = self._overflow(place)
            self._after.pop(rejected, None)
        else:
            self._insert(place)
        if rejected != place and after is not None:
            self._after[place] = after
        return rejected

    def loosen(self, place: Place, after: int | None) -> None:
        """A later delivery of a waiting place told that less must be passed before it than was known."""
        if place in self._after:
            del self._after[place]
            if after is not None:
                self._after[place] = after

    def behind_gap(self) -> list[Place]:
        """Waiting places that a message before them, known to the queue, has not reached yet."""
        if not self._after:
            return []
        first = self._first_ahead()
        seq = self._begun.seq if self._begun else -1
        for index in range(first, len(self.inbox)):
            if not self._follows_on(index, seq):
                return self.inbox[index:]
            seq = self.inbox[index].seq
        return []

    def _follows_on(self, index: int, seq: int) -> bool:
        return self._after.get(self.inbox[index], -1) <= seq

    def _overflow(self, place: Place) -> Place:
        if self.rules.kind == "absent" or place >= self.inbox[-1]:
            return place
        highest = self.inbox.pop()
        self._insert(place)
        return highest

    def _insert(self, place: Place) -> None:
        if self.rules.kind == "absent":
            self.inbox.append(place)
        else:
            bisect.insort(self.inbox, place)

    def next(self, now: float, limit: int) -> Ready | Gap | Wait:
        """What to do next: run up to ``limit`` places, pass over a gap, or wait."""
        first = self._first_ahead()
        if first == len(self.inbox):
            self._blocked_at = None
            return Wait(None)
        head = self.inbox[first]
        if self.rules.kind == "absent":
            return self._ready(tuple(self.inbox[:limit]))
        if not self._follows_on(first, self._begun.seq if self._begun else -1):
            return Wait(None, gap=True)
        if self._begun is None or head.run > self._begun.run:
            start = self._start_of_run(head, now)
            if isinstance(start, Wait):
                return start
            self._begin(head.run, start)
        assert self._begun is not None
        if self.rules.kind == "increasing" or head.seq == self._begun.seq + 1:
            last = first + 1
            while last < len(self.inbox) and last - first < limit and self._follows(last):
                last += 1
            return self._ready(tuple(self.inbox[first:last]))
        if self.rules.on_gap == "hold":
            return Wait(None, gap=True)
        if wait := self._patience(now, self.rules.gap_timeout_s):
            return wait
        self._blocked_at = None
        return Gap(head.run, Span(self._begun.seq + 1, head.seq - 1))

    def missing(self) -> Missing | None:
        """What the next place waits for, as of the last ``next``; None if it waits for nothing."""
        first = self._first_ahead()
        if first == len(self.inbox):
            return None
        head, log = self.inbox[first], self._begun
        until = self._blocked_until if self._blocked_at is not None else None
        if not self._follows_on(first, log.seq if log else -1):
            return Missing(f"a message before seq {head.seq} that its queue has yet to deliver", None)
        if until is not None and (log is None or head.run > log.run):
            return Missing(
                f"the start of run {head.run}, of which seq {head.seq} is the lowest so far", until
            )
        if self.rules.kind == "dense" and log is not None and head.run == log.run and head.seq > log.seq + 1:
            span = f"seq {log.seq + 1}" + (f" to {head.seq - 1}" if head.seq > log.seq + 2 else "")
            return Missing(f"{span} of run {log.run}", until)
        return None

    def _follows(self, index: int) -> bool:
        before, place = self.inbox[index - 1], self.inbox[index]
        if place.run != before.run:
            return False
        if self.rules.kind == "increasing":
            return self._follows_on(index, before.seq)
        return place.seq == before.seq + 1

    def _first_ahead(self) -> int:
        if self.rules.kind == "absent" or self._begun is None:
            return 0
        return bisect.bisect_right(self.inbox, Place(self._begun.run, self._begun.seq))

    def _start_of_run(self, head: Place, now: float) -> int | Wait:
        """Where the run of ``head`` starts, or the wait until that is known."""
        first, start_timeout_s = self.rules.first, self.rules.start_timeout_s
        given = first if isinstance(first, int) and self.rules.kind == "dense" else None
        timeout_s = self.rules.gap_timeout_s
        if self._begun is None or head.run == self.quiet_run:  # else the old run may go on
            if first == "first" or self.rules.kind == "increasing":
                return head.seq
            if given is not None and (start_timeout_s is None or head.seq == given):
                return given
            timeout_s = start_timeout_s or timeout_s
        if not self._was_begun(head) and (wait := self._patience(now, timeout_s)):
            return wait
        return head.seq if given is None or start_timeout_s is not None else given

    def _was_begun(self, head: Place) -> bool:
        """True if an earlier opening has begun this place or a later one of its run: where the run starts was
        waited for then, and need not be again."""
        return any(head.run == place.run and head.seq <= place.seq for place in self._begun_before)

    def _patience(self, now: float, timeout_s: float) -> Wait | None:
        """The wait for what is missing, which begins when it is first asked for; None once it has lasted."""
        if self._blocked_at is None:
            self._blocked_at = now
        until = self._blocked_until = self._blocked_at + timeout_s
        return Wait(until, gap=True) if now < until else None

    def _ready(self, places: tuple[Place, ...]) -> Ready:
        self._blocked_at = None
        return Ready(places)

    def _begin(self, run: int, start: int) -> None:
        if self._begun is not None:
            self._passed = (self._begun, *self._passed)[:PAST_RUNS_MAX]
        self._begun = RunLog(run, start, start - 1)
        self._blocked_at = None

    def take(self, places: tuple[Place, ...]) -> None:
        """Remove places from the inbox: they run."""
        for place in places:
            self._after.pop(place, None)
        gone = set(places)
        self.inbox = [place for place in self.inbox if place not in gone]

    def put_back(self, places: tuple[Place, ...]) -> None:
        """Places that didn't run after all are next again, before all others."""
        if self.rules.kind == "absent":
            self.inbox = [*places, *self.inbox]
        else:
            for place in places:
                bisect.insort(self.inbox, place)

    def done(self, place: Place) -> None:
        """``place`` was handled: the cursor passes it."""
        self._advance(place, place.name)

    def skip(self, place: Place) -> None:
        """``place`` is passed over without result: its tries are spent."""
        self._advance(place, SKIP_MARK + place.name)
        if self.rules.kind == "dense":
            self._record_skip(Span(place.seq, place.seq))

    def pass_over(self, span: Span) -> None:
        """The cursor passes seqs that never came (or that an operator gave up)."""
        assert self._begun is not None
        self._begun = msgspec.structs.replace(self._begun, seq=span.last)
        self._record_skip(span)

    def _advance(self, place: Place, name: str) -> None:
        log = self._begun or RunLog(0, 0, 0)
        seq = log.seq + 1 if self.rules.kind == "absent" else place.seq
        self._begun = RunLog(log.run, log.start, seq, log.skips)
        self._blocked_at = None
        if self.rules.kind != "dense":
            self._fresh.append(name)

    def _record_skip(self, span: Span) -> None:
        assert self._begun is not None
        skips = self._begun.skips
        if skips and skips[-1].last + 1 == span.first:
            skips = (*skips[:-1], Span(skips[-1].first, span.last))
        else:
            skips = (*skips, span)
        self._begun = msgspec.structs.replace(self._begun, skips=skips)

    def revert(self, places: Iterable[Place]) -> None:
        """What was appended since the answered commit is undone: ``places``, in their order, wait again
        before all others."""
        self._begun, self._passed, self._fresh = self._log, self._past, []
        self._blocked_at = None
        waiting = set(self.inbox)
        self.put_back(tuple(place for place in places if place not in waiting))

    def compose(self) -> Composed:
        """The position of everything appended so far, for the next commit."""
        fresh, self._fresh = tuple(self._fresh), []
        return Composed(self._begun, self._passed, fresh)

    def answer(self, composed: Composed) -> list[tuple[Place, Verdict]]:
        """The commit that carried ``composed`` was accepted. Judges the inbox again: returns the places
        that no longer wait, removed, each with what it is now."""
        self._log, self._past = composed.log, composed.past
        self._remember(composed.identities)
        verdicts = [(place, self.judge(place)) for place in self.inbox]
        settled: list[tuple[Place, Verdict]] = [
            (place, verdict) for place, verdict in verdicts if verdict is not Verdict.NEW
        ]
        if settled:
            self.inbox = [place for place, verdict in verdicts if verdict is Verdict.NEW]
            for place, _ in settled:
                self._after.pop(place, None)
        return settled

    def _remember(self, names: tuple[str, ...]) -> None:
        self._window.extend(names)
        self._recent.update(names)
        while len(self._window) > self.rules.window:
            self._recent.discard(self._window.popleft())
