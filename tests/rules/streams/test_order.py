"""The sequencer against a model of what order means, under random deliveries.

The machine drives a sequencer as an owner does: deliveries are judged and offered, ready places are taken
and handled, put back or skipped, gaps passed over, positions composed and answered late, and now and then
the stream is reopened from its last answered position. The model knows sets of places, no ranges.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.common.message import Place, SeqKind
from holdfast.rules.streams.ledger import Checkpoint, Commit, commit
from holdfast.rules.streams.sequencer import Composed, Gap, Ready, Rules, Sequencer, Verdict, Wait

GAP_S = 10.0
SEQ_MAX = 12
RUN_MAX = 2
STEPS = st.lists(st.integers(0, 999), min_size=6, max_size=24)


class Passed(msgspec.Struct):
    """What a commit, or the cursor, has passed: the model's whole memory."""

    handled: set[Place] = msgspec.field(default_factory=set)
    skipped: set[Place] = msgspec.field(default_factory=set)
    last: dict[int, int] = msgspec.field(default_factory=dict)  # by run
    names: list[Place] = msgspec.field(default_factory=list)  # in order, handled and skipped

    def copy(self) -> "Passed":
        return Passed(set(self.handled), set(self.skipped), dict(self.last), list(self.names))

    def passes(self, place: Place) -> bool:
        run = max(self.last, default=-1)
        return place.run < run or (place.run == run and place.seq <= self.last[run])


