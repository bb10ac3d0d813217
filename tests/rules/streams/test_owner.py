"""The owner of one key, event by event. ``test_protocol.py`` sets several against each other."""

import itertools
import math
from typing import Any, ClassVar, TypeVar

import pytest

from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import NO_RUN, Life, Place, Span
from holdfast.common.retry import Backoff
from holdfast.rules.streams import ledger
from holdfast.rules.streams.backlog import Reserve, Take, Unreserve
from holdfast.rules.streams.commands import (
    CheckClaim,
    Command,
    Dropped,
    HandOff,
    LoadModels,
    Open,
    Peek,
    PutBack,
    Reclaim,
    Release,
    Return,
    Run,
    Settle,
    Start,
    Transfer,
    Write,
)
from holdfast.rules.streams.ledger import Aside, Checkpoint, Commit, Result, RunLog, Started
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.owner import LOOK_S, OwnerMachine
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.run_plan import ALONE_OPENINGS, NOTHING, REACH, RUN_LIMIT
from holdfast.rules.streams.sequencer import Rules
from holdfast.rules.streams.wait_reason import WaitReason

KEY = "cameras/1"
GAP_S = 10.0
IDLE_S = 60.0
RETRY_S = 1.0
LATE = "late: the stream had passed this place"

C = TypeVar("C")


def held(
    seq: int, receipt: str = "", *, run: int = 0, sender: str = "", number: int = 0, receives: int = 1
) -> Held:
    handle = Receipt(receipt or f"r{run}.{seq}", 100.0, sender=sender, number=number)
    return Held(Place(run, seq), b"", {}, [handle], receives)


def asked(seq: int) -> Held:
    """A message that a client brought."""
    return Held(Place(0, seq), b"", {}, [Receipt(f"request {seq}", math.inf, stale=True, request=1)])


def name(seq: int, run: int = 0) -> str:
    return Place(run, seq).name


class Bench:
    """An owner on the test bench: events go in by hand, commands are looked at one by one."""

    def __init__(self, *, order: dict[str, Any] | None = None, **rules: Any) -> None:
        rules = {"backoff": Backoff(RETRY_S, 60.0, floor=1.0), "idle_timeout_s": IDLE_S, **rules}
        order = {"first": 0, "gap_timeout_s": GAP_S, **(order or {})}
        self.now = 0.0
        self.owner = OwnerMachine(KEY, OwnerOptions(Rules(**order), **rules), self.now)

    def opened(self, **checkpoint: Any) -> "Bench":
        """Through CLAIMED and OPENING to OWNER."""
        self.only(Peek)
        self.owner.peeked(None, self.now)
        self.only(Open)
        self.owner.opened(Checkpoint(KEY, **{"epoch": 1, **checkpoint}), self.now)
        return self

    def phase(self) -> OwnerPhase:
        return self.owner.phase

    def at_risk(self) -> str:
        return self.owner.runs.at_risk

    def out(self) -> list[Command]:
        commands, self.owner.agenda.commands = self.owner.agenda.commands, []
        return commands

    def silent(self) -> None:
        assert self.out() == []

    def only(self, kind: type[C]) -> C:
        (command,) = self.out()
        assert isinstance(command, kind)
        return command

    def offer(self, *messages: Held) -> None:
        for message in messages:
            assert self.owner.offer(message, self.now) == "accepted"

    def begin(self, *messages: Held) -> Run:
        """Offer messages to an owner without a mark, up to the first Run."""
        self.offer(*messages)
        assert self.only(Start).head == messages[0].place.name
        self.owner.started(1, self.now)
        return self.only(Run)

    def ran(
        self, results: int = 1, error: str = "", *, permanent: bool = False, state: bytes | None = b"s"
    ) -> None:
        self.owner.ran([b"done"] * results, None if error else state, 1, error, "trace", permanent, self.now)

    def fail(self, results: int = 0, *, permanent: bool = False) -> None:
        self.ran(results, "Boom", permanent=permanent)

    def write(self) -> Commit:
        return self.only(Write).commit

    def committed(self) -> None:
        self.owner.committed(self.now)

    def known(self) -> None:
        """The store still knows the last commit."""
        self.only(Peek)
        self.owner.peeked(Checkpoint(KEY, epoch=self.owner.epoch, number=self.owner.commits.number), self.now)

    def tick(self) -> None:
        assert self.owner.agenda.wake_at is not None
        self.now = self.owner.agenda.wake_at
        self.owner.ticked(self.now)


def reserved(bench: Bench, waiting: int = 1) -> Bench:
    """An owner that waits for seq 1 and has no room for all behind it, so that the queue keeps the rest."""
    handled(bench.opened(), held(0))
    bench.offer(*(held(seq) for seq in range(2, 2 + waiting)))
    bench.silent()
    assert bench.owner.offer(held(2 + waiting), bench.now) == "full"
    bench.only(Reserve)
    bench.owner.reserved(True, bench.now)
    bench.only(Take)
    bench.owner.took(0, 0, False, bench.now)
    bench.silent()
    return bench


def by_turn(identity: str, turn: int) -> Held:
    """A message without a seq, and its place in the queue."""
    return Held(Place(0, 0, identity), b"", {}, [Receipt(f"r{turn}", 100.0)], turn=turn)


def handled(bench: Bench, *messages: Held) -> None:
    """Messages go the whole way in one run and one commit."""
    bench.begin(*messages)
    bench.ran(len(messages))
    bench.write()
    bench.committed()
    assert bench.only(Settle).messages == messages
    bench.owner.settled(bench.now)


def finished(bench: Bench) -> None:
    """All that can run does so, and is committed."""
    while commands := bench.out():
        for command in commands:
            match command:
                case Start():
                    bench.owner.started(1, bench.now)
                case Run():
                    bench.ran(len(command.messages))
                case Write():
                    bench.committed()
                case Settle():
                    bench.owner.settled(bench.now)


class TestOpening:
    def test_peek_then_open_at_what_stands(self) -> None:
        bench = Bench()
        bench.only(Peek)
        assert bench.phase() is OwnerPhase.CLAIMED
        bench.owner.peeked(Checkpoint(KEY, epoch=4), 0)
        assert bench.only(Open).expect == 4
        assert bench.phase() is OwnerPhase.OPENING
        bench.owner.opened(Checkpoint(KEY, epoch=5, number=9, state=b"x", state_version=2), 0)
        bench.silent()
        owner = bench.owner
        assert (owner.phase, owner.epoch, owner.commits.number) == (OwnerPhase.OWNER, 5, 9)
        assert (owner.commits.state, owner.commits.state_version) == (b"x", 2)

    def test_messages_are_held_unjudged_until_opened(self) -> None:
        bench = Bench(order={"inbox_limit": 2})
        done, new = held(4), held(5)
        bench.offer(done, new)
        assert bench.owner.offer(held(6), 0) == "full"
        assert len(bench.owner.inbox) == 2
        bench.only(Peek)
        bench.owner.peeked(None, 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=1, log=RunLog(0, 0, 4)), 0)
        assert bench.out() == [Settle((), (done,), duplicate=True), Start(name(5))]
        assert len(bench.owner.inbox) == 1

    def test_what_finds_no_room_after_a_reopening_goes_back(self) -> None:
        bench = Bench(order={"inbox_limit": 1}).opened()
        first, second = held(0), held(1)
        bench.begin(first)
        bench.offer(second)
        bench.owner.fenced(0)
        bench.only(CheckClaim)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(None, 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=2), 0)
        assert bench.out() == [Return((second,)), Start(name(0))]

    def test_a_failed_opening_begins_anew_while_the_claim_is_ours(self) -> None:
        bench = Bench()
        bench.offer(held(0))
        bench.out()
        bench.owner.peeked(None, 0)
        bench.out()
        bench.owner.open_failed(0)
        bench.only(CheckClaim)
        assert bench.phase() is OwnerPhase.CLAIMED
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        assert len(bench.owner.inbox) == 1

    def test_without_the_claim_all_goes_back(self) -> None:
        bench = Bench()
        message = held(0)
        bench.offer(message)
        bench.out()
        bench.owner.peeked(None, 0)
        bench.out()
        bench.owner.open_failed(0)
        bench.out()
        bench.owner.claim_checked(False, 0)
        assert bench.out() == [Return((message,)), Dropped()]
        assert bench.phase() is OwnerPhase.DROPPED
        assert len(bench.owner.inbox) == 0
        assert bench.owner.offer(held(1), 0) == "no"
        bench.owner.drop()
        bench.silent()

    def test_an_owner_without_messages_returns_none(self) -> None:
        bench = Bench()
        bench.out()
        bench.owner.drop()
        assert bench.out() == [Dropped()]


