"""Decides what the handler of a stream works at next, and what its failures cost.

The next head is a message, or the firing of a timer that is due; while both are ready they take turns. A
stream that uses models has them loaded first, before any start is counted. While a model doesn't load, the
stream waits unchanged, because no message is to blame.

Before a head's handler first runs in an opening, the head is marked at the store: by a ``Start``, which is
counted, or by the commit before (``starting``). The mark stays until a commit after which nothing runs, so
one mark covers a steady stream. An opening that finds a mark is cautious, because its predecessor died at
work. The messages that may have been begun under that mark run one at a time, each counted by its own name,
and one that was begun too often is skipped. Where messages have no order, every message that may have been
delivered before runs in this way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from holdfast.common.acts import Acts
from holdfast.common.held import Held
from holdfast.common.message import TIMER_NAME, TIMER_RUN, Life, Place
from holdfast.rules.streams.commands import LoadModels, Run, Start
from holdfast.rules.streams.commit_plan import BatchEntry, CommitPlan
from holdfast.rules.streams.inbox import Inbox
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.sequencer import Gap, Ready
from holdfast.rules.streams.wait_reason import WaitReason

RUN_LIMIT = 32
"""The most messages in one call of a slot, where each is to be committed soon anyway."""

ALONE_OPENINGS = 2
"""Openings that began a head without an end: from then on no other suspect runs beside it on its node."""

NOTHING = Place(TIMER_RUN, 0, "nothing")
"""The mark in place of a head that waits in its last turn: this opening doesn't count for the head then."""

_TIMER_MARK = f"{TIMER_NAME}:"

REACH = 4
"""The most calls of the slot that one mark covers: one whose commit's answer was lost, one in the batch, one
that made the batch larger, and one in the slot. The message that killed an opening is at most that far behind
the marked one."""


def run_max(rules: OwnerOptions) -> int:
    """Return the most messages in one call of a slot."""
    return max(RUN_LIMIT, rules.checkpoint_every)