class Order(RuleBasedStateMachine):
    """One stream of one kind."""

    kind: SeqKind = "dense"

    @initialize(
        first=st.sampled_from([0, 2, "first", "lowest"]),
        on_gap=st.sampled_from(["skip", "hold", "dead-letter"]),
        inbox_limit=st.integers(1, 5),
        window=st.integers(1, 20),
    )
    def begin(self, first: Any, on_gap: Any, inbox_limit: int, window: int) -> None:
        self.rules_of_order = Rules(self.kind, first, GAP_S, on_gap, inbox_limit, window)
        self.now = 0.0
        self.store = Checkpoint("s/k", epoch=1)
        self.answered = Passed()
        self.history: list[Place] = []  # handled, as committed
        self.accepted: set[Place] = set()  # not yet settled or given back
        self.reopen()

    # -- the owner's part -----------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.sequencer = Sequencer(self.rules_of_order, self.store)
        self.cursor = self.answered.copy()
        self.flying: tuple[Composed, Passed, list[Place]] | None = None
        self.appended: list[Place] = []
        self.running: tuple[Place, ...] = ()
        self.blocked_at: float | None = None
        for place in sorted(self.accepted):
            self.accepted.discard(place)
            self.deliver(place)

    def expected(self, place: Place) -> Verdict:
        """The model's verdict."""
        model, rules = self.answered, self.rules_of_order
        known = self.kind == "dense" or place in model.names[-rules.window :]
        if place in model.handled and known:
            return Verdict.DONE
        if place in model.skipped and known:
            return Verdict.SKIPPED
        if self.kind == "absent":
            return Verdict.NEW
        if model.passes(place):
            return Verdict.LATE
        new_run = place.run > max(model.last, default=-1)
        if self.kind == "dense" and new_run and isinstance(rules.first, int) and place.seq < rules.first:
            return Verdict.LATE
        return Verdict.NEW

    def deliver(self, place: Place) -> None:
        if place in self.accepted:
            return  # the owner adds the receipt to the message it holds
        verdict = self.sequencer.judge(place)
        assert verdict is self.expected(place)
        if verdict is Verdict.NEW:
            full = len(self.sequencer.inbox) >= self.rules_of_order.inbox_limit
            highest = max(self.sequencer.inbox, default=place)
            rejected = self.sequencer.offer(place)
            self.accepted.add(place)
            assert (rejected is not None) == full
            if rejected is not None:
                expected = place if self.kind == "absent" else max(place, highest)
                assert rejected == expected
                self.accepted.discard(rejected)

    def decide(self) -> Ready | Gap | Wait:
        """The next step, checked against the model; the start of a run is taken over from it."""
        before = self.sequencer.cursor
        step = self.sequencer.next(self.now, 3)
        after = self.sequencer.cursor
        inbox = self.sequencer.inbox
        if after is not None and (before is None or before.run != after.run):
            self.begun(after.run, after.start)
        ahead = list(inbox) if self.kind == "absent" else [p for p in inbox if not self.cursor.passes(p)]
        match step:
            case Ready(places):
                self.blocked_at = None
                assert list(places) == ahead[: len(places)]
                assert 0 < len(places) <= 3
                if self.kind == "dense":
                    last = self.cursor.last[places[0].run]
                    assert [p.seq for p in places] == list(range(last + 1, last + 1 + len(places)))
                assert len({place.run for place in places}) == 1
            case Gap(run, span):
                assert self.kind == "dense"
                assert self.rules_of_order.on_gap != "hold"
                assert self.blocked_at is not None
                assert self.now >= self.blocked_at + GAP_S, "a gap is waited for"
                assert (run, span.first, span.last) == (run, self.cursor.last[run] + 1, ahead[0].seq - 1)
                assert run == ahead[0].run
            case Wait(until, gap):
                assert gap == bool(ahead), "who can go on doesn't wait"
                if until is not None:
                    self.blocked_at = self.now if self.blocked_at is None else self.blocked_at
                    assert until == self.blocked_at + GAP_S > self.now
                elif gap:
                    assert self.rules_of_order.on_gap == "hold"
                else:
                    self.blocked_at = None
        return step

    def begun(self, run: int, start: int) -> None:
        first, lowest = self.rules_of_order.first, min(p for p in self.sequencer.inbox if p.run == run)
        assert run not in self.cursor.last
        if self.kind == "dense" and isinstance(first, int):
            assert start == first
        else:
            assert start == lowest.seq
        if self.cursor.last or (first == "lowest" and self.kind == "dense"):
            assert self.blocked_at is not None
            assert self.now >= self.blocked_at + GAP_S, "a new run waits like a gap"
        self.blocked_at = None
        self.cursor.last[run] = start - 1

    def append(self, place: Place, into: set[Place]) -> None:
        for passed in (self.cursor.handled, self.cursor.skipped):
            passed.discard(place)  # without seqs, what the window forgot is new again
        into.add(place)
        self.cursor.names.append(place)
        if self.kind != "absent":
            self.cursor.last[place.run] = place.seq

    def step(self) -> bool:
        """One decision carried out; True if something was done."""
        step = self.decide()
        if isinstance(step, Gap):
            self.sequencer.pass_over(step.span)
            self.cursor.skipped |= {
                Place(step.run, seq) for seq in range(step.span.first, step.span.last + 1)
            }
            self.cursor.last[step.run] = step.span.last
            self.blocked_at = None
        elif isinstance(step, Ready):
            self.running = step.places
            self.sequencer.take(step.places)
        return not isinstance(step, Wait)

    def finish(self, count: int) -> None:
        done, rest = self.running[:count], self.running[count:]
        self.running = ()
        for place in done:
            assert place not in self.answered.handled or self.kind == "absent", "handled twice"
            self.sequencer.done(place)
            self.append(place, self.cursor.handled)
            self.appended.append(place)
        self.sequencer.put_back(rest)

    def send(self) -> None:
        self.flying = self.sequencer.compose(), self.cursor.copy(), self.appended
        self.appended = []

    def answer(self) -> None:
        assert self.flying is not None
        (composed, model, handled), self.flying = self.flying, None
        number = self.store.number + 1
        window = 0 if self.kind == "dense" else self.rules_of_order.window
        stored = commit(
            self.store,
            Commit("s/k", 1, number, str(number), composed.log, composed.past, composed.identities, window),
            self.now,
        )
        assert stored is not None
        covered = set(model.names[len(self.answered.names) :])
        self.store, self.answered = stored, model
        self.history.extend(handled)
        self.accepted -= covered
        for place, verdict in self.sequencer.answer(composed):
            assert verdict is self.expected(place) is not Verdict.NEW
            assert place in self.accepted
            self.accepted.discard(place)

    # -- what may happen ------------------------------------------------------------------------------------

    @rule(seq=st.integers(0, SEQ_MAX), run=st.integers(0, RUN_MAX))
    def delivered(self, seq: int, run: int) -> None:
        self.deliver(self.place(seq, run))

    @rule(first=st.integers(0, SEQ_MAX), count=st.integers(1, 5), run=st.integers(0, RUN_MAX), then=STEPS)
    def delivered_in_order(self, first: int, count: int, run: int, then: list[int]) -> None:
        for seq in range(first, first + count):
            self.deliver(self.place(seq, run))
        self.go_on(then)

    def place(self, seq: int, run: int) -> Place:
        return Place(0, 0, f"{run}-{seq}") if self.kind == "absent" else Place(run, seq)

    @rule(then=STEPS)
    def go_on(self, then: list[int]) -> None:
        """Whatever may come next: deliveries near the cursor, decisions, ends of runs, commits, answers."""
        for number in then:
            if number % 4 == 3:
                run = max(self.cursor.last, default=0)
                self.deliver(self.place(max(0, self.cursor.last.get(run, 0) + number // 4 % 5 - 1), run))
            elif self.flying is not None and number % 3 == 0:
                self.answer()
            elif self.flying is None and number % 3 == 1:
                self.send()
            elif self.running and number % 5 == 4:
                self.spend()
            elif self.running:
                self.finish(number % 4)
            elif not self.step():
                self.now += number % 4 * GAP_S / 4

    def spend(self) -> None:
        """The head's tries are spent."""
        head, *rest = self.running
        self.running = ()
        self.sequencer.skip(head)
        self.append(head, self.cursor.skipped)
        self.sequencer.put_back(tuple(rest))

    @rule(seconds=st.sampled_from([0.5, GAP_S / 2, GAP_S, 3 * GAP_S]), then=STEPS)
    def time_passes(self, seconds: float, then: list[int]) -> None:
        self.now += seconds
        self.go_on(then)

    @rule(then=STEPS)
    def reopened(self, then: list[int]) -> None:
        self.reopen()
        self.go_on(then)

    # -- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def every_accepted_place_is_somewhere(self) -> None:
        if not hasattr(self, "sequencer"):
            return
        composed = [] if self.flying is None else self.flying[1].names[len(self.answered.names) :]
        batch = self.cursor.names[len(self.answered.names) + len(composed) :]
        held = [*self.sequencer.inbox, *self.running, *composed, *batch]
        assert len(held) == len(set(held)), "held twice"
        assert set(held) == self.accepted

    @invariant()
    def the_inbox_is_in_order(self) -> None:
        if hasattr(self, "sequencer") and self.kind != "absent":
            assert self.sequencer.inbox == sorted(self.sequencer.inbox)

    @invariant()
    def passed_means_behind_the_cursor(self) -> None:
        if hasattr(self, "sequencer") and self.kind != "absent":
            assert self.sequencer.passed == any(map(self.cursor.passes, self.sequencer.inbox))

    @invariant()
    def the_store_is_a_prefix(self) -> None:
        if not hasattr(self, "sequencer") or self.kind == "absent":
            return
        assert self.history == sorted(set(self.history)), "once each, in order, run by run"
        for log in (self.store.log, *self.store.past):
            if log is not None and self.kind == "dense":
                passed = {Place(log.run, seq) for seq in range(log.start, log.seq + 1)}
                skipped = {place for place in passed if log.skipped(place.seq)}
                assert skipped == {p for p in self.answered.skipped if p.run == log.run}
                assert passed - skipped == {p for p in self.history if p.run == log.run}, "a hole unrecorded"

    def teardown(self) -> None:
        """Left alone, everything accepted is settled; only a held gap may keep the rest waiting."""
        if not hasattr(self, "sequencer"):
            return
        for _ in range(100):
            if self.flying:
                self.answer()
            if self.running:
                self.finish(3)
            elif not self.step():
                self.now += GAP_S
            if self.flying is None:
                self.send()
        self.every_accepted_place_is_somewhere()
        self.the_store_is_a_prefix()
        stuck = self.rules_of_order.on_gap == "hold" and self.kind == "dense" and self.accepted
        assert stuck or not self.accepted


class Increasing(Order):
    kind = "increasing"


class Absent(Order):
    kind = "absent"


QUICK = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.slow
def test_every_order_of_deliveries_runs_in_order_in_a_dense_stream() -> None:
    run_state_machine_as_test(Order, settings=settings(QUICK, max_examples=60))


@pytest.mark.slow
def test_every_order_of_deliveries_runs_in_order_in_an_increasing_stream() -> None:
    run_state_machine_as_test(Increasing, settings=QUICK)


@pytest.mark.slow
def test_every_delivery_runs_once_in_a_stream_without_seqs() -> None:
    run_state_machine_as_test(Absent, settings=QUICK)
