"""Order of one stream: verdicts, gaps, runs, skips and a bounded inbox, one rule at a time.

``test_order.py`` tries them all at once."""

from typing import Any

import pytest

from holdfast.common.message import Place, Span
from holdfast.common.reception import Reception
from holdfast.rules.streams.backlog import AWAY_S, Backlog
from holdfast.rules.streams.ledger import Checkpoint, RunLog, Started
from holdfast.rules.streams.sequencer import (
    ALWAYS,
    PAST_RUNS_MAX,
    SILENT_LOOK_S,
    Composed,
    Gap,
    Missing,
    Ready,
    Rules,
    Sequencer,
    Verdict,
    Wait,
)

GAP_S = 10.0
MARK = Started(Place(0, 9).name, 2, 1)


def at(seq: int, run: int = 0) -> Place:
    return Place(run, seq)


def named(name: str) -> Place:
    return Place(0, 0, name)


def ready(*places: Place) -> Ready:
    return Ready(places)


def sequencer(log: RunLog | None = None, *, past: tuple[RunLog, ...] = (), **rules: Any) -> Sequencer:
    rules = {"first": 0, "gap_timeout_s": GAP_S, **rules}
    return Sequencer(Rules(**rules), Checkpoint("s/k", log=log, past=past))


def offered(sequencer: Sequencer, *places: Place) -> Sequencer:
    for place in places:
        assert sequencer.judge(place) is Verdict.NEW
        assert sequencer.offer(place) is None
    return sequencer


def handle(sequencer: Sequencer, *places: Place) -> None:
    sequencer.take(places)
    for place in places:
        sequencer.done(place)


def commit(sequencer: Sequencer) -> list[tuple[Place, Verdict]]:
    return sequencer.answer(sequencer.compose())


class TestJudging:
    LOG = RunLog(run=2, start=10, seq=20, skips=(Span(12, 13),))
    PAST = (RunLog(run=1, start=0, seq=5, skips=(Span(4, 4),)),)

    @pytest.mark.parametrize(
        "place, verdict",
        [
            (at(21, 2), Verdict.NEW),
            (at(0, 3), Verdict.NEW),
            (at(20, 2), Verdict.DONE),
            (at(10, 2), Verdict.DONE),
            (at(12, 2), Verdict.SKIPPED),
            (at(9, 2), Verdict.LATE),
            (at(5, 1), Verdict.DONE),
            (at(4, 1), Verdict.SKIPPED),
            (at(6, 1), Verdict.LATE),
            (at(0, 0), Verdict.LATE),
        ],
    )
    def test_a_delivery_in_a_dense_stream_is_judged_by_the_log(self, place: Place, verdict: Verdict) -> None:
        assert sequencer(self.LOG, past=self.PAST).judge(place) is verdict

    @pytest.mark.parametrize("place", [at(4), at(4, 3)])
    def test_below_a_given_first_is_late(self, place: Place) -> None:
        assert sequencer(first=5).judge(place) is Verdict.LATE
        assert sequencer(self.LOG, first=5).judge(at(4, 3)) is Verdict.LATE
        assert sequencer(first="lowest").judge(place) is Verdict.NEW

    @pytest.mark.parametrize(
        "place, verdict",
        [
            (at(21, 2), Verdict.NEW),
            (at(0, 3), Verdict.NEW),
            (at(20, 2), Verdict.DONE),
            (at(19, 2), Verdict.SKIPPED),
            (at(18, 2), Verdict.LATE),
            (at(99, 1), Verdict.LATE),
        ],
    )
    def test_a_delivery_in_an_increasing_stream_is_judged_by_log_and_window(
        self, place: Place, verdict: Verdict
    ) -> None:
        rules = Rules(kind="increasing", first=50)
        recent = (at(20, 2).name, "!" + at(19, 2).name)
        assert Sequencer(rules, Checkpoint("s/k", log=self.LOG, recent=recent)).judge(place) is verdict

    @pytest.mark.parametrize(
        "name, verdict", [("a", Verdict.DONE), ("b", Verdict.SKIPPED), ("c", Verdict.NEW)]
    )
    def test_a_delivery_in_a_stream_without_seqs_is_judged_by_the_window(
        self, name: str, verdict: Verdict
    ) -> None:
        checkpoint = Checkpoint("s/k", log=self.LOG, recent=("0:a", "!0:b"))
        assert Sequencer(Rules(kind="absent"), checkpoint).judge(named(name)) is verdict

    @pytest.mark.parametrize("kind", ["dense", "increasing", "absent"])
    def test_what_a_refused_commit_would_have_passed_waits_again(self, kind: str) -> None:
        seqs = sequencer(RunLog(0, 0, 3), kind=kind)
        first, second, third = at(4), at(0, run=1), at(1, run=1)
        offered(seqs, first)
        handle(seqs, first)
        seqs.compose()
        offered(seqs, second)
        assert seqs.next(0, 9) != ready(first)
        assert seqs.next(GAP_S, 9) == ready(second)
        handle(seqs, second)
        offered(seqs, third)
        seqs.revert(())  # of a commit in which only a timer fired
        assert seqs.inbox == [third]
        seqs.revert((first, second))
        assert seqs.inbox == [first, second, third]
        assert seqs.cursor == RunLog(0, 0, 3)
        assert seqs.next(GAP_S, 1) == ready(first)
        assert seqs.compose() == Composed(RunLog(0, 0, 3), (), ())

    def test_nothing_is_done_before_its_commit_is_answered(self) -> None:
        seq = offered(sequencer(), at(0), at(1))
        handle(seq, at(0))
        composed = seq.compose()
        assert seq.judge(at(0)) is Verdict.NEW
        seq.answer(composed)
        assert seq.judge(at(0)) is Verdict.DONE
        assert seq.judge(at(1)) is Verdict.NEW