class TestDeliveries:
    def test_a_second_delivery_adds_its_receipt(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0, "a"))
        bench.offer(held(0, "b"), held(0, "a"))
        bench.silent()
        assert [receipt.receipt for held in bench.owner.inbox.to_extend() for receipt in held.receipts] == [
            "a",
            "b",
        ]
        bench.ran()
        bench.write()
        bench.committed()
        (message,) = bench.only(Settle).messages
        assert [receipt.receipt for receipt in message.receipts] == ["a", "b"]

    def test_an_offer_by_another_sender_replaces_the_sender(self) -> None:
        bench = Bench()
        bench.offer(held(0, "a", sender="n1", number=1))
        bench.offer(held(0, "b", sender="n1", number=2))
        bench.offer(held(0, "a", sender="n2", number=7))
        first, second = (receipt for held in bench.owner.inbox.to_extend() for receipt in held.receipts)
        assert (first.sender, first.number) == ("n2", 7)
        assert (second.sender, second.number) == ("n1", 2)

    def test_what_waits_for_its_queue_to_deliver_what_is_before_it_is_not_kept_from_it(self) -> None:
        bench = Bench(order={"kind": "increasing", "first": "lowest"}).opened(log=RunLog(0, 0, 1))
        later = held(5, "a")
        later.after = 4
        bench.offer(later)
        assert list(bench.owner.inbox.to_extend()) == []
        again, once_more = held(5, "b"), held(5, "c")
        again.after, once_more.after = 3, 4
        bench.offer(again)
        assert [later.after] == [3]
        assert list(bench.owner.inbox.to_extend()) == []
        bench.offer(once_more)
        assert [later.after] == [3], "the least that any delivery told"
        bench.offer(held(5, "d"))
        assert [later.after] == [None]
        assert list(bench.owner.inbox.to_extend()) == [later]
        assert bench.only(Start).head == name(5)

    def test_what_the_queue_delivers_first_again_waits_for_nothing_that_came_meanwhile(self) -> None:
        """Another node offers what the queue has deleted: the store has lost its commit, and that of the one
        before it."""
        bench = Bench(order={"kind": "increasing", "first": "lowest"}).opened(log=RunLog(0, 0, 1))
        deleted = held(4, "a")
        deleted.after = 3
        bench.begin(held(2))
        bench.offer(held(5, "b"), deleted, held(5, "c"))
        assert sorted(held.place.seq for held in bench.owner.inbox.to_extend()) == [2, 4, 5]

    def test_a_message_that_was_done_before_is_settled_as_duplicate(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        message = held(3)
        bench.offer(message)
        bench.known()
        assert bench.out() == [Settle((), (message,), duplicate=True)]

    def test_a_done_message_is_not_deleted_by_who_may_not_own_the_stream_any_more(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(3))
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch + 1, number=9), 0)
        bench.only(CheckClaim)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch + 1, number=9), 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=9, number=1, log=RunLog(0, 0, 2)), 0)
        bench.only(Start)

    def test_a_done_message_that_the_store_has_forgotten_runs_again(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4), number=5)
        message, other = held(3), held(4)
        bench.offer(message)
        bench.only(Peek)
        bench.offer(other)
        bench.silent()
        assert set(bench.owner.inbox.to_extend()) == {message, other}
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch, number=3), 0)
        bench.only(CheckClaim)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=1, number=3), 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=2, number=3, log=RunLog(0, 0, 2)), 0)
        assert bench.only(Start).head == name(3)

    def test_a_done_message_that_comes_again_during_the_look_is_looked_for_again(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(3))
        bench.only(Peek)
        message = held(3)
        message.receipts[0].receipt = "again"
        bench.offer(message)
        bench.silent()
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch), 0)
        bench.known()
        settled = bench.only(Settle)
        assert [receipt.receipt for receipt in settled.messages[0].receipts] == ["r0.3", "again"]

    def test_a_client_that_asks_during_the_look_makes_it_no_longer(self) -> None:
        """Clients may ask again more often than the store answers."""
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(3))
        bench.only(Peek)
        bench.offer(asked(3))
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch), 0)
        settled = bench.only(Settle)
        assert [receipt.receipt for receipt in settled.messages[0].receipts] == ["r0.3", "request 3"]

    def test_no_more_done_messages_wait_for_the_look_than_have_room(self) -> None:
        bench = Bench(order={"inbox_limit": 1}).opened(log=RunLog(0, 0, 4))
        bench.offer(held(2))
        assert bench.owner.offer(held(3), 0) == "full"
        bench.known()
        assert [message.place.seq for message in bench.only(Settle).messages] == [2]

    def test_a_stream_does_not_move_before_the_store_has_shown_what_it_knows(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(3))
        bench.only(Peek)
        assert bench.owner.move("other", 0)
        bench.silent()
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch), 0)
        assert [type(command) for command in bench.out()] == [Settle, Transfer]

    def test_a_refused_commit_takes_no_look_with_it(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.begin(held(5))
        bench.ran()
        bench.write()
        done = held(3)
        bench.offer(done)
        bench.only(Peek)  # its answer is of the opening before the refusal, and doesn't count any more
        bench.owner.refused("too large", 0)
        bench.known()
        assert bench.only(Settle).messages == (done,)

    def test_two_names_of_a_done_message_are_one(self) -> None:
        bench = Bench(order={"restart_after_s": 30.0}).opened(log=RunLog(2, 0, 9))
        bench.owner.move("other", 0)
        bench.only(Transfer)
        bench.offer(held(3, "a", run=NO_RUN), held(3, "b", run=2))
        bench.owner.transferred("kept", 0)
        bench.known()
        bench.known()
        settled = bench.only(Settle)
        assert [receipt.receipt for receipt in settled.messages[0].receipts] == ["a", "b"]

    def test_who_is_told_of_a_change_during_a_look_looks_again(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(3))
        bench.only(Peek)
        bench.owner.poked()
        bench.silent()
        bench.owner.peeked(Checkpoint(KEY, epoch=bench.owner.epoch), 0)
        assert [type(command) for command in bench.out()] == [Settle, Peek]

    def test_a_skipped_message_is_set_aside_again(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4, (Span(3, 3),)))
        message = held(3)
        bench.offer(message)
        bench.known()
        assert bench.out() == [
            Settle((PendingDeadLetter("skipped before", message),), (message,), duplicate=True)
        ]

    def test_a_skipped_message_that_is_redriven_keeps_its_first_reason(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4, (Span(3, 3),)))
        message = held(3)
        message.attributes = {"skipped_for": "Boom"}
        bench.offer(message)
        bench.known()
        assert bench.only(Settle).letters == (PendingDeadLetter("skipped before: Boom", message),)

    @pytest.mark.parametrize("on_late, letters", [("dead-letter", 1), ("discard", 0)])
    def test_a_late_message_is_recorded_first(self, on_late: str, letters: int) -> None:
        bench = Bench(on_late=on_late).opened(log=RunLog(0, 5, 9))
        message = held(2)
        bench.offer(message)
        commit = bench.write()
        assert commit.aside == (Aside(name(2), LATE),)
        assert commit.log == RunLog(0, 5, 9)
        assert (commit.done, commit.skipped) == (0, 0)
        bench.committed()
        assert bench.out() == [Settle((PendingDeadLetter(LATE, message),) * letters, (message,))]

    def test_a_lower_message_gets_the_room_of_the_highest(self) -> None:
        bench = Bench(order={"inbox_limit": 1}).opened()
        high, low = held(5), held(3)
        bench.offer(high)
        assert bench.owner.runs.is_gapped
        bench.offer(low)
        assert bench.out() == [Return((high,))]
        assert bench.owner.offer(held(4), 0) == "full"
        assert list(bench.owner.inbox.to_extend()) == [low]

    def test_what_the_cursor_passed_is_judged_by_the_next_commit(self) -> None:
        """Seq 0 comes while the commit that passes over it is in flight."""
        bench = Bench().opened()
        bench.offer(held(1))
        bench.tick()
        gap = bench.write()
        assert gap.log == RunLog(0, 0, 0, (Span(0, 0),))
        message = held(0)
        bench.offer(message)
        bench.silent()
        bench.committed()
        settle, run = bench.out()
        assert settle == Settle((PendingDeadLetter("skipped before", message),), (message,), duplicate=True)
        assert isinstance(run, Run)

    def test_what_came_too_late_for_a_begun_stream_is_late(self) -> None:
        bench = Bench(order={"first": "first"}).opened()
        bench.begin(held(5))
        message = held(4)
        bench.offer(message)
        bench.silent()
        bench.ran()
        bench.write()
        bench.committed()
        settle, write = bench.out()
        assert isinstance(settle, Settle)
        assert isinstance(write, Write)
        assert write.commit.aside == (Aside(name(4), LATE),)

    def test_a_begun_run_is_recorded_when_only_stragglers_wait(self) -> None:
        """Run 1 begins with a gap; stragglers of run 0 must not fill the inbox until it closes."""
        bench = Bench(order={"inbox_limit": 1}).opened(log=RunLog(0, 0, 4))
        bench.offer(held(2, run=1))
        bench.tick()
        bench.silent()
        straggler = held(7)
        bench.offer(straggler)
        returned, write = bench.out()
        assert isinstance(returned, Return)
        assert isinstance(write, Write)
        assert (write.commit.log, write.commit.past) == (RunLog(1, 0, -1), (RunLog(0, 0, 4),))
        bench.committed()
        assert bench.write().aside == (Aside(name(7), LATE),)
        bench.committed()
        assert bench.only(Settle).messages == (straggler,)


