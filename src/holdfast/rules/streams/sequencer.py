"""Decides, for one stream, which waiting message is next, and whether a delivery is new, late or a duplicate.

There are two positions. The *answered* one is the log of the last accepted commit. Deliveries are judged by
it, so that no message counts as done before the store has confirmed it. The *cursor* is ahead of it by the
entries appended since, and decides which message is next. A waiting message that the cursor has passed stays
in the inbox until the next accepted commit, and is judged then.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.common.message import Place, SeqKind, Span
from holdfast.common.reception import Reception
from holdfast.rules.streams.backlog import Backlog
from holdfast.rules.streams.ledger import Checkpoint, RunLog

PAST_RUNS_MAX = 8
"""The most older runs that are remembered, to distinguish duplicates from late messages."""

SKIP_MARK = "!"
"""Marks a remembered identity as skipped rather than handled."""

ALWAYS = Reception()
"""The reception from a queue that never falls silent."""

SILENT_LOOK_S = 1.0
"""The least seconds between two looks at the wait for a missing message while the node receives nothing."""


class Verdict(enum.Enum):
    """The verdict on a delivery, by the last answered checkpoint."""

    NEW = "new"
    DONE = "done"
    SKIPPED = "skipped"
    LATE = "late"
    FAR = "far"


class Rules(msgspec.Struct, frozen=True):
    """The settings by which a stream orders its messages; ``App.stream`` describes each."""

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
    """The places that are next, in order."""

    places: tuple[Place, ...]


class Gap(msgspec.Struct, frozen=True):
    """The missing seqs of ``span`` didn't come within the gap timeout: skip them."""

    run: int
    span: Span


class Wait(msgspec.Struct, frozen=True):
    """Nothing is ready. Ask again at monotonic time ``until``; None: only when a message arrives. ``gap`` is
    True while messages wait behind a missing one."""

    until: float | None
    gap: bool = False


IDLE = Wait(None)
"""The answer of ``next`` while no message waits."""


class Missing(msgspec.Struct, frozen=True):
    """A description of what the waiting places wait for, until when (monotonic seconds; None: until it comes)
    and since when, if that is known."""

    text: str
    until: float | None
    since: float | None = None


class Carried(msgspec.Struct, frozen=True):
    """The wait for a missing message that a stream brought along when it moved: for what, and since when
    (monotonic seconds)."""

    missing: str
    since: float


class Composed(msgspec.Struct, frozen=True):
    """The position that a commit carries."""

    log: RunLog | None
    past: tuple[RunLog, ...]
    identities: tuple[str, ...]