class TestDense:
    def test_an_empty_inbox_waits_for_arrivals(self) -> None:
        assert sequencer().next(0, 8) == Wait(None)

    def test_a_run_of_consecutive_places_is_ready(self) -> None:
        seq = offered(sequencer(), at(2), at(0), at(1), at(4), at(0, 1))
        assert seq.next(0, 8) == ready(at(0), at(1), at(2))
        assert seq.next(0, 2) == ready(at(0), at(1))

    def test_ready_places_end_with_their_run(self) -> None:
        seq = offered(sequencer(RunLog(0, 0, 4)), at(5), at(6, 1))
        assert seq.next(0, 8) == ready(at(5))

    def test_what_was_taken_and_put_back_is_next_again(self) -> None:
        seq = offered(sequencer(), at(0), at(1))
        seq.take((at(0), at(1)))
        assert seq.inbox == []
        seq.put_back((at(0), at(1)))
        assert seq.next(0, 8) == ready(at(0), at(1))

    def test_a_gap_is_waited_for_then_passed(self) -> None:
        seq = offered(sequencer(), at(0), at(3))
        handle(seq, at(0))
        assert seq.next(5, 8) == Wait(5 + GAP_S, gap=True)
        assert seq.next(14.9, 8) == Wait(5 + GAP_S, gap=True)
        assert seq.next(15, 8) == Gap(0, Span(1, 2))
        seq.pass_over(Span(1, 2))
        assert seq.next(15, 8) == ready(at(3))
        handle(seq, at(3))
        commit(seq)
        assert [seq.judge(at(i)) for i in range(5)] == [
            Verdict.DONE,
            Verdict.SKIPPED,
            Verdict.SKIPPED,
            Verdict.DONE,
            Verdict.NEW,
        ]

    def test_each_gap_is_waited_for_anew(self) -> None:
        seq = offered(sequencer(), at(1), at(3))
        seq.next(0, 8)
        assert seq.next(10, 8) == Gap(0, Span(0, 0))
        seq.pass_over(Span(0, 0))
        handle(seq, at(1))
        assert seq.next(11, 8) == Wait(11 + GAP_S, gap=True)

    def test_the_wait_for_a_gap_can_begin_anew(self) -> None:
        seq = offered(sequencer(), at(1))
        seq.next(0, 8)
        seq.wait_anew()
        assert seq.next(9, 8) == Wait(9 + GAP_S, gap=True)

    def test_the_wait_for_a_gap_stands_still_while_what_is_missing_may_come_back(self) -> None:
        backlog = Backlog()
        backlog.turned_away((0, 1), 0.0)
        rules = Rules(first=0, gap_timeout_s=GAP_S)
        seq = offered(Sequencer(rules, Checkpoint("s/k", log=RunLog(0, 0, 0)), ALWAYS, backlog), at(3))
        assert seq.next(0, 8) == Wait(AWAY_S, gap=True)
        assert seq.next(AWAY_S, 8) == Wait(AWAY_S + GAP_S, gap=True)
        assert seq.next(AWAY_S + GAP_S, 8) == Gap(0, Span(1, 2))

    def test_a_gap_that_closes_is_forgotten(self) -> None:
        seq = offered(sequencer(), at(1))
        seq.next(0, 8)
        offered(seq, at(0))
        assert seq.next(9, 8) == ready(at(0), at(1))
        handle(seq, at(0), at(1))
        assert seq.next(9, 8) == Wait(None)
        offered(seq, at(3))
        assert seq.next(11, 8) == Wait(11 + GAP_S, gap=True)

    def test_held_gaps_are_never_passed(self) -> None:
        seq = offered(sequencer(on_gap="hold"), at(1))
        assert seq.next(0, 8) == Wait(None, gap=True)
        assert seq.next(1e9, 8) == Wait(None, gap=True)

    def test_skips_are_kept_as_ranges(self) -> None:
        seq = offered(sequencer(), at(0), at(1), at(3), at(4))
        seq.take((at(0), at(1), at(3), at(4)))
        seq.skip(at(0))
        seq.skip(at(1))
        seq.pass_over(Span(2, 2))
        seq.done(at(3))
        seq.skip(at(4))
        assert seq.cursor == RunLog(0, 0, 4, (Span(0, 2), Span(4, 4)))

    def test_what_the_cursor_passed_is_judged_by_the_next_commit(self) -> None:
        seq = offered(sequencer(), at(2))
        seq.next(0, 8)
        seq.next(10, 8)
        seq.pass_over(Span(0, 1))
        offered(seq, at(0))
        assert seq.passed
        assert seq.next(10, 8) == ready(at(2))
        assert commit(seq) == [(at(0), Verdict.SKIPPED)]
        assert seq.inbox == [at(2)]