class Blame:
    """The marks and counts of one opening. ``max_starts`` is how many openings may end while the handler of a
    head runs. ``survived`` counts, by head, the openings that began it and ended without the node's death.
    ``is_unordered``: messages have no order."""

    __slots__ = (
        "begun",
        "cautious",
        "counted",
        "found_mark",
        "is_unordered",
        "marked",
        "max_starts",
        "starting",
        "survived",
        "suspect",
    )

    def __init__(
        self, max_starts: int, survived: Mapping[str, int] | None = None, *, is_unordered: bool = False
    ) -> None:
        self.max_starts = max_starts
        self.is_unordered = is_unordered
        self.survived = Counter(survived or {})
        self.starting: tuple[Place, str] | None = None
        """The head whose start isn't answered yet, and its name."""
        self.marked = ""
        """The head that the store marks."""
        self.counted: Place | None = None
        """The place of ``marked``, if this opening was counted for it."""
        self.suspect = ""
        """A head whose mark this opening has found, or that gave up its turn: it is counted again first."""
        self.found_mark = False
        self.cautious = 0
        """The number of further messages that run one at a time."""
        self.begun: dict[str, int] = {}
        """By head: the number of openings that it may have ended."""

    def opened(self, checkpoint: Checkpoint, reach: int) -> None:
        """Take over what a checkpoint says. A mark covers at most ``reach`` messages."""
        begun = {head.head: head.openings for head in checkpoint.suspects}
        if checkpoint.started is not None:
            self.found_mark, self.suspect = True, checkpoint.started.head
            self.cautious = reach
            begun[checkpoint.started.head] = checkpoint.started.openings
        self.survived = Counter({head: self.survived[head] for head in begun})
        self.begun = {head: openings - self.survived[head] for head, openings in begun.items()}

    def is_suspect(self, held: Held) -> bool:
        """Return True if the message may have killed a slot or a node."""
        if held.suspect or self.cautious > 0 or (self.begun and held.place.name in self.begun):
            return True
        return self.found_mark and self.is_unordered and held.may_be_known

    def is_last(self, head: str) -> bool:
        """Return True if the head is passed over as poison should this opening end with it too."""
        return 0 < self.begun.get(head, 0) == self.max_starts - 1

    def is_marked(self, head: Held, in_flight: str | None, *, suspect: bool) -> bool:
        """Return True if the head may run under the mark that stands. ``in_flight`` is the mark of the commit
        under way; None without one. ``suspect``: the head is one."""
        if suspect:
            return self.counted == head.place
        marks = (self.marked,) if in_flight is None else (self.marked, in_flight)
        if head.place.run == TIMER_RUN:  # a message that waits for its next try must not answer for it
            return all(mark == head.place.name for mark in marks)
        return "" not in marks and not any(mark.startswith(_TIMER_MARK) for mark in marks)

    def start(self, place: Place, name: str) -> Start:
        """Return the command that counts this opening for a head. ``NOTHING`` runs no handler, so it waits
        for no other suspect."""
        self.starting = place, name
        if place == NOTHING or not self.begun:
            return Start(name)
        last = self.is_last(name)
        return Start(name, alone=last or self.begun.get(name, 0) >= ALONE_OPENINGS, last=last)

    def started(self, openings: int) -> tuple[Place, int]:
        """Note that the store counts ``openings`` of the head. Return the head, and how many of them may end
        by it."""
        assert self.starting is not None
        (place, name), self.starting = self.starting, None
        self.marked, self.counted, self.suspect = name, place, ""
        return place, openings - self.survived.get(name, 0)

    def committed(self, head: str) -> None:
        """Note which head the store marks now. A mark that was found at the opening isn't ours yet."""
        if head != self.marked:
            self.counted = None
        if not head or head != self.suspect:
            self.marked = head

    def give_up_turn(self, head: Held) -> None:
        """Let another suspect run alone on the node while this one waits for a model. Its start is counted
        again after that, and its mark stays until then."""
        if self.counted == head.place and self.is_suspect(head) and not self.is_last(head.place.name):
            self.suspect, self.counted = head.place.name, None

    def waits_in_last_turn(self) -> bool:
        """Return True if the counted head, which doesn't run now, would be passed over if the node ended for
        another reason."""
        return self.counted not in (None, NOTHING) and self.is_last(self.marked)