class TestRunning:
    def test_a_message_is_started_run_committed_and_settled(self) -> None:
        bench = Bench().opened(epoch=3, number=6, state=b"old", state_version=1)
        message = held(0)
        run = bench.begin(message)
        assert run == Run((message,), True, b"old", 1, 1)
        bench.owner.ran([b"result"], b"new", 2, "", "", False, 0)
        commit = bench.write()
        assert commit == Commit(
            KEY,
            epoch=3,
            number=7,
            id="3.7.0",
            log=RunLog(0, 0, 0),
            state=b"new",
            state_version=2,
            results=(Result(name(0), b"result"),),
            done=1,
        )
        bench.committed()
        assert bench.out() == [Settle((), (message,))]
        assert bench.owner.commits.number == 7
        assert not bench.owner.runs.is_gapped

    def test_no_result_no_line_in_the_log(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.owner.ran([None], None, 0, "", "", False, 0)
        commit = bench.write()
        assert commit.results == ()
        assert commit.clear_state

    def test_identities_go_along_where_seqs_do_not_tell(self) -> None:
        bench = Bench(order={"kind": "increasing", "window": 7}).opened()
        bench.begin(held(4))
        bench.ran()
        commit = bench.write()
        assert (commit.identities, commit.window) == ((name(4),), 7)

    def test_a_commit_that_ran_nothing_writes_no_state_again(self) -> None:
        bench = Bench(order={"first": 5}).opened()
        handled(bench, held(5))
        bench.offer(held(1))
        commit = bench.write()
        assert (commit.state, commit.clear_state) == (None, False)

    def test_the_handler_goes_on_while_a_commit_is_in_flight(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.offer(held(1), held(2))
        bench.ran()
        run, write = bench.out()
        assert isinstance(run, Run)
        assert [message.place.seq for message in run.messages] == [1, 2]
        assert not run.fresh
        assert isinstance(write, Write)
        assert write.commit.starting == name(1), "the mark moves along"
        bench.ran(2)
        bench.silent()
        bench.committed()
        settle, write = bench.out()
        assert isinstance(settle, Settle)
        assert isinstance(write, Write)
        assert write.commit.number == 2
        assert write.commit.starting == ""
        assert write.commit.done == 2

    def test_a_head_that_comes_while_the_mark_is_taken_away_waits_for_the_answer(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.ran()
        assert bench.write().starting == ""
        bench.offer(held(1))
        bench.silent()
        assert not bench.owner.runs.is_gapped
        bench.committed()
        settle, start = bench.out()
        assert isinstance(settle, Settle)
        assert start == Start(name(1))

    def test_a_commit_names_the_head_that_will_run_next(self) -> None:
        """An opening with a late message and a new one: one write records the first and marks the other."""
        bench = Bench()
        bench.offer(held(1), held(5))
        bench.opened(log=RunLog(0, 2, 4))
        assert bench.write().starting == name(5)
        bench.committed()
        settle, run = bench.out()
        assert isinstance(settle, Settle)
        assert isinstance(run, Run)

    def test_commits_wait_for_enough_work_or_time(self) -> None:
        bench = Bench(checkpoint_every=3, checkpoint_after_s=5.0).opened()
        bench.begin(held(0))
        bench.offer(*map(held, range(1, 9)))
        bench.ran()
        assert len(bench.only(Run).messages) == 8
        assert bench.owner.agenda.wake_at == 5.0
        bench.ran(1)
        bench.only(Run)
        bench.tick()
        assert bench.write().done == 2
        bench.committed()
        bench.only(Settle)
        bench.ran(1)
        bench.only(Run)
        bench.ran(2)
        run, write = bench.out()
        assert isinstance(run, Run)
        assert isinstance(write, Write)
        assert write.commit.done == 3

    def test_a_run_that_stops_early_puts_the_rest_back(self) -> None:
        bench = Bench(checkpoint_every=9).opened()
        bench.begin(held(0))
        bench.offer(held(1), held(2))
        bench.ran()
        bench.only(Run)
        bench.ran(1)
        assert [message.place.seq for message in bench.only(Run).messages] == [2]

    @pytest.mark.parametrize("every, size", [(1, RUN_LIMIT), (RUN_LIMIT + 3, RUN_LIMIT + 3)])
    def test_a_run_takes_no_more_messages_than_its_limit(self, every: int, size: int) -> None:
        bench = Bench(checkpoint_every=every).opened()
        bench.begin(held(0))
        bench.offer(*map(held, range(1, 100)))
        bench.ran()
        run = bench.out()[0]
        assert isinstance(run, Run)
        assert len(run.messages) == size

    def test_a_slow_store_bounds_what_runs_ahead(self) -> None:
        bench = Bench(order={"inbox_limit": 3}).opened()
        bench.begin(held(0))
        for seq in range(1, RUN_LIMIT + 1):
            bench.offer(held(seq))
            bench.ran()
            assert isinstance(bench.out()[0], Run)
        bench.offer(held(RUN_LIMIT + 1))
        bench.ran()
        bench.silent()
        assert not bench.owner.runs.is_gapped, "it waits for the store, not for a message"
        bench.committed()
        assert [type(command) for command in bench.out()] == [Settle, Run, Write]

    def test_a_gap_is_passed_in_time(self) -> None:
        bench = Bench().opened()
        bench.offer(held(2))
        assert bench.owner.agenda.wake_at == GAP_S
        bench.tick()
        commit = bench.write()
        assert commit.log == RunLog(0, 0, 1, (Span(0, 1),))
        assert (commit.skipped, commit.aside, commit.starting) == (2, (), name(2))
        bench.committed()
        bench.only(Run)

    def test_while_its_archive_holds_it_back_no_message_begins_and_no_gap_is_passed(self) -> None:
        bench = Bench().opened()
        bench.offer(held(1))
        bench.owner.hold_back(True, bench.now)
        assert bench.owner.wait_reason() == WaitReason(
            "archive", "its archive, which has yet to take what is committed"
        )
        bench.now = GAP_S
        bench.owner.ticked(bench.now)
        bench.silent()
        bench.owner.hold_back(False, bench.now)
        bench.silent()
        assert bench.owner.agenda.wake_at == 2 * GAP_S
        bench.offer(held(0))
        bench.only(Start)

    def test_a_gap_may_leave_a_letter(self) -> None:
        bench = Bench(order={"on_gap": "dead-letter"}).opened()
        bench.offer(held(2))
        bench.tick()
        bench.write()
        bench.committed()
        settle, _ = bench.out()
        assert settle == Settle((PendingDeadLetter("never came", run=0, span=Span(0, 1)),), ())

    @pytest.mark.parametrize("order, parked", [({"on_gap": "hold"}, ""), ({}, "by hand")])
    def test_an_owner_that_stands_still_looks_at_the_store(self, order: dict[str, Any], parked: str) -> None:
        """Whoever resumed the stream, or skipped the gap, may not have been able to say so."""
        bench = Bench(order=order).opened(parked=parked)
        bench.offer(held(2))
        bench.silent()
        for look in (1, 2):
            assert bench.owner.agenda.wake_at == LOOK_S * look
            bench.tick()
            bench.only(Peek)
            bench.owner.peeked(Checkpoint(KEY, epoch=1), bench.now)
            bench.silent()
        bench.tick()
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=3), bench.now)
        bench.only(CheckClaim)


class TestFailing:
    def test_the_head_stays_the_head_and_backs_off(self) -> None:
        bench = Bench().opened()
        message = held(0)
        bench.begin(message)
        bench.fail()
        bench.silent()
        assert not bench.owner.runs.is_gapped
        assert bench.owner.agenda.wake_at == RETRY_S
        bench.tick()
        assert bench.only(Run).fresh
        bench.fail()
        assert bench.owner.agenda.wake_at == RETRY_S + 2 * RETRY_S
        assert (message.tries, message.error, message.detail) == (2, "Boom", "trace")

    def test_spent_tries_are_skipped_then_buried_then_deleted(self) -> None:
        bench = Bench(max_tries=1).opened()
        message = held(0)
        bench.begin(message)
        bench.fail()
        commit = bench.write()
        assert commit.aside == (Aside(name(0), "Boom"),)
        assert commit.log == RunLog(0, 0, 0, (Span(0, 0),))
        assert (commit.done, commit.skipped, commit.starting) == (0, 1, "")
        bench.committed()
        letter = PendingDeadLetter("Boom", message, detail="trace", skipped=True)
        assert bench.out() == [Settle((letter,), (message,))]

    def test_no_retry_helps_a_permanent_failure(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.fail(permanent=True)
        assert bench.write().skipped == 1

    def test_those_before_the_failed_one_run_again_to_a_snapshot(self) -> None:
        bench = Bench(checkpoint_every=9).opened()
        bench.begin(held(0))
        bad = held(2)
        bench.offer(held(1), bad, held(3), held(4))
        bench.ran(state=b"0")
        bench.only(Run)
        bench.fail(results=1, permanent=True)
        run = bench.only(Run)
        assert [message.place.seq for message in run.messages] == [1]
        assert (run.fresh, run.state) == (True, b"0")
        bench.ran(state=b"1")
        assert [message.place.seq for message in bench.only(Run).messages] == [3, 4]
        bench.ran(2, state=b"3")
        commit = bench.write()
        assert [result.name for result in commit.results] == [name(0), name(1), name(3), name(4)]
        assert commit.aside == (Aside(name(2), "Boom"),)
        assert commit.state == b"3"

    def test_one_that_failed_behind_others_waits_before_its_next_try(self) -> None:
        bench = Bench(checkpoint_every=9).opened()
        bench.begin(held(0))
        bench.offer(held(1), held(2))
        bench.ran(state=b"0")
        bench.only(Run)
        bench.fail(results=1)
        bench.only(Run)  # the one before it, again
        bench.ran(state=b"1")
        assert bench.owner.agenda.wake_at == bench.now + RETRY_S
        assert not [command for command in bench.out() if isinstance(command, Run)]

    def test_a_snapshot_too_large_is_the_last_messages_failure(self) -> None:
        bench = Bench(max_state_bytes=2).opened()
        message = held(0)
        bench.begin(message)
        bench.ran(state=b"123")
        bench.silent()
        assert "max_state_bytes = 2" in message.error

    def test_a_handler_that_does_not_open_fails_the_head(self) -> None:
        bench = Bench().opened()
        message = held(0)
        bench.begin(message)
        bench.owner.load_failed("no model", "trace", 0)
        assert message.tries == 1
        assert bench.owner.agenda.wake_at == RETRY_S

    def test_a_failure_parks_the_stream_where_declared(self) -> None:
        bench = Bench(max_tries=1, on_failure="park").opened()
        message = held(0)
        bench.begin(message)
        bench.fail()
        commit = bench.write()
        assert commit.parked == f"{name(0)} failed: Boom"
        assert (commit.log, commit.aside, commit.skipped) == (RunLog(0, 0, -1), (), 0)
        bench.committed()
        bench.silent()
        assert len(bench.owner.inbox) == 1, "nothing is lost"

    def test_state_that_does_not_load_parks_the_stream(self) -> None:
        bench = Bench().opened(state=b"?")
        bench.begin(held(0))
        bench.owner.rejected("newer version", 0)
        assert bench.write().parked == "newer version"
        bench.committed()
        bench.silent()
        assert len(bench.owner.inbox) == 1

    def test_the_overflow_of_a_parked_stream_is_buried_as_parked(self) -> None:
        bench = Bench(order={"inbox_limit": 1}).opened(parked="by hand")
        bench.offer(held(0))
        bench.silent()
        message = held(1)
        bench.offer(message)
        commit = bench.write()
        assert commit.aside == (Aside(name(1), "parked: by hand"),)
        assert commit.parked == "by hand"
        bench.committed()
        letter = PendingDeadLetter("parked: by hand", message, waits=True)
        assert bench.out() == [Settle((letter,), (message,))]

    @pytest.mark.parametrize("log, parked", [(RunLog(0, 50, 60), ""), (None, "by hand")])
    def test_while_the_store_is_slow_the_batch_is_bounded(self, log: RunLog | None, parked: str) -> None:
        bench = Bench(order={"inbox_limit": 2}).opened(log=log, parked=parked)
        taken = [bench.owner.offer(held(seq), 0) for seq in range(8)]
        inbox = 2 if parked else 0
        assert taken == ["accepted"] * (3 + inbox) + ["full"] * (5 - inbox)


class TestSlotDeath:
    def test_the_guilty_message_spends_a_try(self) -> None:
        bench = Bench().opened()
        message = held(0)
        bench.begin(message)
        bench.owner.slot_died(True, "segfault", "core", 0)
        assert (message.tries, message.error) == (1, "segfault")
        bench.tick()
        assert bench.only(Run).fresh

    def test_a_slot_death_costs_other_streams_no_try(self) -> None:
        bench = Bench().opened()
        message = held(0)
        bench.begin(message)
        bench.owner.slot_died(False, "segfault", "core", 0)
        assert message.tries == 0
        assert bench.only(Run).fresh

    def test_an_idle_handler_is_opened_anew(self) -> None:
        bench = Bench().opened()
        handled(bench, held(0))
        bench.owner.unloaded()
        assert bench.begin(held(1)).fresh
        bench = Bench().opened()
        handled(bench, held(0))
        assert not bench.begin(held(1)).fresh

    def test_the_guilty_one_of_several_is_found_one_by_one(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.offer(held(1), held(2))
        bench.ran()
        bench.out()
        bench.owner.slot_died(True, "segfault", "core", 0)
        bench.silent()
        bench.committed()
        settle, start = bench.out()
        assert isinstance(settle, Settle)
        assert start == Start(name(1)), "marked by itself"
        bench.owner.started(1, 0)
        assert [message.place.seq for message in bench.only(Run).messages] == [1]
        bench.ran()
        bench.write()
        bench.committed()
        settle, start = bench.out()
        assert start == Start(name(2))
        bench.owner.started(1, 0)
        run = bench.only(Run)
        bench.owner.slot_died(True, "segfault", "core", 0)
        assert run.messages[0].tries == 1


class TestLosses:
    @pytest.mark.parametrize("stands", [None, Checkpoint(KEY, 1, 3), Checkpoint(KEY, 2, 4)])
    def test_a_store_that_has_lost_a_commit_is_opened_again(self, stands: Checkpoint | None) -> None:
        bench = Bench().opened(number=4)
        bench.owner.poked()
        bench.only(Peek)
        bench.owner.peeked(stands, 0)
        bench.only(CheckClaim)

    def test_a_commit_that_came_after_the_look_is_not_lost(self) -> None:
        bench = Bench().opened(number=4)
        bench.owner.poked()
        bench.only(Peek)
        handled(bench, held(0))
        bench.owner.peeked(Checkpoint(KEY, 1, 4), 0)
        bench.silent()


class TestJumps:
    def test_one_too_far_ahead_is_recorded_as_malformed_and_nothing_is_skipped(self) -> None:
        bench = Bench(order={"max_jump": 100}, on_late="discard").opened(log=RunLog(0, 0, 4))
        far = held(10**9)
        bench.offer(far)
        commit = bench.write()
        reason = "malformed: seq 1000000000 is more than 100 (max_jump) beyond 4, where the stream stood"
        assert commit.aside == (Aside(far.place.name, reason),)
        assert (commit.log, commit.skipped) == (RunLog(0, 0, 4), 0)
        bench.committed()
        assert bench.only(Settle).letters == (PendingDeadLetter(reason, far),)
        handled(bench, held(5))


class TestRestarts:
    """Numbers start anew, and messages carry no run."""

    ORDER: ClassVar[dict[str, Any]] = {"restart_after_s": 30.0}

    def bench(self, quiet_s: float = 30.0, parked: str = "") -> Bench:
        bench = Bench(order={**self.ORDER, "gap_timeout_s": 99.0})
        bench.only(Peek)
        bench.owner.peeked(None, 0)
        bench.only(Open)
        checkpoint = Checkpoint(KEY, epoch=1, log=RunLog(2, 0, 9), parked=parked)
        bench.owner.opened(checkpoint, 0, quiet_s)
        return bench

    def test_a_fallen_seq_after_a_quiet_time_begins_a_new_run(self) -> None:
        bench = self.bench()
        first, second = held(0, run=NO_RUN), held(1, run=NO_RUN)
        run = bench.begin(first)
        assert run.messages[0].place == Place(3, 0)
        bench.offer(second)
        bench.ran()
        _, write = bench.out()
        assert isinstance(write, Write)
        assert write.commit.log == RunLog(3, 0, 0)
        assert second.place == Place(3, 1)

    def test_without_the_quiet_time_it_is_a_duplicate(self) -> None:
        bench = self.bench(29.0)
        message = held(0, run=NO_RUN)
        bench.offer(message)
        bench.known()
        assert bench.only(Settle).duplicate
        assert message.place == Place(2, 0)
        bench.now = 1.0
        bench.offer(held(3, run=NO_RUN))
        assert len(bench.owner.inbox) == 1, "a second later it is not"

    def test_a_commit_and_what_waits_end_the_quiet(self) -> None:
        bench = self.bench()
        handled(bench, held(10, run=NO_RUN))
        bench.now = 29.0
        bench.offer(held(0, run=NO_RUN))
        bench.known()
        assert bench.only(Settle).duplicate
        bench.owner.settled(bench.now)
        bench.offer(held(12, run=NO_RUN))
        bench.now = 90.0
        bench.offer(held(1, run=NO_RUN))
        bench.known()
        assert bench.only(Settle).duplicate, "12 waits, so the old run goes on"

    def test_late_messages_end_no_quiet_as_duplicates_do(self) -> None:
        """A camera that restarts at once sends numbers from before the run's beginning without a pause."""
        bench = Bench(order={**self.ORDER, "gap_timeout_s": 99.0})
        bench.only(Peek)
        bench.owner.peeked(None, 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=1, log=RunLog(2, 5000, 5009)), 0, 0.0)
        for seq in range(30):
            bench.now = float(seq)
            message = held(seq, run=NO_RUN)
            bench.offer(message)
            [aside] = bench.write().aside
            assert aside.reason.startswith("late")
            bench.committed()
            bench.only(Settle)
            bench.owner.settled(bench.now)
        bench.now = 31.0
        message = held(31, run=NO_RUN)
        bench.offer(message)
        assert message.place.run == 3

    def test_what_repeats_the_last_begins_none(self) -> None:
        bench = self.bench()
        bench.offer(held(9, run=NO_RUN))
        bench.known()
        assert bench.only(Settle).duplicate

    def test_what_came_before_the_opening_is_judged_from_the_lowest_on(self) -> None:
        bench = Bench(order=self.ORDER)
        bench.only(Peek)
        bench.owner.peeked(None, 0)
        bench.only(Open)
        later, first = held(1, run=NO_RUN), held(0, run=NO_RUN)
        bench.offer(later, first)
        bench.owner.opened(Checkpoint(KEY, epoch=1, log=RunLog(2, 0, 9)), 0, 30.0)
        assert (first.place, later.place) == (Place(3, 0), Place(3, 1))

    def test_a_run_that_messages_carry_stands_and_is_counted_on_from(self) -> None:
        bench = self.bench()
        bench.offer(held(0, run=7))
        bench.tick()
        bench.only(Start)
        bench.owner.started(1, bench.now)
        bench.only(Run)
        bench.ran()
        bench.write()
        bench.committed()
        bench.offer(held(5, run=7))
        assert len(bench.owner.inbox) == 1
        bench.offer(held(6, run=NO_RUN))
        assert {held.place for held in bench.owner.inbox.to_extend()} == {Place(7, 5), Place(7, 6)}

    def test_what_comes_again_during_a_transfer_that_came_to_nothing_is_held_once(self) -> None:
        bench = self.bench(0.0)
        bench.offer(held(12, "first", run=NO_RUN))
        bench.owner.move("n2", bench.now)
        bench.only(Transfer)
        bench.offer(held(12, "second", run=NO_RUN))
        bench.owner.transferred("kept", bench.now)
        (message,) = bench.owner.inbox.to_extend()
        assert [receipt.receipt for receipt in message.receipts] == ["first", "second"]
        bench.tick()
        assert bench.write().starting == name(12, 2)

    def test_whoever_is_next_to_own_it_judges_for_itself(self) -> None:
        bench = self.bench()
        waiting = held(10, run=NO_RUN)
        bench.begin(waiting)
        bench.ran()
        bench.only(Write)
        bench.owner.fenced(0)
        assert waiting.place == Place(NO_RUN, 10)
        bench.owner.drop()
        messages = [command.messages for command in bench.out() if isinstance(command, Return)]
        assert messages == [(waiting,)]

    def test_a_new_run_is_known_after_a_commit_of_an_operator_ended_the_quiet_time(self) -> None:
        bench = self.bench(parked="paused")
        bench.offer(held(0, run=NO_RUN), held(1, run=NO_RUN))
        bench.silent()
        bench.owner.fenced(0)
        bench.offer(held(1, "again", run=NO_RUN), held(2, run=NO_RUN))
        bench.only(CheckClaim)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=3, number=1, log=RunLog(2, 0, 9)), 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=4, number=1, log=RunLog(2, 0, 9)), 0, 0.0)
        assert bench.only(Start).head == name(0, 3), "the old run is not waited for"
        receipts = {held.place: {r.receipt for r in held.receipts} for held in bench.owner.inbox.to_extend()}
        assert receipts == {Place(3, 0): {"r-1.0"}, Place(3, 1): {"r-1.1", "again"}, Place(3, 2): {"r-1.2"}}

    def test_a_new_run_is_known_to_whom_it_is_handed_off(self) -> None:
        bench = self.bench(parked="paused")
        message = held(0, run=NO_RUN)
        bench.offer(message)
        bench.owner.move("n2", 0)
        bench.only(Transfer)
        bench.owner.transferred("done", 0)
        assert bench.out() == [HandOff("n2", (message,)), Dropped()]
        assert (message.place, message.counted) == (Place(3, 0), True)
        other = self.bench(0.0)
        other.offer(message, held(1, run=NO_RUN))
        assert [held.place for held in other.owner.inbox.to_extend()] == [Place(3, 0), Place(3, 1)]

    def test_what_came_again_during_a_transfer_is_held_once_after_another_opening(self) -> None:
        bench = self.bench(0.0)
        message = held(12, "first", run=NO_RUN)
        bench.offer(message)
        bench.owner.move("n2", 0)
        bench.only(Transfer)
        bench.offer(held(12, "second", run=NO_RUN), held(13, run=NO_RUN))
        bench.owner.fenced(0)
        assert len(bench.owner.inbox) == 2
        assert [receipt.receipt for receipt in message.receipts] == ["first", "second"]

    def test_what_finds_no_room_goes_as_it_came(self) -> None:
        bench = Bench(order={**self.ORDER, "inbox_limit": 1}).opened(log=RunLog(2, 0, 9))
        bench.offer(held(12, run=NO_RUN))
        message = held(13, run=NO_RUN)
        assert bench.owner.offer(message, 0) == "full"
        assert message.place == Place(NO_RUN, 13)