class TestStart:
    def test_a_given_first_is_a_gap_when_missing(self) -> None:
        seq = offered(sequencer(first=3), at(5))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        assert seq.next(GAP_S, 8) == Gap(0, Span(3, 4))

    def test_a_run_declared_to_begin_at_first_begins_at_what_comes_first(self) -> None:
        seq = offered(sequencer(first="first"), at(5))
        assert seq.next(0, 8) == ready(at(5))
        offered(seq, at(4))
        handle(seq, at(5))
        assert commit(seq) == [(at(4), Verdict.LATE)]

    def test_lowest_is_the_lowest_seen_in_time(self) -> None:
        seq = offered(sequencer(first="lowest"), at(5))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        offered(seq, at(4))
        assert seq.next(GAP_S, 8) == ready(at(4), at(5))
        assert seq.cursor == RunLog(0, 4, 3)

    def test_a_start_may_be_waited_for_less_than_a_gap(self) -> None:
        seq = offered(sequencer(start_timeout_s=2.0), at(2))
        assert seq.next(0, 8) == Wait(2, gap=True)
        offered(seq, at(1))
        assert seq.next(2, 8) == ready(at(1), at(2))
        assert seq.cursor == RunLog(0, 1, 0), "it starts there, and nothing counts as skipped"
        handle(seq, at(1), at(2))
        offered(seq, at(4))
        assert seq.next(3, 8) == Wait(3 + GAP_S, gap=True)
        commit(seq)
        assert seq.judge(at(0)) is Verdict.LATE

    def test_a_given_first_that_is_there_is_not_waited_for(self) -> None:
        seq = offered(sequencer(start_timeout_s=2.0), at(0), at(1))
        assert seq.next(0, 8) == ready(at(0), at(1))

    def test_lowest_may_be_waited_for_less_than_a_gap(self) -> None:
        seq = offered(sequencer(first="lowest", start_timeout_s=2.0), at(5))
        assert seq.next(0, 8) == Wait(2, gap=True)
        assert seq.next(2, 8) == ready(at(5))

    @pytest.mark.parametrize("fields", [{"started": MARK}, {"suspects": (MARK,)}])
    @pytest.mark.parametrize("number", [0, 7])
    def test_a_start_that_an_opening_found_out_is_not_waited_for_again(
        self, fields: dict[str, Any], number: int
    ) -> None:
        """Nor where an operator paused and resumed the stream since."""
        checkpoint = Checkpoint("s/k", number=number, **fields)
        seq = offered(Sequencer(Rules(first="lowest", gap_timeout_s=GAP_S), checkpoint), at(5))
        assert seq.next(0, 8) == ready(at(5))

    def test_time_in_which_the_node_receives_nothing_is_no_part_of_the_wait(self) -> None:
        reception = Reception()
        rules = Rules(first=0, gap_timeout_s=GAP_S)
        seq = offered(Sequencer(rules, Checkpoint("s/k", log=RunLog(0, 0, 4)), reception), at(6))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        reception.failed(GAP_S - 0.25)
        assert seq.next(GAP_S, 8) == Wait(GAP_S + SILENT_LOOK_S, gap=True)
        assert seq.next(9 * GAP_S, 8) == Wait(9 * GAP_S + SILENT_LOOK_S, gap=True)
        reception.answered(10 * GAP_S)
        assert seq.next(10 * GAP_S, 8) == Wait(10 * GAP_S + 0.25, gap=True)
        assert isinstance(seq.next(10 * GAP_S + 0.25, 8), Gap)

    def test_a_wait_that_begins_while_the_node_receives_nothing_lasts_as_long_after_that(self) -> None:
        reception = Reception()
        rules = Rules(first=0, gap_timeout_s=GAP_S)
        seq = offered(Sequencer(rules, Checkpoint("s/k", log=RunLog(0, 0, 4)), reception), at(6))
        reception.paused(0.0)
        assert seq.next(2.0, 8) == Wait(2.0 + GAP_S, gap=True)
        reception.asked(32.0)
        assert seq.next(32.0, 8) == Wait(32.0 + GAP_S, gap=True)

    def test_later_runs_wait_like_a_gap_and_start_where_they_can(self) -> None:
        seq = offered(sequencer(RunLog(0, 0, 4), start_timeout_s=2.0), at(1, 1))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        assert seq.next(GAP_S, 8) == ready(at(1, 1))