class RunPlan:
    """The calls of the slot in one opening of a stream."""

    __slots__ = (
        "agenda",
        "blame",
        "commits",
        "effects",
        "equipped",
        "inbox",
        "limit",
        "loaded",
        "loading",
        "next_head",
        "obstacle",
        "rules",
        "running",
        "seq",
        "timer_first",
        "timers",
    )

    def __init__(self, rules: OwnerOptions, inbox: Inbox, commits: CommitPlan, blame: Blame) -> None:
        self.rules, self.inbox, self.commits, self.blame = rules, inbox, commits, blame
        self.agenda, self.seq = commits.agenda, commits.seq
        self.effects, self.timers = commits.effects, commits.timers
        self.loaded = False
        """True while the handler is open in the slot."""
        self.equipped = not rules.needs_models
        """True while the slot has the stream's models."""
        self.loading = False
        self.obstacle = ""
        """The reason why a model doesn't load, or the handler doesn't read the state; empty without one."""
        self.limit = run_max(rules)
        """The most messages in the next call of the slot."""
        self.running: tuple[Place, ...] = ()
        """The places of the running messages."""
        self.next_head = ""
        """The head that runs next, if it needs no start of its own."""
        self.timer_first = False
        """True if a timer is due its turn."""

    # -- what is next ---------------------------------------------------------------------------------------

    def plan(self, now: float, *, may_begin: bool) -> None:
        """Plan the next call of the slot, which has none. ``may_begin`` is False while nothing may run."""
        self.next_head = ""
        if may_begin and not self.commits.parked and not self.obstacle:
            self._plan_next(now)
        if self.blame.begun and self._waits_in_last_turn():
            self._start(NOTHING, NOTHING.name, now)

    def _waits_in_last_turn(self) -> bool:
        """Return True if the counted head would be blamed if the node ended for another reason. A head that
        a commit covers is looked at again after the answer."""
        commits, blame = self.commits, self.blame
        is_idle = not (
            self.running or commits.batch or commits.commit is not None or blame.starting is not None
        )
        return is_idle and blame.waits_in_last_turn()

    def _start(self, place: Place, name: str, now: float) -> None:
        self.commits.asked_at = now
        self.agenda.commands.append(self.blame.start(place, name))

    def _append(self, entry: BatchEntry, now: float) -> None:
        """Append the entry of a head that was handled or skipped."""
        self.blame.cautious = max(0, self.blame.cautious - 1)
        self.commits.append(entry, now)

    def _plan_next(self, now: float) -> None:
        timers = self.timers
        if timers.standing or timers.firing is not None:
            head = self._next_message_or_timer(now)
        else:
            head = self._next_message(now)
        if head is None:
            return
        places, held = head
        if not self.equipped:
            self.blame.give_up_turn(held)
            self._load_models()
            return
        suspect, commit = self.blame.is_suspect(held), self.commits.commit
        waits = now < held.retry_at
        is_full = commit is not None and (suspect or len(self.commits.batch) >= self.limit)
        in_flight = None if commit is None else commit.starting
        if not (waits or is_full) and self.blame.is_marked(held, in_flight, suspect=suspect):
            self._run(places if len(places) == 1 else self._together(places))
            return
        name = held.place.name
        if not suspect or self.blame.counted == held.place:
            self.next_head = name
        if waits:
            self.agenda.wake(held.retry_at)
        elif commit is None and (not self.commits.batch or name == self.blame.suspect):
            self._start(held.place, name, now)

    def _next_message_or_timer(self, now: float) -> tuple[tuple[Place, ...], Held] | None:
        """Return the places of the next messages, or of the timer that is due. While both are ready they take
        turns; while a message waits for its next try, timers go on."""
        fired = self._fired(now)
        if fired is not None and self.timer_first:
            return (fired.place,), fired
        message = self._next_message(now)
        if fired is None or (message is not None and now >= message[1].retry_at):
            return message
        return (fired.place,), fired

    def _fired(self, now: float) -> Held | None:
        """Return the firing that may begin now, after skipping one that has no tries left."""
        fired = self.timers.head(now, self.agenda.wall_ahead_s)
        if fired is None:
            return None
        if not isinstance(fired, Held):
            self.agenda.wake(fired)
        elif not fired.spent:
            return fired
        elif self.rules.on_failure == "park":
            self.commits.park(f"{fired.place.name} failed: {fired.error}", now)
        else:
            self._append(BatchEntry("skip", fired, reason=fired.error), now)
        return None

    def _next_message(self, now: float) -> tuple[tuple[Place, ...], Held] | None:
        """Return the places to run next, after skipping gaps and messages that have no tries left."""
        while self.seq.inbox:
            step = self.seq.next(now, self.limit)
            if isinstance(step, Gap):
                self.seq.pass_over(step.span)
                entry = BatchEntry("gap", reason="never came", run=step.run, span=step.span)
                self.commits.append(entry, now)
            elif isinstance(step, Ready):
                head = self.inbox.held[step.places[0]]
                if not head.spent:
                    return step.places, head
                if self.rules.on_failure == "park":
                    self.commits.park(f"{head.place.name} failed: {head.error}", now)
                    return None
                self.seq.take((head.place,))
                self.seq.skip(head.place)
                self._append(BatchEntry("skip", head, reason=head.error), now)
            else:
                if step.until is not None:
                    self.agenda.wake(step.until)
                break
        return None

    def _together(self, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """Return the next places for one call of the slot: a suspect runs alone."""
        for count, place in enumerate(places):
            if self.blame.is_suspect(self.inbox.held[place]):
                return places[: max(1, count)]
        return places

    def _run(self, places: tuple[Place, ...]) -> None:
        self.running = places
        self.timer_first = places[0].run != TIMER_RUN
        if self.timer_first:
            self.seq.take(places)
        messages = tuple(map(self.find, places))
        for held in messages:
            held.become(Life.RUNNING)
        commits = self.commits
        run = Run(messages, not self.loaded, commits.state, commits.state_version, len(places))
        self.agenda.commands.append(run)
        self.loaded = True

    def find(self, place: Place) -> Held:
        """Return the message or the firing that has this place."""
        return self.timers.firings[place] if place.run == TIMER_RUN else self.inbox.held[place]

    def holds(self, place: Place) -> bool:
        """Return True if a message or a firing that isn't finished has this place."""
        return place in (self.timers.firings if place.run == TIMER_RUN else self.inbox.held)

    # -- starts ---------------------------------------------------------------------------------------------

    def started(self, openings: int) -> None:
        """Note that the store counts ``openings`` of the head. A head that was begun too often is skipped."""
        place, openings = self.blame.started(openings)
        if openings > self.rules.max_starts and self.holds(place):
            held = self.find(place)
            held.error = f"poison: {openings - 1} openings ended while its handler ran (max_starts)"
            held.spent = True

    @property
    def at_risk(self) -> str:
        """The head that is blamed if the node dies now, or ""."""
        starting, counted = self.blame.starting, self.blame.counted
        if starting is not None and starting[0] != NOTHING:
            return starting[1]
        return self.blame.marked if counted is not None and self.holds(counted) else ""

    def outlived(self) -> None:
        """Note that this opening ends although its node lives."""
        counted = self.blame.counted
        if counted is not None and self.holds(counted):
            self.blame.survived[self.blame.marked] += 1

    # -- models ---------------------------------------------------------------------------------------------

    def _load_models(self) -> None:
        if not self.loading:
            self.loading = True
            self.agenda.commands.append(LoadModels())

    def models_loaded(self) -> None:
        """Note that the slot has the models."""
        self.loading, self.equipped = False, True

    def models_failed(self, obstacle: str, handled: int) -> None:
        """Note that a model doesn't load here, or that the handler is older than the state. That costs no
        message a try. After a run, its first ``handled`` messages run again before the one that needed the
        model."""
        places = self._stopped()
        self.loading = self.loaded = False
        self.equipped = not self.rules.needs_models
        self.limit = handled or run_max(self.rules)
        if not handled:
            self.obstacle = obstacle
            for place in places[:1]:
                self.blame.give_up_turn(self.find(place))

    def unloaded(self) -> None:
        """Note that the slot has died."""
        self.loaded = False
        self.equipped = not self.rules.needs_models

    # -- results --------------------------------------------------------------------------------------------

    def ran(
        self,
        results: Sequence[bytes | None],
        state: bytes | None,
        version: int,
        acts: Sequence[Acts | None],
        now: float,
    ) -> None:
        """Note the results of the first messages that ran, and the snapshot after them. The rest waits."""
        if error := self._excess(state, acts):
            self.loaded = False
            self.too_large(list(map(self.find, self._stopped()[: len(results)])), error, now)
            return
        places, self.running = self.running, ()
        self.limit = run_max(self.rules)
        for place, result, asked in zip_longest(places[: len(results)], results, acts):
            if place.run != TIMER_RUN:
                self.seq.done(place)
            self._append(BatchEntry("done", self.find(place), result, acts=asked), now)
        if len(places) > len(results):
            self._put_back(places[len(results) :])
        commits = self.commits
        commits.state, commits.state_version, commits.dirty = state, version, True

    def _excess(self, state: bytes | None, acts: Sequence[Acts | None]) -> str:
        """Return why a snapshot, or what the handler asked for, is too large; empty if it isn't."""
        if state is not None and len(state) > self.rules.max_state_bytes:
            return f"the snapshot has {len(state)} bytes, over max_state_bytes = {self.rules.max_state_bytes}"
        changes = [change for some in acts if some is not None for change in some.timers] if acts else ()
        if changes and (count := self.timers.would_be(changes)) > self.rules.max_timers:
            limit = self.rules.max_timers
            return f"the stream would have {count} timers; it can have {limit} (max_timers)"
        return ""

    def failed(self, handled: int, error: str, detail: str, permanent: bool, now: float) -> None:
        """Note that a message has failed, after ``handled`` others, which run again up to a snapshot."""
        places = self._stopped()
        self.loaded = False
        self.limit = handled or run_max(self.rules)
        self._fail(self.find(places[handled]), error, detail, permanent, now)

    def slot_died(self, guilty: bool, error: str, detail: str, now: float) -> None:
        """Note that the slot has died. ``guilty``: it died while it worked for this key."""
        places = self._stopped()
        self.loading = False
        self.unloaded()
        if guilty and len(places) == 1:
            self.limit = run_max(self.rules)
            self._fail(self.find(places[0]), error, detail, False, now)
        elif guilty:
            for place in places:
                self.find(place).suspect = True

    def rejected(self, reason: str, now: float) -> None:
        """Note that the handler doesn't accept the state: the stream parks, and nothing is lost."""
        self._stopped()
        self.loaded = False
        self.commits.park(reason, now)

    def too_large(self, messages: Sequence[Held], error: str, now: float) -> None:
        """Note that the results or the state of these messages are too large to store. A single message
        spends a try. Any of several may have caused it, so each runs alone next."""
        self.limit = run_max(self.rules)
        if len(messages) == 1:
            self._fail(messages[0], error, "", False, now)
        else:
            for held in messages:
                held.suspect = True

    def _stopped(self) -> tuple[Place, ...]:
        """Have all that ran wait again, and return it."""
        places, self.running = self.running, ()
        self._put_back(places)
        return places

    def _put_back(self, places: tuple[Place, ...]) -> None:
        for place in places:
            self.find(place).become(Life.WAITING)
        self.seq.put_back(tuple(place for place in places if place.run != TIMER_RUN))

    def _fail(self, held: Held, error: str, detail: str, permanent: bool, now: float) -> None:
        held.tries += 1
        held.error, held.detail = error, detail
        held.spent = permanent or held.tries >= self.rules.max_tries
        if not held.spent:
            held.retry_at = now + self.rules.backoff.delay_s(held.tries, 0.5)

    def revert(self) -> None:
        """Go back to the answered checkpoint, in the same opening: the commit in flight was refused."""
        running = [self.find(place) for place in self.running]
        self.running = ()
        self.commits.revert(running)
        self.loaded = self.loading = False
        self.next_head = ""

    # -- reports --------------------------------------------------------------------------------------------

    @property
    def is_gapped(self) -> bool:
        """True while the messages wait behind a missing one, or behind effects that no target takes."""
        return bool(self.seq.inbox) and not self.running and (not self.next_head or self.effects.is_full)

    @property
    def misses(self) -> bool:
        """True while messages wait for one that isn't among them."""
        runs = bool(self.running) and self.running[0].run != TIMER_RUN
        return bool(self.seq.inbox) and not runs and self.seq.missing() is not None

    def wait_reason(self, *, is_held_back: bool) -> WaitReason | None:
        """Return what the next run waits for; None if it waits for nothing. ``is_held_back``: too much waits
        for the stream's archive."""
        if self.obstacle:
            return WaitReason("model", self.obstacle)
        if self.loading:
            return WaitReason("model", "its models, which are being loaded")
        if self.commits.commit is not None or self.blame.starting is not None:
            text = "the state store, which has not answered yet"
            return WaitReason("store", text, since=self.commits.asked_at)
        if is_held_back:
            return WaitReason("archive", "its archive, which has yet to take what is committed")
        if self.effects.is_full:
            pending = self.effects.report()
            assert pending is not None
            text = f"targets that take none of its {pending.count} effects, such as {pending.target}"
            text += f": {pending.error}" if pending.error else ""
            return WaitReason("effects", text)
        if (missing := self.seq.missing()) is not None:
            return WaitReason("gap", missing.text, missing.until, missing.since)
        for held in self.inbox.held.values():
            if held.tries and held.place.name == self.next_head:
                text = f"the next try of {held.place.name}, which failed: {held.error}"
                return WaitReason("retry", text, held.retry_at)
        return None