class TestStandstill:
    """What a stream waits for, at each point of its way."""

    def test_nothing_to_do_is_no_standstill_and_neither_is_work(self) -> None:
        bench = Bench().opened()
        assert bench.owner.wait_reason() is None
        bench.begin(held(0))
        assert bench.owner.wait_reason() is None
        bench.ran()
        bench.offer(held(1))
        assert self.kind(bench) == "store", "1 waits for the answer to the commit of 0"
        assert bench.owner.wait_reason() == WaitReason(
            "store", "the state store, which has not answered yet", since=bench.now
        )

    def test_the_way_to_a_first_run(self) -> None:
        bench = Bench(needs_models=True)
        bench.offer(held(0))
        assert self.kind(bench) == "opening"
        bench.opened()
        bench.only(LoadModels)
        assert self.kind(bench) == "model"
        bench.owner.models_failed("no file", 0)
        assert bench.owner.wait_reason() == WaitReason("model", "no file")
        bench.owner.unblocked(0)
        bench.owner.models_loaded(0)
        assert self.kind(bench) == "store"

    def test_a_wait_at_a_gap_has_its_end(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(6))
        assert bench.owner.wait_reason() == WaitReason("gap", "seq 5 of run 0", GAP_S, 0.0)
        bench.owner.vanished()
        assert self.kind(bench) == "membership"

    def test_a_failed_message_and_when_it_is_tried_again(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.fail()
        assert bench.owner.wait_reason() == WaitReason(
            "retry", f"the next try of {name(0)}, which failed: Boom", RETRY_S
        )

    def test_a_parked_stream_even_if_nothing_waits(self) -> None:
        bench = Bench().opened(parked="by hand")
        assert bench.owner.wait_reason() == WaitReason("parked", "parked: by hand")

    @pytest.mark.parametrize("target, text", [("n2", "its move to n2"), ("", "its release")])
    def test_a_wait_while_moving_is_described(self, target: str, text: str) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(6))
        bench.owner.move(target, 0)
        assert bench.owner.wait_reason() == WaitReason("moving", text)

    @staticmethod
    def kind(bench: Bench) -> str:
        stands = bench.owner.wait_reason()
        assert stands is not None
        return stands.kind