class TestRuns:
    @pytest.mark.parametrize("first, start", [(0, 0), ("first", 2), ("lowest", 2)])
    def test_a_new_run_waits_like_a_gap(self, first: Any, start: int) -> None:
        log = RunLog(0, 0, 4)
        seq = offered(sequencer(log, first=first), at(2, 1))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        offered(seq, at(5))
        assert seq.next(5, 8) == ready(at(5))
        handle(seq, at(5))
        assert seq.next(5, 8) == Wait(5 + GAP_S, gap=True)
        seq.next(5 + GAP_S, 8)
        assert seq.cursor == RunLog(1, start, start - 1)
        composed = seq.compose()
        assert composed.past == (RunLog(0, 0, 5),)

    def test_a_lower_run_is_late_once_the_new_one_is_recorded(self) -> None:
        seq = offered(sequencer(RunLog(0, 0, 4)), at(0, 1))
        seq.next(0, 8)
        assert seq.next(GAP_S, 8) == ready(at(0, 1))
        offered(seq, at(7))
        assert seq.passed
        assert commit(seq) == [(at(7), Verdict.LATE)]
        assert seq.judge(at(4)) is Verdict.DONE

    def test_the_newest_past_runs_are_kept(self) -> None:
        seq = sequencer(RunLog(0, 0, 0))
        for run in range(1, PAST_RUNS_MAX + 2):
            offered(seq, at(0, run))
            seq.next(0, 8)
            assert seq.next(GAP_S, 8) == ready(at(0, run))
            handle(seq, at(0, run))
        commit(seq)
        assert seq.judge(at(0, 1)) is Verdict.DONE
        assert seq.judge(at(0, 0)) is Verdict.LATE, "its range was forgotten"