class Sequencer:
    """The order of one stream. It holds places, not messages. ``now`` is always monotonic seconds."""

    __slots__ = (
        "_after",
        "_backlog",
        "_begun",
        "_begun_before",
        "_blocked_at",
        "_blocked_until",
        "_carried",
        "_fresh",
        "_missing",
        "_passed",
        "_recent",
        "_since",
        "_stood_at",
        "_turns",
        "_window",
        "inbox",
        "log",
        "past",
        "quiet_run",
        "reception",
        "rules",
    )

    def __init__(
        self,
        rules: Rules,
        checkpoint: Checkpoint,
        reception: Reception = ALWAYS,
        backlog: Backlog | None = None,
        carried: Carried | None = None,
    ) -> None:
        self.rules = rules
        self.reception = reception
        self._backlog = backlog or Backlog()
        self._carried = carried
        self.inbox: list[Place] = []
        self.quiet_run: int | None = None  # a run that began after a quiet time: no older message is awaited
        self._turns: dict[Place, int] = {}  # of the inbox, where messages have no seqs
        self._after: dict[Place, int] = {}  # the seq that must be passed before, where the queue says so
        self.log = checkpoint.log
        """The current run as answered."""
        self.past = checkpoint.past
        self._begun = checkpoint.log  # the cursor
        self._passed = checkpoint.past
        heads = (*checkpoint.suspects, *((checkpoint.started,) if checkpoint.started else ()))
        self._begun_before = tuple(Place.named(started.head) for started in heads)
        # A list and a dictionary: empty, as with numbers they are, they take a tenth of a deque and a set.
        self._window = list(checkpoint.recent)
        self._recent = dict.fromkeys(self._window)
        self._fresh: list[str] = []  # identities appended and not yet composed
        self._blocked_at: float | None = None
        self._blocked_until: float | None = None
        self._missing = ""  # what the wait is for
        self._since = 0.0  # when it began, on whatever node
        self._stood_at: float | None = None  # since when the wait for a missing message stands still

    @property
    def cursor(self) -> RunLog | None:
        """The current run as appended so far."""
        return self._begun

    @property
    def passed(self) -> bool:
        """True while passed places wait for the next accepted commit, to be judged again."""
        return bool(self.inbox) and self._first_ahead() > 0

    def judge(self, place: Place) -> Verdict:
        """Return what a delivery of ``place`` is. Don't call it for places that the owner holds."""
        if self.rules.kind != "dense":
            if place.name in self._recent:
                return Verdict.DONE
            if SKIP_MARK + place.name in self._recent:
                return Verdict.SKIPPED
            if self.rules.kind == "absent":
                return Verdict.NEW
        if self.log is None or place.run > self.log.run:
            too_low = isinstance(self.rules.first, int) and place.seq < self.rules.first
            if too_low and self.rules.kind == "dense":
                return Verdict.LATE
            return Verdict.FAR if self.is_far(place) else Verdict.NEW
        if place.run == self.log.run and place.seq > self.log.seq:
            return Verdict.FAR if self.is_far(place) else Verdict.NEW
        if self.rules.kind == "dense":
            for log in (self.log, *self.past):
                if log.run == place.run and log.start <= place.seq <= log.seq:
                    return Verdict.SKIPPED if log.skipped(place.seq) else Verdict.DONE
        return Verdict.LATE

    def stands_at(self, place: Place) -> int | None:
        """Return the last seq that the answered checkpoint has passed in the run of ``place``; None if a run
        may begin at any number."""
        if self.log is not None and place.run == self.log.run:
            return self.log.seq
        first = self.rules.first
        fixed = isinstance(first, int) and self.rules.kind == "dense" and self.rules.start_timeout_s is None
        return first - 1 if isinstance(first, int) and fixed else None

    def is_far(self, place: Place) -> bool:
        """Return True if the seq is more than ``max_jump`` ahead. It is then taken for a mistake of the
        producer, so that the stream doesn't skip everything between."""
        at = self.stands_at(place)
        return at is not None and self.rules.max_jump is not None and place.seq - at > self.rules.max_jump

    def has_fallen(self, place: Place) -> bool:
        """Return True if the seq is below the last one passed in its run."""
        return self.log is not None and place.run == self.log.run and place.seq < self.log.seq

    def offer(self, place: Place, after: int | None = None, turn: int | None = None) -> Place | None:
        """Take a NEW place into the inbox, to run once the seq ``after`` was passed. If the inbox is full,
        return the place without room: an evicted higher one, or ``place`` itself. A lower place always gets
        room, because the stream may wait for it. Places without seqs are ordered by ``turn``, those without a
        turn as they came."""
        rejected = None
        if len(self.inbox) >= self.rules.inbox_limit:
            rejected = self.overflow(place, turn)
            self._after.pop(rejected, None)
            self._turns.pop(rejected, None)
        else:
            self._insert(place, turn)
        if after is None:
            if self._after:
                self._none_before(place)
        elif rejected != place:
            self._after[place] = after
        return rejected

    def loosen(self, place: Place, after: int | None) -> None:
        """Note that a later delivery of a waiting place needs only the seq ``after`` passed before it, or
        none."""
        if after is None:
            self._after.pop(place, None)
            self._none_before(place)
        elif place in self._after:
            self._after[place] = after

    def _none_before(self, place: Place) -> None:
        """Let no place before this one wait for a message of the queue: it delivers this one as the first, so
        it has none before it any more. The store may have lost their commits."""
        for earlier in [earlier for earlier in self._after if earlier < place]:
            if self._after[earlier] < place.seq:
                del self._after[earlier]

    def behind_gap(self) -> list[Place]:
        """Return the places that wait for a message which the queue has and hasn't delivered yet."""
        if not self._after:
            return []
        first = self._first_ahead()
        seq = self._begun.seq if self._begun else -1
        for index in range(first, len(self.inbox)):
            if not self.follows_on(index, seq):
                return self.inbox[index:]
            seq = self.inbox[index].seq
        return []

    def follows_on(self, index: int, seq: int) -> bool:
        """Return True if the place at ``index`` waits for no seq after ``seq``, as far as its queue says."""
        return self._after.get(self.inbox[index], -1) <= seq

    def overflow(self, place: Place, turn: int | None) -> Place:
        """Take a place into the full inbox. Return the one that finds no room: the highest."""
        if self.rules.kind == "absent":
            if turn is None or turn >= self._turns.get(self.inbox[-1], 0):
                return place
        elif place >= self.inbox[-1]:
            return place
        highest = self.inbox.pop()
        self._insert(place, turn)
        return highest

    def _insert(self, place: Place, turn: int | None) -> None:
        if self.rules.kind != "absent":
            bisect.insort(self.inbox, place)
            return
        last = self._turns.get(self.inbox[-1], 0) if self.inbox else 0
        self._turns[place] = turn = last if turn is None else turn
        if turn >= last:
            self.inbox.append(place)
        else:
            bisect.insort(self.inbox, place, key=self.turn_of)

    def turn_of(self, place: Place) -> int:
        """Return the turn of a place without a seq; one that was put back comes before all others."""
        return self._turns.get(place, 0)

    def next(self, now: float, limit: int) -> Ready | Gap | Wait:
        """Return what to do next: run up to ``limit`` places, skip a gap, or wait."""
        first = self._first_ahead() if self.inbox else 0
        if first == len(self.inbox):
            self._blocked_at = None
            return IDLE
        head = self.inbox[first]
        if self.rules.kind == "absent":
            return self._next_by_turn(now, limit)
        if not self.follows_on(first, self._begun.seq if self._begun else -1):
            return Wait(None, gap=True)
        if self._begun is None or head.run > self._begun.run:
            start = self._start_of_run(head, now)
            if isinstance(start, Wait):
                return start
            self._begin(head.run, start)
        assert self._begun is not None
        if self.rules.kind == "increasing" or head.seq == self._begun.seq + 1:
            return self._next_in_order(now, first, limit)
        if self.rules.on_gap == "hold":
            return Wait(None, gap=True)
        missing = Place(self._begun.run, self._begun.seq + 1).name
        if wait := self.wait_for_missing(now, self.rules.gap_timeout_s, head, missing):
            return wait
        self._blocked_at = None
        return Gap(head.run, Span(self._begun.seq + 1, head.seq - 1))

    def _next_in_order(self, now: float, first: int, limit: int) -> Ready | Wait:
        """Return the next places with a seq, from the index ``first`` on. Numbers with gaps wait for a lower
        one that was turned away, which would be late after them."""
        end = min(len(self.inbox), first + limit)
        if self.rules.kind == "increasing" and self._backlog.away:
            assert self._begun is not None
            awaited = self._backlog.awaited(now, (self._begun.run, self._begun.seq))
            if awaited is not None:
                end = min(end, bisect.bisect_left(self.inbox, Place(*awaited[0])))
                if end <= first:
                    return Wait(awaited[1], gap=True)
        last = first + 1
        while last < end and self._follows(last):
            last += 1
        return self._ready(tuple(self.inbox[first:last]))

    def _next_by_turn(self, now: float, limit: int) -> Ready | Wait:
        """Return the next places without seqs, up to the first message that was turned away."""
        if self._backlog.begins:
            return Wait(None, gap=True)
        awaited = self._backlog.awaited(now)
        if awaited is None:
            return self._ready(tuple(self.inbox[:limit]))
        (_, turn), until = awaited
        count = bisect.bisect_left(self.inbox, turn, key=self.turn_of)
        return self._ready(tuple(self.inbox[: min(count, limit)])) if count else Wait(until, gap=True)

    def missing(self) -> Missing | None:
        """Return what the next place waits for, as of the last ``next``; None if it waits for nothing."""
        first = self._first_ahead()
        if first == len(self.inbox):
            return None
        head, log = self.inbox[first], self._begun
        until = self._blocked_until if self._blocked_at is not None and self._stood_at is None else None
        if self.rules.kind != "dense" and self._is_blocked(head):
            return Missing("an earlier message, for which there was no room", None)
        if self.rules.kind == "absent":
            return None
        if not self.follows_on(first, log.seq if log else -1):
            return Missing(f"a message before seq {head.seq} that its queue has yet to deliver", None)
        if self._blocked_at is not None and (log is None or head.run > log.run):
            return Missing(
                f"the start of run {head.run}, of which seq {head.seq} is the lowest so far",
                until,
                self._since,
            )
        if self.rules.kind == "dense" and log is not None and head.run == log.run and head.seq > log.seq + 1:
            span = f"seq {log.seq + 1}" + (f" to {head.seq - 1}" if head.seq > log.seq + 2 else "")
            since = None if self._blocked_at is None else self._since
            return Missing(f"{span} of run {log.run}", until, since)
        return None

    def _is_blocked(self, head: Place) -> bool:
        """Return True if a message that was turned away must come before ``head``."""
        if self.rules.kind == "absent":
            return self._backlog.begins or self._backlog.is_awaited_before((0, self.turn_of(head)))
        return self._backlog.is_awaited_before((head.run, head.seq))

    def _follows(self, index: int) -> bool:
        before, place = self.inbox[index - 1], self.inbox[index]
        if place.run != before.run:
            return False
        if self.rules.kind == "increasing":
            return self.follows_on(index, before.seq)
        return place.seq == before.seq + 1

    def _first_ahead(self) -> int:
        if self.rules.kind == "absent" or self._begun is None:
            return 0
        return bisect.bisect_right(self.inbox, Place(self._begun.run, self._begun.seq))

    def _start_of_run(self, head: Place, now: float) -> int | Wait:
        """Return the first seq of the run of ``head``, or the wait until it is known."""
        first, start_timeout_s = self.rules.first, self.rules.start_timeout_s
        given = first if isinstance(first, int) and self.rules.kind == "dense" else None
        timeout_s = self.rules.gap_timeout_s
        if self._begun is None or head.run == self.quiet_run:  # else the old run may go on
            if first == "first" or self.rules.kind == "increasing":
                return head.seq
            if given is not None and (start_timeout_s is None or head.seq == given):
                return given
            timeout_s = start_timeout_s or timeout_s
        if not self.was_begun(head):
            wait = self.wait_for_missing(now, timeout_s, head, f"the start of run {head.run}")
            if wait is not None:
                return wait
        return head.seq if given is None or start_timeout_s is not None else given

    def was_begun(self, head: Place) -> bool:
        """Return True if this place or a later one of its run was begun before, by an earlier opening or
        before a revert. The start of the run was waited for then."""
        return any(head.run == place.run and head.seq <= place.seq for place in self._begun_before)

    def wait_for_missing(self, now: float, timeout_s: float, head: Place, missing: str) -> Wait | None:
        """Return the wait for what is missing before ``head``, which begins at the first call; None once it
        has lasted ``timeout_s``. The clock stands still while the node receives nothing, and while the
        missing message may be one that had no room."""
        silent_s = self.reception.silent_s(now)
        if self._blocked_at is None:
            carried, self._carried = self._carried, None
            since = carried.since if carried is not None and carried.missing == missing else now
            self._since, self._blocked_at = since, since - silent_s
            self._missing, self._stood_at = "", None
        if self._missing != missing:
            self._missing = missing
            self._backlog.gap_began()
        if (wait := self._wait_for_backlog(now, head)) is not None:
            self._stood_at = now if self._stood_at is None else self._stood_at
            return wait
        if self._stood_at is not None:
            self._blocked_at += now - self._stood_at
            self._stood_at = None
        until = self._blocked_until = self._blocked_at + timeout_s + silent_s
        if now >= until:
            return None
        return Wait(max(until, now + SILENT_LOOK_S) if self.reception.is_silent(now) else until, gap=True)

    def _wait_for_backlog(self, now: float, head: Place) -> Wait | None:
        """Return the wait while a message before ``head`` may be one that had no room."""
        above = (self._begun.run, self._begun.seq) if self._begun is not None else None
        awaited = self._backlog.awaited(now, above)
        if awaited is not None and awaited[0] < (head.run, head.seq):
            return Wait(awaited[1], gap=True)
        return Wait(None, gap=True) if self._backlog.is_unread else None

    def waited(self, now: float) -> tuple[str, float] | None:
        """Return what is missing and for how many seconds the stream has waited for it, as far as that
        counts; None if it waits for nothing."""
        if self._blocked_at is None:
            return None
        at = now if self._stood_at is None else self._stood_at
        return self._missing, at - self._blocked_at - self.reception.silent_s(now)

    def wait_anew(self) -> None:
        """Let the wait for a missing message begin again."""
        self._blocked_at = None

    def _ready(self, places: tuple[Place, ...]) -> Ready:
        self._blocked_at = None
        return Ready(places)

    def _begin(self, run: int, start: int) -> None:
        if self._begun is not None:
            self._passed = (self._begun, *self._passed)[:PAST_RUNS_MAX]
        self._begun = RunLog(run, start, start - 1)
        self._blocked_at = None

    def take(self, places: tuple[Place, ...]) -> None:
        """Remove places from the inbox, because they run now."""
        for place in places:
            self._after.pop(place, None)
            self._turns.pop(place, None)
        gone = set(places)
        self.inbox = [place for place in self.inbox if place not in gone]
        if not self.inbox:
            self._blocked_at = None

    def put_back(self, places: tuple[Place, ...]) -> None:
        """Put places back that didn't run after all. They are next, before all others."""
        if self.rules.kind == "absent":
            self.inbox = [*places, *self.inbox]
        else:
            for place in places:
                bisect.insort(self.inbox, place)

    def done(self, place: Place) -> None:
        """Move the cursor past ``place``, which was handled."""
        self._advance(place)
        if self.rules.kind != "dense":
            self._fresh.append(place.name)

    def skip(self, place: Place) -> None:
        """Move the cursor past ``place``, which is skipped because it has no tries left."""
        self._advance(place)
        if self.rules.kind == "dense":
            self.pass_over(Span(place.seq, place.seq))
        else:
            self._fresh.append(SKIP_MARK + place.name)

    def pass_over(self, span: Span) -> None:
        """Move the cursor past seqs that never came, or that an operator skips."""
        assert self._begun is not None
        self._begun = self._begun.passing_over(span)

    def _advance(self, place: Place) -> None:
        log = self._begun or RunLog(0, 0, 0)
        seq = log.seq + 1 if self.rules.kind == "absent" else place.seq
        self._begun = RunLog(log.run, log.start, seq, log.skips)
        self._blocked_at = None

    def revert(self, places: Sequence[Place]) -> None:
        """Undo what was appended since the answered commit. ``places``, in their order, wait again before all
        others; there are none if only a timer has fired. The start of a run that they have begun isn't waited
        for again."""
        if places and not self.was_begun(last := max(places)):
            self._begun_before = (*self._begun_before, last)
        self._begun, self._passed, self._fresh = self.log, self.past, []
        self._blocked_at = None
        waiting = set(self.inbox)
        self.put_back(tuple(place for place in places if place not in waiting))

    def compose(self) -> Composed:
        """Return the position after everything appended so far, for the next commit."""
        fresh, self._fresh = tuple(self._fresh), []
        return Composed(self._begun, self._passed, fresh)

    def answer(self, composed: Composed) -> list[tuple[Place, Verdict]]:
        """Note that the commit with ``composed`` was accepted, and judge the inbox again. Places that no
        longer wait are removed and returned, each with its verdict."""
        before, self.log, self.past = self.log, composed.log, composed.past
        self.remember(composed.identities)
        doubtful = self.inbox
        if self.rules.kind != "absent" and before and self.log and before.run == self.log.run:
            # Whatever is ahead of the position is still new.
            doubtful = self.inbox[: bisect.bisect_right(self.inbox, Place(before.run, self.log.seq))]
        verdicts = [(place, self.judge(place)) for place in doubtful]
        settled: list[tuple[Place, Verdict]] = [
            (place, verdict) for place, verdict in verdicts if verdict is not Verdict.NEW
        ]
        if settled:
            still_new = [place for place, verdict in verdicts if verdict is Verdict.NEW]
            self.inbox = [*still_new, *self.inbox[len(doubtful) :]]
            if not self.inbox:
                self._blocked_at = None
            for place, _ in settled:
                self._after.pop(place, None)
                self._turns.pop(place, None)
        return settled

    def remember(self, names: tuple[str, ...]) -> None:
        """Remember the newest identities, as many as the window holds."""
        self._window.extend(names)
        self._recent.update(dict.fromkeys(names))
        over = max(0, len(self._window) - self.rules.window)
        for name in self._window[:over]:
            self._recent.pop(name, None)
        del self._window[:over]