class TestModels:
    def test_they_are_loaded_before_anything_is_counted(self) -> None:
        bench = Bench(needs_models=True).opened()
        bench.silent()
        bench.offer(held(0))
        bench.only(LoadModels)
        bench.offer(held(1))
        bench.silent()
        bench.owner.models_loaded(0)
        assert bench.only(Start) == Start(name(0))
        bench.owner.started(1, 0)
        assert len(bench.only(Run).messages) == 2

    def test_one_that_does_not_load_costs_no_try_and_is_tried_again_once_told(self) -> None:
        bench = Bench(needs_models=True, max_tries=1).opened()
        message = held(0)
        bench.offer(message)
        bench.only(LoadModels)
        bench.owner.models_failed("no file", 0)
        assert bench.owner.runs.obstacle == "no file"
        bench.offer(held(1))
        bench.silent()
        bench.owner.unblocked(0)
        bench.only(LoadModels)
        bench.owner.models_loaded(0)
        bench.only(Start)
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.owner.models_failed("no file again", 0)
        assert (message.tries, message.life) == (0, Life.WAITING)
        bench.owner.unblocked(0)
        bench.only(LoadModels)

    def test_what_was_handled_before_the_load_failed_is_committed(self) -> None:
        bench = Bench()
        bench.offer(held(0), held(1), held(2))
        bench.opened()
        bench.only(Start)
        bench.owner.started(1, 0)
        assert len(bench.only(Run).messages) == 3
        bench.owner.models_failed("no file", 0, handled=1)
        assert [message.place.seq for message in bench.only(Run).messages] == [0]
        assert bench.owner.runs.obstacle == ""
        bench.ran()
        run, _ = bench.out()
        assert isinstance(run, Run)
        bench.owner.models_failed("no file", 0)
        assert bench.owner.runs.obstacle == "no file"

    @pytest.mark.parametrize("is_loaded", [True, False])
    def test_one_that_runs_alone_is_started_anew_after_it_waited_for_a_model(self, is_loaded: bool) -> None:
        """While it waits, another stream's head may run alone on the node."""
        bench = Bench(needs_models=True)
        bench.opened(started=Started(name(0), ALONE_OPENINGS, 1))
        bench.offer(held(0))
        bench.only(LoadModels)
        bench.owner.models_loaded(0)
        assert bench.only(Start).alone
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        bench.only(Run)
        if is_loaded:
            bench.owner.models_failed("no file", 0)
            assert not bench.at_risk()
            bench.owner.unblocked(0)
        else:
            bench.owner.slot_died(False, "killed", "", 0)
        bench.only(LoadModels)
        assert not bench.at_risk()
        bench.offer(held(-1))  # late: a commit of that alone leaves the mark
        commit = bench.write()
        assert commit.starting == name(0)
        bench.owner.models_loaded(0)
        bench.silent()
        bench.committed()
        _, start = bench.out()
        assert start == Start(name(0), alone=True)
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        assert bench.at_risk()
        bench.only(Run)

    def test_a_stream_that_waits_for_a_model_leaves_by_one_commit(self) -> None:
        """The mark of a head that gave up its turn stood after every commit, and each led to the next."""
        bench = Bench(needs_models=True)
        bench.opened(started=Started(name(0), ALONE_OPENINGS, 1))
        bench.offer(held(0))
        bench.only(LoadModels)
        bench.owner.models_loaded(0)
        bench.only(Start)
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        bench.only(Run)
        bench.owner.models_failed("no file", 0)
        bench.owner.move("n2", 0)
        assert bench.write().starting == ""
        bench.committed()
        assert bench.only(Transfer) == Transfer("n2")

    def test_a_slot_that_is_replaced_has_none(self) -> None:
        bench = Bench(needs_models=True).opened()
        bench.offer(held(0))
        bench.only(LoadModels)
        bench.owner.slot_died(False, "segfault", "", 0)
        bench.only(LoadModels)
        bench.owner.models_loaded(0)
        bench.only(Start)
        bench.owner.unloaded()
        bench.owner.started(1, 0)
        bench.only(LoadModels)

    def test_a_refused_commit_forgets_a_load_whose_answer_will_not_count(self) -> None:
        bench = Bench(needs_models=True).opened()
        bench.offer(held(0))
        bench.only(LoadModels)
        bench.owner.models_loaded(0)
        bench.only(Start)
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.ran()
        bench.write()
        bench.owner.unloaded()
        bench.offer(held(1))
        bench.only(LoadModels)
        bench.owner.refused("too large", 0)
        assert LoadModels() in bench.out()

    def test_a_stream_without_its_model_can_move(self) -> None:
        bench = Bench(needs_models=True).opened()
        message = held(0)
        bench.offer(message)
        bench.only(LoadModels)
        bench.owner.models_failed("no file", 0)
        bench.owner.move("n2", 0)
        assert bench.out() == [Transfer("n2")]
        bench.owner.transferred("done", 0)
        assert bench.out() == [HandOff("n2", (message,)), Dropped()]