class TestJumps:
    @pytest.mark.parametrize(
        "log, first, place, verdict",
        [
            (RunLog(0, 0, 20), 0, at(120), Verdict.NEW),
            (RunLog(0, 0, 20), 0, at(121), Verdict.FAR),
            (RunLog(0, 0, 20), 0, at(10**30), Verdict.FAR),
            (RunLog(0, 0, 20), "lowest", at(121), Verdict.FAR),
            (None, 5, at(104), Verdict.NEW),
            (None, 5, at(105), Verdict.FAR),
            (None, "lowest", at(10**30), Verdict.NEW),
            (RunLog(0, 0, 20), 5, at(105, 1), Verdict.FAR),
            (RunLog(0, 0, 20), "first", at(10**30, 1), Verdict.NEW),
        ],
    )
    def test_a_seq_too_far_ahead_is_a_mistake(
        self, log: RunLog | None, first: Any, place: Place, verdict: Verdict
    ) -> None:
        assert sequencer(log, first=first, max_jump=100).judge(place) is verdict
        assert sequencer(log, first=first).judge(place) is Verdict.NEW, "without a limit none is"

    def test_a_start_that_may_be_missing_says_nothing_of_what_is_far(self) -> None:
        made = sequencer(first=0, start_timeout_s=1.0, max_jump=100)
        assert made.judge(at(10**9)) is Verdict.NEW

    def test_numbers_that_only_grow_may_have_a_limit_too(self) -> None:
        made = sequencer(RunLog(0, 0, 20), kind="increasing", max_jump=100)
        assert (made.judge(at(120)), made.judge(at(121))) == (Verdict.NEW, Verdict.FAR)

    def test_what_waited_before_the_stream_began_is_judged_by_its_first_commit(self) -> None:
        made = sequencer(first="lowest", max_jump=100)
        offered(made, at(0), at(10**9))
        assert made.next(0.0, 9) == Wait(GAP_S, gap=True)
        assert made.next(GAP_S, 9) == ready(at(0))
        handle(made, at(0))
        assert commit(made) == [(at(10**9), Verdict.FAR)]

    def test_a_place_far_ahead_in_the_next_run_is_found_once_that_run_has_begun(self) -> None:
        made = offered(sequencer(RunLog(1, 0, 20), first="lowest", max_jump=100), at(5, 2), at(10**9, 2))
        assert made.next(0, 9) == Wait(GAP_S, gap=True)
        assert made.next(GAP_S, 9) == ready(at(5, 2))
        handle(made, at(5, 2))
        assert commit(made) == [(at(10**9, 2), Verdict.FAR)]


class TestWhatIsMissing:
    def test_nothing_is_while_places_are_ready_or_there_are_none(self) -> None:
        made = sequencer(RunLog(0, 0, 4))
        assert made.missing() is None
        offered(made, at(5))
        made.next(0.0, 9)
        assert made.missing() is None

    @pytest.mark.parametrize("place, text", [(at(6), "seq 5 of run 0"), (at(9), "seq 5 to 8 of run 0")])
    def test_a_gap_is_named_with_its_end(self, place: Place, text: str) -> None:
        made = offered(sequencer(RunLog(0, 0, 4)), place)
        made.next(3.0, 9)
        assert made.missing() == Missing(text, 3.0 + GAP_S, 3.0)

    def test_a_held_gap_has_no_end(self) -> None:
        made = offered(sequencer(RunLog(0, 0, 4), on_gap="hold"), at(6))
        made.next(3.0, 9)
        assert made.missing() == Missing("seq 5 of run 0", None)

    def test_a_wait_for_the_start_of_a_run_is_described(self) -> None:
        made = offered(sequencer(first="lowest"), at(6))
        made.next(0.0, 9)
        text = "the start of run 0, of which seq 6 is the lowest so far"
        assert made.missing() == Missing(text, GAP_S, 0.0)
        made = offered(sequencer(RunLog(0, 0, 4)), at(0, 1))
        made.next(0.0, 9)
        text = "the start of run 1, of which seq 0 is the lowest so far"
        assert made.missing() == Missing(text, GAP_S, 0.0)

    def test_what_the_queue_has_yet_to_deliver(self) -> None:
        made = sequencer(RunLog(0, 0, 4), kind="increasing")
        made.offer(at(9), 7)
        assert made.missing() == Missing("a message before seq 9 that its queue has yet to deliver", None)

    def test_numbers_that_only_grow_have_no_gaps(self) -> None:
        made = offered(sequencer(RunLog(0, 0, 4), kind="increasing"), at(9))
        made.next(0.0, 9)
        assert made.missing() is None


class TestRestarts:
    def test_a_fallen_seq_is_one_below_where_the_run_stands(self) -> None:
        made = sequencer(RunLog(1, 0, 20))
        assert [made.has_fallen(place) for place in (at(19, 1), at(20, 1), at(3, 2))] == [True, False, False]
        assert not sequencer().has_fallen(at(0))
        assert made.log == RunLog(1, 0, 20)

    def test_a_run_that_the_owner_began_starts_like_a_stream(self) -> None:
        made = offered(sequencer(RunLog(0, 0, 20), restart_after_s=60.0), at(0, 1))
        assert made.next(0.0, 9) == Wait(GAP_S, gap=True), "one that messages carry waits like a gap"
        made.quiet_run = 1
        assert made.next(0.0, 9) == ready(at(0, 1))


class TestInbox:
    def test_a_full_inbox_takes_a_lower_place_for_its_highest(self) -> None:
        seq = offered(sequencer(inbox_limit=2), at(5), at(7))
        assert seq.offer(at(6)) == at(7)
        assert seq.offer(at(7)) == at(7)
        assert seq.offer(at(0)) == at(6)
        assert seq.inbox == [at(0), at(5)]

    def test_without_seqs_the_newest_is_refused(self) -> None:
        seq = offered(sequencer(kind="absent", inbox_limit=1), named("b"))
        assert seq.offer(named("a")) == named("a")


class TestIncreasing:
    def test_places_run_in_order_whatever_is_between(self) -> None:
        seq = offered(sequencer(kind="increasing"), at(9), at(4), at(1, 1))
        assert seq.next(0, 8) == ready(at(4), at(9))
        assert seq.next(0, 1) == ready(at(4))

    def test_a_new_run_waits_for_stragglers_of_the_old(self) -> None:
        seq = offered(sequencer(RunLog(0, 4, 9), kind="increasing"), at(3, 1))
        assert seq.next(0, 8) == Wait(GAP_S, gap=True)
        assert seq.next(GAP_S, 8) == ready(at(3, 1))
        assert seq.cursor == RunLog(1, 3, 2)

    def test_identities_tell_done_from_skipped_from_late(self) -> None:
        seq = offered(sequencer(kind="increasing"), at(4), at(9))
        seq.next(0, 8)
        handle(seq, at(4))
        seq.take((at(9),))
        seq.skip(at(9))
        assert seq.cursor == RunLog(0, 4, 9)
        commit(seq)
        verdicts = [seq.judge(at(i)) for i in (4, 5, 9, 10)]
        assert verdicts == [Verdict.DONE, Verdict.LATE, Verdict.SKIPPED, Verdict.NEW]


class TestAbsent:
    def test_places_without_seqs_run_in_the_order_of_arrival(self) -> None:
        seq = offered(sequencer(kind="absent"), named("b"), named("a"))
        assert seq.next(0, 8) == ready(named("b"), named("a"))
        seq.take((named("b"),))
        seq.put_back((named("b"),))
        assert seq.next(0, 1) == ready(named("b"))
        assert not seq.passed

    def test_identities_are_remembered_within_the_window(self) -> None:
        seq = offered(sequencer(kind="absent", window=2), named("a"), named("b"), named("c"))
        handle(seq, named("a"), named("b"))
        assert commit(seq) == []
        assert seq.judge(named("a")) is Verdict.DONE
        handle(seq, named("c"))
        composed = seq.compose()
        assert composed.identities == ("0:c",)
        seq.answer(composed)
        assert [seq.judge(named(x)) for x in "abc"] == [Verdict.NEW, Verdict.DONE, Verdict.DONE]
        assert seq.cursor == RunLog(0, 0, 3)

    def test_skipped_ones_are_known_as_such(self) -> None:
        seq = offered(sequencer(kind="absent"), named("a"))
        seq.take((named("a"),))
        seq.skip(named("a"))
        commit(seq)
        assert seq.judge(named("a")) is Verdict.SKIPPED