class TestTooLarge:
    def run_together(self, bench: Bench, *messages: Held) -> Commit:
        bench.offer(*messages)
        bench.only(Start)
        bench.owner.started(1, 0)
        assert bench.only(Run).messages == messages
        bench.ran(len(messages), state=b"all")
        return bench.write()

    def test_the_guilty_message_of_a_refused_commit_is_found(self) -> None:
        bench = Bench(max_tries=1).opened(state=b"answered", state_version=7)
        messages = held(0), held(1)
        refused = self.run_together(bench, *messages)
        bench.owner.refused("too large", 0)
        assert (bench.phase(), bench.owner.generation) == (OwnerPhase.OWNER, 1)
        assert bench.only(Run) == Run(messages[:1], True, b"answered", 7, 1), "by itself"
        bench.ran(state=b"0")
        commit = bench.write()
        assert (commit.number, commit.log) == (refused.number, RunLog(0, 0, 0))
        assert commit.id != refused.id, "another content, another id"
        bench.committed()
        _, start = bench.out()
        assert start == Start(name(1))
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.ran(state=b"01")
        bench.write()
        bench.owner.refused("too large", 0)
        commit = bench.write()
        assert commit.aside == (Aside(name(1), "too large"),)
        assert (commit.log, commit.results) == (RunLog(0, 0, 1, (Span(1, 1),)), ())
        assert commit.state is None
        assert [message.tries for message in messages] == [0, 1]
        assert bench.owner.commits.state == b"0"

    def test_it_is_tried_again_as_what_fails_is(self) -> None:
        bench = Bench().opened()
        message = held(0)
        bench.begin(message)
        bench.ran()
        bench.write()
        bench.owner.refused("too large", 0)
        bench.silent()
        bench.tick()
        assert bench.only(Run).messages == (message,)

    def test_what_runs_and_what_is_appended_is_undone_in_its_order(self) -> None:
        bench = Bench(order={"kind": "absent"}, checkpoint_every=9).opened()
        messages = [Held(Place(0, 0, letter), b"", {}, [Receipt(letter, 100.0)]) for letter in "cbafed"]
        bench.begin(messages[0])
        bench.offer(*messages[1:3])
        bench.ran()
        assert len(bench.only(Run).messages) == 2
        bench.tick()
        bench.write()
        bench.offer(*messages[3:5])
        bench.ran(2)
        assert len(bench.only(Run).messages) == 2
        bench.offer(messages[5])
        bench.owner.refused("too large", 0)
        bench.silent()
        bench.tick()
        assert [message.place.id for message in bench.only(Run).messages] == list("cbafed")

    @pytest.mark.parametrize("log", [None, RunLog(0, 0, 5)])
    def test_where_a_run_starts_is_waited_for_once(self, log: RunLog | None) -> None:
        """Else each try of a first message that is too large takes as long as a gap."""
        bench = Bench(order={"first": "lowest"}).opened(log=log)
        message = held(3, run=1)
        bench.offer(message)
        bench.tick()
        assert bench.now == GAP_S
        bench.only(Start)
        bench.owner.started(1, bench.now)
        bench.only(Run)
        bench.ran()
        bench.write()
        bench.owner.refused("too large", bench.now)
        bench.tick()
        assert bench.only(Run).messages == (message,)
        assert bench.now == message.retry_at < GAP_S + 2 * RETRY_S

    def test_what_was_late_or_too_much_stays_on_record(self) -> None:
        bench = Bench(order={"kind": "increasing"}, checkpoint_every=9).opened(log=RunLog(0, 0, 5))
        bench.begin(held(6))
        bench.offer(held(3))
        bench.ran()
        bench.write()
        bench.offer(held(4))
        bench.owner.refused("too large", 0)
        assert [aside.name for aside in bench.write().aside] == [name(3), name(4)]

    def test_an_owner_that_may_have_lost_its_claim_asks_again(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.ran()
        bench.write()
        bench.owner.vanished()
        bench.only(Reclaim)
        bench.owner.refused("too large", 0)
        assert bench.only(Reclaim).epoch == 1, "the answer to the first is of a generation that is over"

    def test_records_alone_are_never_too_large(self) -> None:
        bench = Bench(order={"kind": "increasing"}).opened(log=RunLog(0, 0, 5))
        bench.offer(held(3))
        bench.write()
        bench.owner.refused("too large", 0)
        bench.only(CheckClaim)

    def test_of_several_that_led_to_a_large_snapshot_none_is_blamed(self) -> None:
        bench = Bench(max_state_bytes=2, max_tries=1).opened()
        messages = held(0), held(1)
        bench.offer(*messages)
        bench.only(Start)
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.ran(2, state=b"123")
        assert [message.tries for message in messages] == [0, 0]
        assert bench.only(Run).messages == messages[:1], "each by itself"


class TestPoison:
    def test_an_opening_that_finds_a_mark_runs_each_message_alone(self) -> None:
        """Whatever the queue says of it: a client's message that is asked for again looks like a new one."""
        bench = Bench()
        bench.offer(held(0, receives=2), held(1), held(2))
        bench.opened(started=Started(name(0), 1))
        assert bench.only(Start) == Start(name(0))
        assert bench.at_risk()
        bench.owner.started(2, 0)
        assert len(bench.only(Run).messages) == 1
        assert bench.at_risk()
        bench.ran()
        assert bench.write().starting == "", "the next suspect is counted by its own start"
        assert bench.at_risk() == name(0)
        bench.committed()
        settle, start = bench.out()
        assert isinstance(settle, Settle)
        assert start == Start(name(1))
        assert bench.at_risk() == name(1)
        bench.owner.started(1, 0)
        assert len(bench.only(Run).messages) == 1
        bench.ran()
        assert bench.write().starting == ""

    def test_all_that_may_have_been_begun_under_one_mark_runs_alone(self) -> None:
        """A node that gets no answer to a commit has begun no more when it waits for it."""
        bench = Bench().opened()
        bench.begin(held(0))
        bench.offer(*(held(seq) for seq in range(1, RUN_LIMIT)))
        bench.ran()
        begun = 1
        for command in bench.out():  # a commit, which nobody answers, and the next run
            begun += len(command.messages) if isinstance(command, Run) else 0
        while True:
            bench.offer(*(held(seq) for seq in range(begun, begun + RUN_LIMIT)))
            bench.ran(begun - 1 if begun == RUN_LIMIT else RUN_LIMIT)
            runs = [command for command in bench.out() if isinstance(command, Run)]
            if not runs:
                break
            begun += len(runs[0].messages)
        assert RUN_LIMIT < begun <= REACH * RUN_LIMIT

    @pytest.mark.parametrize("kind", ["dense", "increasing", "absent"])
    def test_behind_the_reach_of_a_mark_messages_run_together(self, kind: str) -> None:
        bench = Bench(order={"kind": kind, "inbox_limit": 1000}, checkpoint_every=40)
        bench.opened(log=RunLog(0, 0, 0), started=Started(name(1), 1))
        bench.offer(held(1))
        for seq in range(1, REACH * 40):
            assert bench.out()[-1] == Start(name(seq))
            bench.owner.started(1, 0)
            assert [message.place.seq for message in bench.only(Run).messages] == [seq]
            bench.offer(held(seq + 1))
            bench.ran()
            bench.write()
            bench.committed()
        bench.out()
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.offer(*(held(REACH * 40 + ahead) for ahead in (1, 2, 3)))
        bench.ran()
        assert len(bench.only(Run).messages) == 3

    def test_without_a_mark_nothing_is_suspected_but_what_was_begun(self) -> None:
        bench = Bench()
        bench.offer(held(0, receives=2), held(1, receives=2), held(2), held(3))
        bench.opened(suspects=(Started(name(2), 3),))
        assert not bench.only(Start).alone
        bench.owner.started(1, 0)
        assert len(bench.only(Run).messages) == 2
        bench.ran(2)
        bench.write()
        bench.committed()
        _, start = bench.out()
        assert start == Start(name(2), alone=True)

    @pytest.mark.parametrize("known", [held(7, receives=2), asked(7)])
    def test_without_an_order_what_may_have_been_delivered_before_runs_alone(self, known: Held) -> None:
        bench = Bench(order={"kind": "absent"}).opened(started=Started("0:m", 1))
        for number in itertools.count(100):
            bench.offer(held(number))
            if not bench.only(Start).alone:
                break  # many were alone
            bench.owner.started(1, 0)
            bench.ran()
            bench.write()
            bench.committed()
            bench.out()
        bench.offer(known, held(6))
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.ran()
        assert bench.write().starting == ""
        bench.committed()
        _, start = bench.out()
        assert start == Start(known.place.name)
        bench.owner.started(1, 0)
        assert bench.only(Run).messages == (known,)

    def test_where_a_run_starts_is_found_out_once(self) -> None:
        """Every node that a first message kills would wait for it again."""
        bench = Bench(order={"first": "lowest"}).opened(started=Started(name(3), 1))
        bench.offer(held(4))
        bench.silent()
        bench.offer(held(2))
        assert bench.only(Start).head == name(2)
        bench = Bench().opened(log=RunLog(0, 0, 5), started=Started(name(0, run=1), 1))
        bench.offer(held(0, run=1))
        assert bench.only(Start).head == name(0, run=1)

    @pytest.mark.parametrize("openings", [1, ALONE_OPENINGS])
    def test_one_begun_often_is_tried_alone_on_its_node(self, openings: int) -> None:
        bench = Bench()
        bench.offer(held(0, receives=2))
        bench.opened(started=Started(name(5), 1), suspects=(Started(name(0), openings),))
        assert bench.only(Start).alone == (openings >= ALONE_OPENINGS)

    @pytest.mark.parametrize(
        "max_starts, openings, last",
        [(5, 3, False), (5, 4, True), (5, 5, False), (2, 1, True), (1, 1, False)],
    )
    def test_one_that_the_next_death_is_blamed_on_runs_with_nothing_beside_it(
        self, max_starts: int, openings: int, last: bool
    ) -> None:
        bench = Bench(max_starts=max_starts).opened(started=Started(name(0), openings))
        bench.offer(held(0))
        start = bench.only(Start)
        assert start.last == last
        assert start.alone or not last

    def test_what_was_never_begun_runs_beside_others_whatever_the_limit(self) -> None:
        bench = Bench(max_starts=1).opened()
        bench.offer(held(0))
        assert bench.only(Start) == Start(name(0))

    @pytest.mark.parametrize("waits_for", ["its next try", "a model", "the archive"])
    def test_a_head_that_waits_in_its_last_turn_is_blamed_for_nothing(self, waits_for: str) -> None:
        """It has not ended the node. What does so while it waits would be laid to it."""
        bench = Bench(needs_models=waits_for == "a model")
        checkpoint = Checkpoint(KEY, epoch=6, started=Started(name(0), 4, 5))
        bench.opened(started=checkpoint.started)
        bench.offer(held(0))
        if waits_for == "a model":
            bench.only(LoadModels)
            bench.owner.models_loaded(0)
        last = Start(name(0), alone=True, last=True)
        assert bench.only(Start) == last
        checkpoint = ledger.start(checkpoint, KEY, 6, last.head)
        if waits_for == "the archive":
            bench.owner.hold_back(True, 0)
        bench.owner.started(5, 0)
        if waits_for == "its next try":
            bench.only(Run)
            bench.fail()
        elif waits_for == "a model":
            bench.only(Run)
            bench.owner.models_failed("no file", 0)
        taken_off = bench.only(Start)
        assert taken_off == Start(NOTHING.name)
        assert bench.at_risk() == name(0), "nothing else runs before the store has taken it off"
        checkpoint = ledger.start(checkpoint, KEY, 6, taken_off.head)
        assert checkpoint.suspects == (Started(name(0), 4, 5),)
        bench.owner.started(1, 0)
        bench.silent()
        assert bench.at_risk() == ""
        if waits_for == "its next try":
            bench.tick()
        elif waits_for == "a model":
            bench.owner.unblocked(0)
            bench.only(LoadModels)
            bench.owner.models_loaded(0)
        else:
            bench.owner.hold_back(False, 0)
        assert bench.only(Start) == last, "it is counted again"
        assert ledger.start(checkpoint, KEY, 6, last.head).started == Started(name(0), 5, 6)
        bench.owner.started(5, bench.now)
        assert bench.at_risk() == name(0)
        bench.only(Run)

    def test_an_opening_that_was_fenced_ends_no_node(self) -> None:
        """An operator pauses the stream while its head runs. That is laid to no message."""
        bench = Bench().opened(started=Started(name(0), 4))
        bench.offer(held(0))
        for epoch, openings in ((2, 5), (3, 6), (4, 7)):
            assert bench.only(Start) == Start(name(0), alone=True, last=True)
            bench.owner.started(openings, 0)
            bench.only(Run)
            bench.owner.fenced(0)
            bench.only(CheckClaim)
            bench.owner.claim_checked(True, 0)
            bench.opened(epoch=epoch, started=Started(name(0), openings, epoch - 1))
        bench.only(Start)
        bench.owner.started(8, 0)
        bench.only(Run)

    @pytest.mark.parametrize("ran", [True, False], ids=["its run was begun", "it was only asked for"])
    def test_an_opening_counts_as_outlived_once_its_head_is_counted(self, ran: bool) -> None:
        bench = Bench().opened(started=Started(name(0), 4))
        bench.offer(held(0))
        bench.only(Start)
        if ran:
            bench.owner.started(5, 0)
            bench.only(Run)
        bench.owner.drop()
        assert +bench.owner.blame.survived == ({name(0): 1} if ran else {})

    def test_what_ended_a_node_is_passed_over_though_openings_were_fenced(self) -> None:
        """A new owner has outlived nothing."""
        bench = Bench().opened(started=Started(name(0), 6))
        bench.offer(held(0))
        bench.only(Start)
        bench.owner.started(7, 0)
        assert bench.write().aside[0].reason.startswith("poison: 6 openings")

    def test_a_stream_that_moves_takes_its_head_s_count_along(self) -> None:
        bench = Bench().opened(started=Started(name(0), 4))
        bench.offer(held(0))
        bench.only(Start)
        bench.owner.started(5, 0)
        bench.only(Run)
        bench.fail()
        assert bench.only(Start) == Start(NOTHING.name)
        bench.owner.move("n2", 0)
        bench.silent()
        bench.owner.started(1, 0)
        assert bench.write().starting == ""
        bench.committed()
        assert bench.only(Transfer) == Transfer("n2")

    def test_a_message_that_kills_nodes_is_passed_over(self) -> None:
        bench = Bench(max_starts=2)
        message = held(0, receives=3)
        bench.offer(message, held(1))
        bench.opened(started=Started(name(0), 2))
        bench.only(Start)
        bench.owner.started(3, 0)
        commit = bench.write()
        (aside,) = commit.aside
        assert aside.reason.startswith("poison: 2 openings")
        assert commit.starting == "", "the next is counted by its own start"
        bench.committed()
        settle, start = bench.out()
        assert isinstance(settle, Settle)
        assert settle.messages == (message,)
        assert start == Start(name(1))

    def test_a_message_that_left_while_it_was_counted(self) -> None:
        bench = Bench(order={"inbox_limit": 1, "kind": "increasing"}, max_starts=1)
        bench.opened(log=RunLog(0, 0, 0))
        bench.offer(held(5))
        bench.only(Start)
        bench.offer(held(4))
        bench.only(Return)
        bench.owner.started(9, 0)
        assert [message.place.seq for message in bench.only(Run).messages] == [4]

    def test_a_suspect_that_backs_off_stays_at_risk(self) -> None:
        bench = Bench()
        bench.offer(held(0, receives=2))
        bench.opened(started=Started(name(0), 1))
        bench.only(Start)
        bench.owner.started(2, 0)
        bench.only(Run)
        bench.fail()
        assert bench.at_risk()
        bench.tick()
        bench.only(Run)

    def test_one_that_runs_alone_is_at_risk_until_its_commit_is_answered(self) -> None:
        """Were another stream's suspect to end the node before that, this one would be blamed."""
        bench = Bench().opened(started=Started(name(0), ALONE_OPENINGS))
        bench.offer(held(0))
        assert bench.only(Start).alone
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        bench.only(Run)
        bench.ran()
        bench.write()
        assert bench.at_risk() == name(0)
        bench.owner.refused("too large", 0)
        bench.silent()
        assert bench.at_risk() == name(0)
        bench.tick()
        bench.only(Run)
        bench.ran()
        assert bench.write().starting == ""
        assert bench.at_risk() == name(0)
        bench.committed()
        assert bench.at_risk() == ""

    @pytest.mark.parametrize("ends", ["moves", "parks"])
    def test_one_that_does_not_run_after_all_is_at_risk_until_its_mark_is_gone(self, ends: str) -> None:
        bench = Bench(max_tries=1 if ends == "parks" else 2, on_failure="park")
        bench.opened(started=Started(name(0), ALONE_OPENINGS))
        bench.offer(held(0))
        bench.only(Start)
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        bench.only(Run)
        bench.fail()
        if ends == "moves":
            bench.owner.move("n2", 0)
        assert bench.write().starting == ""
        assert bench.at_risk() == name(0)
        bench.committed()
        assert bench.at_risk() == ""

    def test_one_that_left_is_not_at_risk(self) -> None:
        """Else others would wait for it."""
        bench = Bench(order={"inbox_limit": 1, "kind": "increasing"})
        bench.opened(log=RunLog(0, 0, 0), started=Started(name(5), ALONE_OPENINGS))
        bench.offer(held(5))
        bench.only(Start)
        bench.owner.started(ALONE_OPENINGS + 1, 0)
        bench.only(Run)
        bench.fail()
        lower = held(4)
        lower.after = 3  # which its queue has yet to deliver
        bench.offer(lower)
        bench.only(Return)
        assert bench.at_risk() == ""

    def test_the_suspect_is_counted_before_a_commit_may_name_it(self) -> None:
        bench = Bench()
        bench.offer(held(1), held(5, receives=2))
        bench.opened(log=RunLog(0, 2, 4), started=Started(name(5), 4))
        assert bench.only(Start).head == name(5)
        bench.owner.started(5, 0)
        run, write = bench.out()
        assert isinstance(run, Run)
        assert isinstance(write, Write)
        assert write.commit.starting == name(5)

    def test_commits_keep_the_count_of_a_suspect_that_has_not_come(self) -> None:
        bench = Bench().opened(log=RunLog(0, 2, 4), started=Started(name(5), 4))
        bench.offer(held(1))
        assert bench.write().starting == name(5)
        bench.committed()
        bench.only(Settle)
        bench.offer(held(5))
        assert bench.only(Start).head == name(5)

    def test_another_head_is_started_before_it_takes_the_mark(self) -> None:
        bench = Bench(order={"kind": "increasing"})
        bench.offer(held(1), held(6))
        bench.opened(log=RunLog(0, 2, 4), started=Started(name(5), 4))
        assert bench.write().starting == name(5)
        bench.committed()
        settle, start = bench.out()
        assert isinstance(settle, Settle)
        assert start == Start(name(6))
        bench.owner.started(1, 0)
        bench.only(Run)
        bench.ran()
        assert bench.write().starting == ""


class TestLife:
    def test_a_step_that_the_table_does_not_know_is_a_mistake(self) -> None:
        message = held(0)
        with pytest.raises(AssertionError, match=r"received, so can't be deleted"):
            message.become(Life.DELETED)

    def test_an_owner_that_moves_expects_to_lose_its_claim(self) -> None:
        bench = Bench().opened()
        before = bench.owner.leaving
        bench.owner.move("n2", 0)
        assert (before, bench.owner.leaving) == (False, True)


class TestFencing:
    def test_a_refused_commit_begins_anew_with_all_that_is_held(self) -> None:
        bench = Bench().opened()
        message, late = held(0), held(3)
        bench.begin(message)
        bench.offer(late)
        bench.ran()
        bench.write()
        message.tries, message.spent = 2, True
        bench.owner.fenced(0)
        bench.only(CheckClaim)
        assert (bench.phase(), bench.owner.generation, len(bench.owner.inbox)) == (OwnerPhase.CLAIMED, 1, 2)
        assert (message.tries, message.spent) == (0, False)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=2), 0)
        assert bench.only(Open).expect == 2
        bench.owner.opened(Checkpoint(KEY, epoch=3, number=1, log=RunLog(0, 0, 0)), 0)
        assert bench.out() == [Settle((), (message,), duplicate=True)], "the new opening knows it as done"
        assert len(bench.owner.inbox) == 1

    def test_a_vanished_claim_stops_acceptance_until_the_epoch_is_seen(self) -> None:
        bench = Bench().opened(epoch=4)
        bench.owner.vanished()
        assert bench.only(Reclaim).epoch == 4
        bench.owner.vanished()
        bench.only(Reclaim)  # what is answered to the first may be out of date by now
        assert bench.owner.offer(held(0), 0) == "no"
        assert not bench.owner.move("n2", 0)
        bench.owner.claim_checked(True, 0)
        bench.silent()
        bench.offer(held(0))

    def test_a_claim_that_is_anothers_ends_it(self) -> None:
        bench = Bench().opened()
        message = held(3)
        bench.offer(message)
        bench.owner.vanished()
        bench.only(Reclaim)
        bench.owner.claim_checked(False, 0)
        assert bench.out() == [Return((message,)), Dropped()]
        bench.owner.vanished()
        bench.silent()

    def test_before_an_opening_anything_on_its_way_is_void(self) -> None:
        bench = Bench()
        bench.out()
        bench.owner.peeked(None, 0)
        bench.out()
        bench.owner.vanished()
        assert bench.only(Reclaim).epoch is None
        assert (bench.phase(), bench.owner.generation) == (OwnerPhase.CLAIMED, 1)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)

    def test_an_operators_change_is_seen_by_its_epoch(self) -> None:
        bench = Bench().opened(epoch=2)
        bench.owner.poked()
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=2), 0)
        bench.silent()
        bench.owner.peeked(Checkpoint(KEY, epoch=4), 0)
        bench.only(CheckClaim)
        assert bench.phase() is OwnerPhase.CLAIMED
        bench.owner.poked()
        bench.silent()