class TestTheQueuesOrder:
    """Where the queue tells which message is before another, that one is waited for, however long."""

    LOG = RunLog(0, 0, 3)

    def linked(self, *links: tuple[int, int | None], limit: int = 64) -> Sequencer:
        seqs = sequencer(self.LOG, kind="increasing", first="lowest", inbox_limit=limit)
        for seq, after in links:
            assert seqs.offer(at(seq), after) is None
        return seqs

    def test_a_message_waits_for_the_one_before_it(self) -> None:
        seqs = self.linked((8, 5))
        assert seqs.next(0, 9) == Wait(None, gap=True)
        assert seqs.next(10 * GAP_S, 9) == Wait(None, gap=True)
        seqs.offer(at(5))
        assert seqs.next(0, 9) == ready(at(5), at(8))

    def test_one_that_was_passed_is_not_waited_for(self) -> None:
        assert self.linked((8, 3), (9, 8)).next(0, 9) == ready(at(8), at(9))

    def test_what_follows_a_missing_one_is_not_run_with_what_is_before(self) -> None:
        seqs = self.linked((5, None), (8, 7), (9, 8))
        assert seqs.next(0, 9) == ready(at(5))
        assert seqs.behind_gap() == [at(8), at(9)]

    def test_a_stream_does_not_begin_behind_a_missing_one(self) -> None:
        seqs = sequencer(kind="increasing", first="lowest")
        seqs.offer(at(8), 5)
        assert seqs.next(0, 9) == Wait(None, gap=True)
        assert seqs.behind_gap() == [at(8)]

    def test_a_later_delivery_may_know_that_it_is_done(self) -> None:
        seqs = self.linked((8, 5), (9, 6))
        seqs.loosen(at(8), None)
        seqs.loosen(at(9), 5)
        assert seqs.next(0, 9) == ready(at(8), at(9))
        assert seqs.behind_gap() == []

    @pytest.mark.parametrize("again", [False, True])
    def test_before_what_the_queue_delivers_first_none_waits_for_it_any_more(self, again: bool) -> None:
        """The store lost the commits of 4 and 5, which the queue has deleted: another node offers 5 again."""
        seqs = self.linked((5, 4), (7, 6))
        if again:
            seqs.offer(at(6), 5)
            seqs.loosen(at(6), None)
        else:
            seqs.offer(at(6), None)
        assert seqs.next(0, 9) == ready(at(5), at(6), at(7))

    def test_one_of_an_earlier_run_that_comes_later_is_waited_for(self) -> None:
        seqs = sequencer(RunLog(1, 0, 3), kind="increasing", first="lowest")
        seqs.offer(at(9, 1), 8)  # the queue delivers 7 of run 2, 8 of run 1, 9 of run 1
        seqs.offer(at(7, 2), None)
        assert seqs.behind_gap() == [at(9, 1), at(7, 2)]

    def test_what_waits_for_nothing_stays_so(self) -> None:
        seqs = self.linked((8, None))
        seqs.loosen(at(8), 7)
        assert seqs.next(0, 9) == ready(at(8))

    def test_what_finds_no_room_is_forgotten(self) -> None:
        seqs = self.linked((8, 7), limit=1)
        assert seqs.offer(at(7)) == at(8)
        assert seqs.offer(at(9), 8) == at(9)
        assert seqs.behind_gap() == []

    def test_what_the_commit_settles_is_forgotten(self) -> None:
        seqs = self.linked((5, None), (6, 4))
        handle(seqs, at(5), at(6))
        seqs.put_back((at(6),))
        seqs.offer(at(4), 2)
        assert commit(seqs) == [(at(4), Verdict.LATE), (at(6), Verdict.DONE)]
        assert seqs.behind_gap() == []