class TestMoving:
    def test_a_move_hands_off_what_waits(self) -> None:
        bench = Bench().opened()
        waiting = held(3)
        bench.offer(waiting)
        assert bench.owner.move("n2", 0)
        assert bench.only(Transfer).target == "n2"
        assert bench.phase() is OwnerPhase.TRANSFERRING
        meanwhile = held(0)
        bench.offer(meanwhile)
        bench.silent()
        assert not bench.owner.move("n3", 0)
        bench.owner.transferred("done", 0)
        assert bench.out() == [HandOff("n2", (waiting, meanwhile)), Dropped()]

    def test_it_waits_for_a_message_boundary_and_every_answer(self) -> None:
        bench = Bench().opened()
        bench.begin(held(0))
        bench.offer(held(1))
        bench.owner.move("n2", 0)
        bench.silent()
        bench.ran()
        commit = bench.write()
        assert (commit.done, commit.starting) == (1, "")
        bench.committed()
        settle, transfer = bench.out()
        assert isinstance(settle, Settle)
        assert transfer == Transfer("n2")

    def test_a_move_does_not_count_against_the_head(self) -> None:
        """Its mark is taken away: the new owner finds nothing started."""
        bench = Bench().opened()
        bench.begin(held(0))
        bench.fail()
        bench.owner.move("n2", 0)
        commit = bench.write()
        assert (commit.starting, commit.log, commit.state) == ("", RunLog(0, 0, -1), None)
        bench.committed()
        assert bench.out() == [Transfer("n2")]

    def test_a_move_without_a_target_releases_the_key(self) -> None:
        bench = Bench().opened()
        waiting = held(3)
        bench.offer(waiting)
        bench.owner.move("", 0)
        bench.only(Release)
        assert bench.phase() is OwnerPhase.RELEASING
        bench.owner.released()
        assert bench.out() == [Return((waiting,)), Dropped()]

    def test_late_messages_are_still_recorded_while_moving(self) -> None:
        bench = Bench().opened(log=RunLog(0, 5, 9))
        bench.begin(held(10))
        bench.owner.move("n2", 0)
        bench.offer(held(1))
        bench.ran()
        assert len(bench.write().aside) == 1

    def test_a_target_that_is_gone_changes_nothing(self) -> None:
        bench = Bench().opened()
        bench.owner.move("n2", 0)
        bench.out()
        bench.offer(held(0))
        bench.owner.transferred("kept", 0)
        assert bench.phase() is OwnerPhase.OWNER
        bench.only(Start)

    @pytest.mark.parametrize("knows_deep", [False, True])
    def test_the_queue_keeps_the_messages_of_a_key_for_a_target_that_knows_of_them(
        self, knows_deep: bool
    ) -> None:
        bench = reserved(Bench(order={"inbox_limit": 1}, by_key=True))
        bench.owner.move("n2", 0, knows_deep=knows_deep)
        assert [message.place.seq for message in bench.only(PutBack).messages] == [2]
        bench.owner.were_put_back(0)
        bench.only(Transfer)
        bench.owner.transferred("done", 0)
        ended = [] if knows_deep else [Unreserve()]
        assert bench.out() == [HandOff("n2", ()), *ended, Dropped()]

    def test_what_was_put_back_before_a_move_that_fails_is_waited_for(self) -> None:
        bench = Bench(order={"kind": "absent", "inbox_limit": 1}, by_key=True).opened()
        bench.begin(by_turn("a", 1))
        bench.offer(by_turn("b", 2))
        assert bench.owner.offer(by_turn("c", 9), 0) == "full"
        bench.only(Reserve)
        bench.owner.reserved(True, 0)
        bench.owner.move("n2", 0)
        bench.ran()
        bench.write()
        bench.committed()
        assert [message.place.id for message in bench.out()[1].messages] == ["b"]  # type: ignore[union-attr]
        bench.owner.were_put_back(0)
        bench.only(Transfer)
        bench.owner.transferred("kept", 0)
        bench.out()
        bench.offer(by_turn("d", 4))
        assert not any(isinstance(command, Start | Run) for command in bench.out()), "b comes first"

    def test_what_a_client_asks_of_a_reserved_stream_that_moves_goes_to_its_next_owner(self) -> None:
        bench = reserved(Bench(order={"inbox_limit": 3}, by_key=True), 3)
        bench.owner.move("n2", 0, knows_deep=True)
        bench.only(PutBack)
        request = asked(9)
        bench.offer(request)
        assert bench.owner.offer(held(8), 0) == "full", "the queue keeps it"
        bench.owner.were_put_back(0)
        bench.only(Transfer)
        bench.owner.transferred("done", 0)
        assert bench.out() == [HandOff("n2", (request,)), Dropped()]

    def test_a_refused_transfer_ends_the_owner(self) -> None:
        bench = Bench().opened()
        bench.owner.move("n2", 0)
        bench.out()
        message = held(0)
        bench.offer(message)
        bench.owner.transferred("refused", 0)
        assert bench.out() == [Return((message,)), Dropped()]