class TestOrderOfArrival:
    """A stream without seqs, whose queue knows the turn of each message."""

    def made(self, *turns: int, limit: int = 8, backlog: Backlog | None = None) -> Sequencer:
        rules = Rules(kind="absent", inbox_limit=limit)
        made = Sequencer(rules, Checkpoint("s/k"), backlog=backlog)
        for turn in turns:
            assert made.offer(named(f"m{turn}"), turn=turn) is None
        return made

    def test_places_run_by_turn_however_they_come(self) -> None:
        made = self.made(3, 1, 2)
        assert made.next(0.0, 8) == ready(named("m1"), named("m2"), named("m3"))
        assert made.next(0.0, 2) == ready(named("m1"), named("m2"))
        assert made.missing() is None

    def test_a_place_without_a_turn_runs_as_it_came(self) -> None:
        made = self.made(5)
        made.offer(named("request"))
        made.offer(named("m4"), turn=4)
        assert made.next(0.0, 8) == ready(named("m4"), named("m5"), named("request"))

    def test_a_full_inbox_takes_a_lower_turn_for_its_highest(self) -> None:
        made = self.made(3, 5, limit=2)
        assert made.offer(named("m6"), turn=6) == named("m6")
        assert made.offer(named("request")) == named("request")
        assert made.offer(named("m1"), turn=1) == named("m5")
        assert made.next(0.0, 8) == ready(named("m1"), named("m3"))

    def test_a_place_that_was_put_back_stays_the_first(self) -> None:
        made = self.made(2, 3)
        made.take((named("m2"),))
        made.put_back((named("m2"),))
        made.offer(named("m1"), turn=1)
        assert made.next(0.0, 8) == ready(named("m2"), named("m1"), named("m3"))

    def test_later_places_wait_for_one_that_was_turned_away(self) -> None:
        backlog = Backlog()
        made = self.made(1, 3, backlog=backlog)
        backlog.turned_away((0, 2), 5.0)
        assert made.next(6.0, 8) == ready(named("m1"))
        handle(made, named("m1"))
        assert made.next(6.0, 8) == Wait(5.0 + AWAY_S, gap=True)
        assert made.missing() == Missing("an earlier message, for which there was no room", None)
        made.offer(named("m2"), turn=2)
        backlog.came((0, 2))
        assert made.next(6.0, 8) == ready(named("m2"), named("m3"))

    def test_nothing_runs_before_a_deep_backlog_was_taken_from(self) -> None:
        backlog = Backlog(by_key=True, is_deep=True, by_turn=True)
        made = self.made(7, backlog=backlog)
        assert made.next(0.0, 8) == Wait(None, gap=True)
        assert made.missing() is not None


class TestNumbersWithGaps:
    def test_they_wait_for_a_lower_one_that_was_turned_away(self) -> None:
        backlog = Backlog()
        made = Sequencer(Rules(kind="increasing"), Checkpoint("s/k", log=RunLog(0, 0, 1)), backlog=backlog)
        offered(made, at(3), at(9))
        backlog.turned_away((0, 5), 0.0)
        assert made.next(1.0, 8) == ready(at(3)), "what is below it runs"
        handle(made, at(3))
        assert made.next(1.0, 8) == Wait(AWAY_S, gap=True)
        assert made.missing() == Missing("an earlier message, for which there was no room", None)
        assert made.next(AWAY_S, 8) == ready(at(9)), "it is expected for so long"

    def test_one_that_was_passed_holds_nothing_up(self) -> None:
        backlog = Backlog()
        made = Sequencer(Rules(kind="increasing"), Checkpoint("s/k", log=RunLog(0, 0, 5)), backlog=backlog)
        offered(made, at(9))
        backlog.turned_away((0, 4), 0.0)
        assert made.next(1.0, 8) == ready(at(9))


class TestHowLongAStreamHasWaited:
    def test_a_stream_that_waits_for_nothing_has_not(self) -> None:
        assert sequencer(RunLog(0, 0, 4)).waited(0.0) is None

    def test_the_wait_for_a_gap_counts_from_its_beginning(self) -> None:
        made = offered(sequencer(RunLog(0, 0, 4)), at(6))
        made.next(3.0, 9)
        assert made.waited(7.0) == (at(5).name, 4.0)

    def test_time_in_which_the_missing_one_may_come_back_does_not_count(self) -> None:
        backlog = Backlog()
        rules = Rules(first=0, gap_timeout_s=GAP_S)
        made = Sequencer(rules, Checkpoint("s/k", log=RunLog(0, 0, 4)), backlog=backlog)
        offered(made, at(6))
        made.next(0.0, 9)
        backlog.turned_away((0, 5), 2.0)
        assert made.next(2.0, 9) == Wait(2.0 + AWAY_S, gap=True)
        assert made.waited(50.0) == (at(5).name, 2.0)
        backlog.came((0, 5))
        assert made.next(50.0, 9) == Wait(50.0 + GAP_S - 2.0, gap=True)