class TestBacklogs:
    def test_another_delivery_of_a_held_message_that_had_no_room_is_waited_for_no_longer(self) -> None:
        bench = Bench(order={"kind": "absent", "inbox_limit": 1}).opened()
        bench.begin(by_turn("a", 1))
        bench.offer(by_turn("b", 2))
        assert bench.owner.offer(by_turn("c", 3), 0) == "full"
        assert bench.owner.offer(by_turn("c", 4), 0) == "full", "it was sent twice"
        bench.ran()
        finished(bench)
        bench.offer(by_turn("c", 3), by_turn("c", 4))
        finished(bench)
        bench.offer(by_turn("d", 5))
        assert any(isinstance(command, Start | Run) for command in bench.out())

    def test_a_commit_that_is_too_large_ends_the_wait_for_a_take(self) -> None:
        bench = Bench(order={"inbox_limit": 2}, by_key=True).opened()
        bench.begin(held(0))
        bench.offer(held(1), held(2))
        assert bench.owner.offer(held(3), 0) == "full"
        bench.only(Reserve)
        bench.owner.reserved(True, 0)
        bench.ran()
        finished(bench)
        assert len(bench.owner.inbox) == 0
        bench.begin(held(3))
        bench.ran()
        bench.write()
        bench.owner.refused("too large", 0)
        assert any(isinstance(command, Reserve) for command in bench.out()), "the answer of the take is lost"
        bench.owner.reserved(True, 0)

    def test_a_parked_stream_that_holds_nothing_looks_for_the_end_of_its_pause(self) -> None:
        bench = Bench(order={"inbox_limit": 1}, by_key=True).opened(parked="paused")
        bench.offer(held(0))
        assert bench.owner.offer(held(1), 0) == "full"
        bench.only(Reserve)
        bench.owner.reserved(True, 0)
        bench.owner.fenced(0)
        bench.only(CheckClaim)
        bench.owner.claim_checked(True, 0)
        bench.only(Peek)
        bench.owner.peeked(Checkpoint(KEY, epoch=2), 0)
        bench.only(Open)
        bench.owner.opened(Checkpoint(KEY, epoch=3, parked="paused", log=RunLog(0, 0, 0)), 0)
        bench.out()
        bench.owner.reserved(True, 0)
        assert len(bench.owner.inbox) == 0
        bench.tick()
        bench.only(Peek)


class TestIdling:
    def test_released_when_nothing_came_for_long(self) -> None:
        bench = Bench().opened()
        assert bench.owner.agenda.wake_at == IDLE_S
        bench.now = 30
        handled(bench, held(0))
        assert bench.owner.agenda.wake_at == 30 + IDLE_S
        bench.tick()
        bench.only(Release)
        bench.owner.released()
        assert bench.out() == [Dropped()]
        assert bench.owner.agenda.wake_at is None

    def test_an_owner_is_not_idle_while_deletes_are_under_way(self) -> None:
        bench = Bench().opened(log=RunLog(0, 0, 4))
        bench.offer(held(4))
        bench.known()
        bench.only(Settle)
        assert bench.owner.agenda.wake_at is None
        bench.owner.settled(1)
        assert bench.owner.agenda.wake_at == IDLE_S

    def test_a_message_that_comes_during_a_release_goes_back(self) -> None:
        bench = Bench().opened()
        bench.tick()
        bench.only(Release)
        message = held(0)
        bench.offer(message)
        bench.owner.ticked(bench.now)
        bench.silent()
        bench.owner.released()
        assert bench.out() == [Return((message,)), Dropped()]


class TestWhatOthersAskOfABacklog:
    def test_the_next_owner_hears_of_the_reservation_and_of_the_wait(self) -> None:
        bench = Bench(order={"inbox_limit": 1}, by_key=True).opened(log=RunLog(0, 0, 4))
        assert bench.owner.commits.seq.waited(0.0) is None
        bench.offer(held(6))
        assert bench.owner.runs.misses
        bench.now = 3.0
        assert bench.owner.commits.seq.waited(bench.now) == (name(5), 3.0)
        assert not bench.owner.backlog.is_reserved
        assert bench.owner.offer(held(7), bench.now) == "full"
        bench.only(Reserve)
        bench.owner.reserved(True, bench.now)
        assert bench.owner.backlog.is_reserved

    def test_what_its_handler_runs_is_known_while_it_runs(self) -> None:
        bench = Bench().opened()
        assert not bench.owner.runs.running
        bench.begin(held(0))
        assert [place.seq for place in bench.owner.runs.running] == [0]

    def test_a_client_s_message_that_finds_no_room_reserves_nothing(self) -> None:
        bench = Bench(order={"inbox_limit": 1}, by_key=True).opened()
        bench.begin(held(0))
        bench.offer(held(1))
        assert bench.owner.offer(asked(2), bench.now) == "full"
        bench.silent()

    def test_a_refused_reservation_has_the_owner_look_whether_it_still_owns_the_key(self) -> None:
        bench = Bench(order={"inbox_limit": 1}, by_key=True).opened(log=RunLog(0, 0, 4))
        bench.offer(held(6))
        bench.owner.offer(held(7), bench.now)
        bench.only(Reserve)
        bench.owner.reserved(False, bench.now)
        bench.only(Peek)
        assert not bench.owner.backlog.is_reserved

    def test_a_reservation_that_is_lost_is_asked_for_again_and_none_is_lost_twice(self) -> None:
        bench = Bench(order={"inbox_limit": 1}, by_key=True)
        bench.owner.reservation_lost(bench.now)
        assert not bench.owner.backlog.is_reserved
        reserved(bench)
        bench.owner.reservation_lost(bench.now)
        assert any(isinstance(command, Reserve) for command in bench.out())
