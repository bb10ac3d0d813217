"""The conformance suite of outbox stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from zlib import crc32

import msgspec
import pytest

from holdfast.devices.ports.outbox import Adding, NewCommand, OutboxStore, Writer
from holdfast.devices.rules.device_queue import (
    CommandState,
    Correlation,
    HeadPhase,
    Patience,
    StoredCommand,
    shard_of,
)
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnRequest, TurnResult, Unsent
from holdfast.devices.rules.group_rate import GroupRate, RolloutRates
from holdfast.errors import ConfigError, Fenced

Begin = Callable[[], AbstractContextManager[Writer]]
"""Begins a transaction of the business, committed at its end and rolled back if that raises."""

OUTBOX = "doors"
SHARDS = 3
"""With so many, devices whose names differ in one digit lie in different ones."""
NOW = 1_700_000_000.0
"""The wall time of the first turn: turns bring theirs with them."""

PATIENCE = Patience(retry_s=10.0, retry_max_s=40.0, max_tries=3, probe_s=60.0)
LATEST_S = 14.0
"""After so long the first try is over, whatever the jitter."""

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

PATIENCE_S = 30.0
"""How long a test waits for what must come."""


class ManualDispatcher:
    """Takes turns at its own time; owns all shards unless told otherwise."""

    def __init__(self, store: OutboxStore, member: str = "member", shards: int = SHARDS) -> None:
        self.shards = shards
        self.store = store
        self.member = member
        self.now = NOW
        self.grants: dict[int, int] = {}
        self.told: list[StoredCommand] = []

    async def open(self, *shards: int) -> None:
        """Open shards, or all."""
        standing = await self.store.epochs(OUTBOX)
        for shard in shards or range(self.shards):
            self.grants[shard] = await self.store.open(OUTBOX, shard, standing[shard], self.member)

    async def take_turn(self, *, tell: bool = True, **brought: Any) -> TurnResult:
        """Take a turn."""
        brought.setdefault("sendable", list(self.grants))
        brought.setdefault("shards", self.shards)
        request = TurnRequest(outbox=OUTBOX, grants=self.grants, now=self.now, patience=PATIENCE, **brought)
        return await self.store.take_turn(request, self._hear if tell else None)

    async def send(self, **brought: Any) -> list[Sending]:
        """Take a turn, and return what goes out in it."""
        return (await self.take_turn(**brought)).sendings

    def _hear(self, db: Any, entry: StoredCommand) -> None:
        self.told.append(entry)


def new(device: str, body: bytes = b"do", **fields: Any) -> NewCommand:
    """A command to add."""
    return NewCommand(outbox=OUTBOX, device=device, shard=shard_of(device, SHARDS), body=body, **fields)


def elsewhere(device: str, shard: int = 9, **fields: Any) -> NewCommand:
    """A command of a program that takes the outbox for one with other shards."""
    return msgspec.structs.replace(new(device, **fields), shard=shard)


def answer(sending: Sending, body: bytes = b"done", **fields: Any) -> CommandAnswer:
    """The device's answer to a try."""
    return CommandAnswer(sending.device, sending.correlation, body, **fields)


def bodies(sendings: Sequence[Sending]) -> list[bytes]:
    """Return the bodies that were sent, in order of devices."""
    return [sending.body for sending in sorted(sendings, key=lambda sending: (sending.device, sending.body))]


@pytest.mark.asyncio
class OutboxConformance:
    """Every promise of the outbox store. Fixtures: ``store``, new and empty; ``begin``, which begins
    transactions of the business in the store's database."""

    @pytest.fixture
    def store(self) -> OutboxStore:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture store")

    @pytest.fixture
    def begin(self, store: OutboxStore) -> Begin:
        """Override: begin a transaction of the business."""
        raise NotImplementedError("define the fixture begin")

    @pytest.fixture
    def other_store(self, store: OutboxStore) -> OutboxStore:
        """Override where several clients may share a store: another one of the same store."""
        return store

    @pytest.fixture
    async def dispatcher(self, store: OutboxStore) -> ManualDispatcher:
        """Owns all shards."""
        devices = ("d0", "d1", "d2")
        assert {shard_of(device, SHARDS) for device in devices} == {*range(SHARDS)}, "tests use every shard"
        await store.prepare(OUTBOX, SHARDS)
        dispatcher = ManualDispatcher(store)
        await dispatcher.open()
        return dispatcher

    # --- adding

    async def test_what_is_added_goes_out_and_closes_with_its_answer(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            command = new("d1", b"\x00body", trace_id="t-1", traceparent=TRACEPARENT, created_at=NOW)
            [number] = db.add([command])
        result = await dispatcher.take_turn()
        [sending] = result.sendings
        assert (sending.device, sending.body, sending.trace_id) == ("d1", b"\x00body", "t-1")
        assert sending.traceparent == TRACEPARENT
        assert sending.correlation == Correlation(dispatcher.grants[sending.shard], number, 1)
        assert 10.0 <= sending.due - NOW <= LATEST_S
        entry = await self._command(store, number)
        assert (entry.state, entry.tries, entry.spent, entry.published_at) == (
            CommandState.PUBLISHED,
            1,
            1,
            NOW,
        )
        dispatcher.now += 1
        result = await dispatcher.take_turn(answers=[answer(sending, b"\xffok")])
        assert (result.sendings, result.strays, result.freed) == ([], [], 1)
        entry = await self._command(store, number)
        assert (entry.state, entry.answer, entry.closed_at) == (CommandState.ACKNOWLEDGED, b"\xffok", NOW + 1)
        assert result.closed == dispatcher.told == [entry]
        assert await store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1}
        assert await store.next_due(OUTBOX, range(SHARDS)) is None

    async def test_a_rolled_back_transaction_adds_nothing(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        transaction = begin()
        transaction.__enter__().add([new("d1")])
        failed = ZeroDivisionError()
        assert not transaction.__exit__(ZeroDivisionError, failed, None)
        assert await dispatcher.send() == []
        assert await store.commands(OUTBOX) == []

    async def test_what_isn_t_committed_isn_t_sent(self, dispatcher: ManualDispatcher, begin: Begin) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d2", b"2")])
        assert bodies(await dispatcher.send()) == [b"1", b"2"]

    async def test_a_new_command_wakes_who_waits_for_arrivals(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore, begin: Begin
    ) -> None:
        await store.arrived(OUTBOX, 0.01)  # whatever came before anybody listened
        waiting = asyncio.ensure_future(store.arrived(OUTBOX, 3600))
        await asyncio.sleep(0)
        with begin() as db:
            db.add([new("d1")])
        await asyncio.wait_for(waiting, PATIENCE_S)
        waiting = asyncio.ensure_future(store.arrived(OUTBOX, 3600))
        await asyncio.sleep(0)
        await other_store.add([new("d2")])
        await asyncio.wait_for(waiting, PATIENCE_S)

    async def test_an_outbox_sees_no_commands_of_another(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        await store.prepare("gates", SHARDS)
        other = NewCommand(outbox="gates", device="d1", shard=shard_of("d1", SHARDS), body=b"other")
        with begin() as db:
            db.add([other])
            db.add([new("d1", b"ours")])
        assert bodies(await dispatcher.send()) == [b"ours"]
        assert [entry.body for entry in await store.commands("gates")] == [b"other"]

    async def test_a_dedupe_key_is_added_once_a_device(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, other = db.add([new("d1", b"1", dedupe_key="k"), new("d2", b"2", dedupe_key="k")])
        with begin() as db:
            again, fresh = db.add([new("d1", b"3", dedupe_key="k"), new("d1", b"4")])
        assert again == first
        assert len({first, other, fresh}) == 3
        assert [entry.body for entry in await store.commands(OUTBOX)] == [b"1", b"2", b"4"]

    async def test_the_order_is_that_of_adding_with_dedupe_keys_or_without(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        keys = (None, "a", None, None, "b", "a", None)
        with begin() as db:
            ids = db.add([new("d1", b"%d" % n, dedupe_key=key) for n, key in enumerate(keys)])
        assert ids[5] == ids[1]
        assert [*ids[:5], ids[6]] == sorted({*ids})
        assert [e.body for e in await store.commands(OUTBOX)] == [b"0", b"1", b"2", b"3", b"4", b"6"]

    async def test_times_are_by_the_store_s_clock_whatever_the_caller_s_says(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        before = await store.now()
        with begin() as db:
            for clock in (NOW - 3600, NOW + 3600):
                timed = new("d1", created_at=clock, not_before=clock + 100, expires_at=clock + 200)
                db.add([timed, new("d2", created_at=clock)])
        slow, fast = await store.commands(OUTBOX, device="d1")
        after = await store.now()
        for entry in (slow, fast):
            assert before <= entry.created_at <= after
            assert entry.not_before - entry.created_at == pytest.approx(100, abs=0.001)
            assert (entry.expires_at or 0.0) - entry.created_at == pytest.approx(200, abs=0.001)
        assert {(e.not_before, e.expires_at) for e in await store.commands(OUTBOX, device="d2")} == {
            (0.0, None)
        }

    # --- one at a time, in order

    async def test_a_device_gets_one_at_a_time_in_order(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"%d" % n) for n in range(5)])
        sent: list[bytes] = []
        sendings = await dispatcher.send()
        while sendings:
            [sending] = sendings
            sent.append(sending.body)
            assert await dispatcher.send() == []
            sendings = await dispatcher.send(answers=[answer(sending)])
        assert sent == [b"%d" % n for n in range(5)]

    async def test_the_higher_priority_goes_first_and_nothing_is_recalled(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"first")])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.add([new("d1", b"low"), new("d1", b"high", priority=5), new("d1", b"high too", priority=5)])
        assert await dispatcher.send() == []
        sent = []
        for _ in range(3):
            [sending] = await dispatcher.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"high", b"high too", b"low"]

    async def test_lanes_of_a_device_go_side_by_side(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        await store.prepare(OUTBOX, SHARDS, Adding(lanes=2))
        with begin() as db:
            db.add([new("d1", b"%d" % n, lane=n % 2) for n in range(4)])
        sendings = await dispatcher.send()
        assert bodies(sendings) == [b"0", b"1"]
        assert bodies(await dispatcher.send(answers=[answer(sendings[0])])) in ([b"2"], [b"3"])

    async def test_a_time_to_come_is_waited_for_and_holds_up_nothing(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"later", not_before=NOW + 100), new("d1", b"now")])
        [sending] = await dispatcher.send()
        assert sending.body == b"now"
        assert await dispatcher.send(answers=[answer(sending)]) == []
        assert await store.next_due(OUTBOX, range(SHARDS)) == NOW + 100
        dispatcher.now += 100
        assert bodies(await dispatcher.send()) == [b"later"]

    async def test_a_newer_command_replaces_unsent_ones_of_its_key(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"sent", supersede_key="p1")])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.add([new("d1", b"old", supersede_key="p1"), new("d1", b"other", supersede_key="p2")])
            db.add([new("d2", b"another device", supersede_key="p1")])
        with begin() as db:
            db.add([new("d1", b"newest", supersede_key="p1")])
        dispatcher.told.clear()
        assert bodies(await dispatcher.send()) == [b"another device"]
        assert [(entry.body, entry.state) for entry in dispatcher.told] == [(b"old", CommandState.SUPERSEDED)]
        sent = []
        for _ in range(2):
            [sending] = await dispatcher.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"other", b"newest"]

    # --- answers

    async def test_a_newer_command_replaces_before_its_arrival_was_read(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old, _] = db.add([new("d1", b"%d" % n, supersede_key="p1") for n in range(2)])
        result = await dispatcher.take_turn(limit=1)
        assert ([entry.id for entry in result.closed], bodies(result.sendings)) == ([old], [b"1"])
        assert (await self._command(store, old)).state is CommandState.SUPERSEDED

    async def test_only_a_try_of_what_is_out_can_be_answered(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1")])
            db.add([new("d2")])
        first = next(s for s in await dispatcher.send() if s.device == "d1")
        dispatcher.now = first.due
        second = next(s for s in await dispatcher.send() if s.device == "d1")
        assert second.correlation.tries == 2
        epoch, command, tries = second.correlation.epoch, second.correlation.command, 2
        strays = [
            CommandAnswer("d2", second.correlation),
            CommandAnswer("d1", Correlation(epoch, command, tries + 1)),
            CommandAnswer("d1", Correlation(epoch - 1, command, tries)),
            CommandAnswer("d2", first.correlation),
            CommandAnswer("d1", Correlation(epoch, command + 1000, tries)),
        ]
        result = await dispatcher.take_turn(answers=strays)
        assert (result.strays, result.closed) == (strays, [])
        assert (await self._command(store, number)).state is CommandState.PUBLISHED
        result = await dispatcher.take_turn(answers=[answer(second), answer(second)])
        assert (len(result.closed), result.strays) == (1, [answer(second)])
        result = await dispatcher.take_turn(answers=[answer(second)])
        assert (result.closed, result.strays) == ([], [answer(second)])
        assert len(dispatcher.told) == 1

    async def test_an_answer_to_an_earlier_try_counts_and_the_last_one_is_given_its_time(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _, _] = db.add([new("d1", b"%d" % n) for n in range(3)])
        [first] = await dispatcher.send()
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        dispatcher.now += 1
        result = await dispatcher.take_turn(answers=[answer(first, b"late")])
        assert (result.late, result.strays, result.freed, result.sendings) == (1, [], 0, [])
        entry = await self._command(store, number)
        assert (entry.state, entry.answer, dispatcher.told) == (CommandState.ACKNOWLEDGED, b"late", [entry])
        result = await dispatcher.take_turn(answers=[answer(first, b"late")])
        assert (len(result.strays), result.closed, result.sendings) == (1, [], [])
        result = await dispatcher.take_turn(answers=[answer(second)])
        assert (result.strays, result.closed, result.freed) == ([], [], 1)
        [first] = result.sendings
        assert first.body == b"1"
        assert len((await dispatcher.take_turn(answers=[answer(second)])).strays) == 1, "it is over"
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        result = await dispatcher.take_turn(answers=[answer(first)])
        assert (len(result.closed), result.freed, result.sendings) == (1, 0, [])
        dispatcher.now += LATEST_S
        result = await dispatcher.take_turn()
        assert (result.freed, bodies(result.sendings)) == (1, [b"2"]), "the last one will never be answered"

    async def test_a_late_answer_does_not_lengthen_the_wait_for_the_last_try(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await dispatcher.send()
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        dispatcher.now = second.due - 1
        assert await dispatcher.send(answers=[answer(first)]) == []
        dispatcher.now = second.due
        assert bodies(await dispatcher.send()) == [b"2"]

    async def test_a_late_answer_of_what_is_held_frees_its_device(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await dispatcher.send()
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        dispatcher.now = second.due
        assert (await dispatcher.take_turn(away={"d1"})).freed == 1
        result = await dispatcher.take_turn(answers=[answer(first)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_what_answers_late_is_not_asked_again(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send(slow={"d1": 40.0})
        assert sending.due - dispatcher.now == 60.0
        dispatcher.now += 59
        assert await dispatcher.send(check_dues=True, slow={"d1": 40.0}) == []

    async def test_a_refusal_closes_and_the_next_goes(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        assert bodies(await dispatcher.send(answers=[answer(sending, b"no", ok=False)])) == [b"2"]
        entry = await self._command(store, number)
        assert (entry.state, entry.answer, entry.reason) == (CommandState.FAILED, b"no", "the device refused")

    # --- tries, expiry, absence

    async def test_without_an_answer_it_is_sent_again_later_and_later_and_then_fails(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        for tries, least_s in ((2, 20.0), (3, 35.0)):
            dispatcher.now = sending.due - 0.1
            assert await dispatcher.send() == []
            dispatcher.now = sending.due
            result = await dispatcher.take_turn()
            [sending] = result.sendings
            assert result.repeats == 1
            assert (sending.correlation.tries, sending.body) == (tries, b"1")
            assert sending.due - dispatcher.now >= least_s
        dispatcher.now = sending.due
        result = await dispatcher.take_turn()
        assert (bodies(result.sendings), result.freed, result.repeats) == ([b"2"], 1, 0)
        entry = await self._command(store, number)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "no answer in all tries")
        assert dispatcher.told == [entry]

    async def test_what_has_expired_is_not_sent(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            numbers = db.add([new("d1", b"%d" % n, expires_at=NOW + 5) for n in range(30)])
            db.add([new("d1", b"lasting")])
        [sending] = await dispatcher.send()
        dispatcher.now += 5
        assert (await dispatcher.take_turn()).closed == [], "the device may be at it"
        sendings = await dispatcher.send(answers=[answer(sending)])
        while not sendings:
            sendings = await dispatcher.send()
        assert bodies(sendings) == [b"lasting"]
        states = [(await self._command(store, number)).state for number in numbers]
        assert states == [CommandState.ACKNOWLEDGED, *[CommandState.EXPIRED] * 29]
        assert len(dispatcher.told) == 30

    async def test_a_sweep_finds_what_expires_in_the_queue(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            _, number = db.add([new("d1"), new("d1", b"short", expires_at=NOW + 5)])
        await dispatcher.take_turn()
        dispatcher.now += 5
        await dispatcher.take_turn(sweep=True)
        assert (await self._command(store, number)).state is CommandState.EXPIRED
        assert [entry.body for entry in dispatcher.told] == [b"short"]

    async def test_nothing_goes_to_a_device_that_is_away_but_probes_which_use_up_no_tries(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1")])
        away = {"d1"}
        assert await dispatcher.send(away=away) == []
        for tries in range(1, 5):
            dispatcher.now += PATIENCE.probe_s
            [probe] = await dispatcher.send(away=away)
            assert probe.correlation.tries == tries
            dispatcher.now = probe.due
            result = await dispatcher.take_turn(away=away)
            assert (result.sendings, result.freed) == ([], 1)
        assert (await self._command(store, number)).spent == 0
        assert [status.phases for status in await store.devices(OUTBOX)] == [(HeadPhase.HELD,)]
        [sending] = await dispatcher.send(back=["d1"])
        assert sending.correlation.tries == 5
        result = await dispatcher.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 1)

    async def test_a_late_answer_of_a_held_command_closes_it(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        dispatcher.now = sending.due
        assert (await dispatcher.take_turn(away={"d1"})).freed == 1
        result = await dispatcher.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_what_the_broker_didn_t_take_uses_up_no_try(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1")])
        [sending] = await dispatcher.send()
        for tries in range(2, 6):
            await dispatcher.take_turn(unsent=[Unsent(sending.correlation)], pause_s=1.0)
            assert await dispatcher.send() == []
            dispatcher.now += 2.0 ** (tries - 2)
            [sending] = await dispatcher.send()
            assert sending.correlation.tries == tries
        entry = await self._command(store, number)
        assert (entry.tries, entry.spent) == (5, 1)
        await dispatcher.take_turn(unsent=[Unsent(sending.correlation, certain=False)])
        dispatcher.now += 1.0
        assert await dispatcher.send() == [], "it may have reached the device"
        dispatcher.now = sending.due
        assert len(await dispatcher.send()) == 1

    async def test_what_the_broker_refuses_fails_after_all_tries_with_its_word(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
        for tries in range(1, PATIENCE.max_tries):
            [sending] = await dispatcher.send()
            await dispatcher.take_turn(unsent=[Unsent(sending.correlation, refusal="not allowed")])
            entry = await self._command(store, number)
            assert (entry.tries, entry.spent, entry.reason) == (tries, tries, "not allowed")
            dispatcher.now = sending.due
        assert (await dispatcher.take_turn(away={"d1"})).freed == 1
        dispatcher.now += PATIENCE.probe_s
        [probe] = await dispatcher.send(away={"d1"})
        refused = Unsent(probe.correlation, spent=probe.counts, refusal="not allowed")
        result = await dispatcher.take_turn(unsent=[refused])
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (number, CommandState.FAILED, "not allowed")
        ]
        assert bodies(result.sendings) == [b"2"]

    # --- limits

    async def test_no_more_go_than_there_is_room_for(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n:02d}", b"%02d %d" % (n, m)) for m in range(2) for n in range(20)])
        first = await dispatcher.send(room=5)
        assert len(first) == 5
        assert await dispatcher.send(room=0) == []
        rest = await dispatcher.send(room=100)
        assert len({sending.device for sending in first + rest}) == 20
        freed = await dispatcher.take_turn(room=0, answers=[answer(sending) for sending in first])
        assert len(freed.sendings) == 5
        assert freed.freed == 5

    async def test_of_devices_that_are_due_the_longest_due_goes_first(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"3")])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.add([new("d2", b"2")])
        assert await dispatcher.send(room=0) == []
        dispatcher.now += 1
        assert bodies(await dispatcher.send(room=0, answers=[answer(sending)])) == [b"2"]

    async def test_a_rate_is_kept_for_repeats_too(self, dispatcher: ManualDispatcher, begin: Begin) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in range(6)])
        assert len(await dispatcher.send()) == 6
        dispatcher.now += LATEST_S
        result = await dispatcher.take_turn(rate=4)
        assert (len(result.sendings), result.more) == (4, True)
        assert len(await dispatcher.send(rate=4)) == 2

    async def test_a_group_keeps_to_its_rate(self, dispatcher: ManualDispatcher, begin: Begin) -> None:
        with begin() as db:
            db.add([new(f"slow-{n}") for n in range(5)] + [new(f"fast-{n}") for n in range(5)])
        groups = GroupRate(lambda device: device.split("-")[0], {"slow": 1.0})
        sent = [sending.device.split("-")[0] for sending in await dispatcher.send(groups=groups)]
        assert sorted(sent) == ["fast"] * 5 + ["slow"]
        count = len(sent)
        for _ in range(6):
            dispatcher.now += 1.0
            count += len(await dispatcher.send(groups=groups))
        assert count == 10

    async def test_a_shard_that_can_t_send_still_hears(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        result = await dispatcher.take_turn(sendable=[], answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert bodies(await dispatcher.send()) == [b"2"]

    async def test_what_is_due_follows_the_clock(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        [sending] = await dispatcher.send()
        for jump_s in (3600.0, -7200.0):
            dispatcher.now += jump_s
            assert await dispatcher.send(shift_s=jump_s) == []
            sending = msgspec.structs.replace(sending, due=sending.due + jump_s)
            assert await store.next_due(OUTBOX, [sending.shard]) == pytest.approx(sending.due, abs=0.001)
        dispatcher.now = sending.due
        assert bodies(await dispatcher.send()) == [b"1"]

    async def test_what_is_due_much_too_late_is_brought_in(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        assert bodies(await dispatcher.send()) == [b"1"]
        dispatcher.now -= 3600.0
        assert await dispatcher.send(check_dues=True) == []
        dispatcher.now += PATIENCE.longest_s()
        assert bodies(await dispatcher.send()) == [b"1"]
        assert (await store.next_due(OUTBOX, [shard_of("d2", SHARDS)])) is not None
        dispatcher.now = NOW + 10_000
        assert b"2" in bodies(await dispatcher.send())

    # --- owners

    async def test_a_try_that_may_have_come_late_is_waited_for_from_then_on(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1"), new("d4")])  # in different shards
        first, second = await dispatcher.send()
        dispatcher.now = max(first.due, second.due)
        [again] = await dispatcher.send(still_out=[first])
        assert again.device == second.device
        assert await dispatcher.send(still_out=[second]) == []
        assert await store.next_due(OUTBOX, [again.shard]) == pytest.approx(again.due, abs=0.001)
        dispatcher.now += PATIENCE.retry_s
        assert (await dispatcher.take_turn(still_out=[first], answers=[answer(first)])).closed
        assert not (await dispatcher.take_turn(still_out=[first])).closed

    async def test_what_was_forgotten_after_it_was_sent_is_out_again(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        """As after a crash of a database that had not written yet what it answered."""
        with begin() as db:
            [number] = db.add([new("d1", b"1")])
            db.add([new("d1", b"2")])
        shard = shard_of("d1", SHARDS)
        correlation = Correlation(dispatcher.grants[shard], number, 3)
        forgotten = Sending("d1", shard, correlation, b"1", "", NOW)
        result = await dispatcher.take_turn(still_out=[forgotten])
        assert (result.sendings, result.freed) == ([], -1)
        assert await store.in_flight(OUTBOX, [shard]) == 1
        result = await dispatcher.take_turn(answers=[answer(forgotten)])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 1, [b"2"])
        assert (await dispatcher.take_turn(still_out=[forgotten])).freed == 0

    async def test_a_last_try_that_may_have_come_late_is_given_its_time_though_an_answer_came(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        """The answer to an earlier try closed the command; its device has the last one still before it."""
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await dispatcher.send()
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        dispatcher.now += 1
        assert (await dispatcher.take_turn(answers=[answer(first)])).late == 1
        due = await store.next_due(OUTBOX, [first.shard]) or 0.0
        dispatcher.now = due - 1
        assert await dispatcher.send(still_out=[second]) == []
        dispatcher.now = due
        assert await dispatcher.send() == [], "it takes one at a time"
        dispatcher.now = await store.next_due(OUTBOX, [first.shard]) or 0.0
        assert dispatcher.now >= due - 1 + PATIENCE.retry_s
        assert bodies(await dispatcher.send()) == [b"2"]

    async def test_a_try_that_may_have_come_late_is_no_matter_where_its_command_or_its_shard_is_gone(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending)])
        assert await store.expire(OUTBOX, dispatcher.now + 1, 10) == 1
        result = await dispatcher.take_turn(still_out=[sending])
        assert (result.freed, result.sendings) == (0, [])
        assert await store.next_due(OUTBOX, range(SHARDS)) is None
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await ManualDispatcher(store, "other").open(sending.shard)
        dispatcher.now += 5
        assert (await dispatcher.take_turn(still_out=[sending])).lost == [sending.shard]
        assert await store.next_due(OUTBOX, [sending.shard]) == pytest.approx(sending.due, abs=0.001)

    async def test_a_fresh_connection_gives_tries_of_earlier_owners_their_time(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await dispatcher.open()
        dispatcher.now = sending.due
        assert await dispatcher.send(fresh=list(dispatcher.grants)) == []
        dispatcher.now += PATIENCE.retry_s
        assert await dispatcher.send() == []
        dispatcher.now += PATIENCE.retry_s
        assert len(await dispatcher.send()) == 1

    async def test_every_opening_takes_a_higher_epoch_and_refuses_the_one_before(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore, begin: Begin
    ) -> None:
        before = dict(dispatcher.grants)
        with pytest.raises(Fenced) as refusal:
            await store.open(OUTBOX, 0, before[0] - 1, "member")
        assert refusal.value.epoch == before[0]
        other = ManualDispatcher(other_store, "other")
        await other.open(0)
        assert other.grants[0] > before[0]
        assert (await store.epochs(OUTBOX)) == {**before, 0: other.grants[0]}
        with begin() as db:
            db.add([new(f"d{n}", b"%d" % n) for n in range(8)])
        result = await dispatcher.take_turn()
        assert result.lost == [0]
        assert {sending.shard for sending in result.sendings} == {*range(1, SHARDS)}
        taken = await other.send()
        assert {sending.shard for sending in taken} == {0}
        assert len(result.sendings) + len(taken) == 8

    async def test_a_dispatcher_that_lost_its_shards_changes_no_row(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        other = ManualDispatcher(other_store, "other")
        await other.open()
        before = await store.commands(OUTBOX)
        dispatcher.now = sending.due
        brought = [answer(sending)], [Unsent(sending.correlation)]
        result = await dispatcher.take_turn(
            answers=brought[0], unsent=brought[1], sweep=True, seen={"d1": NOW}
        )
        assert (result.lost, result.closed, result.sendings) == ([*range(SHARDS)], [], [])
        assert await store.commands(OUTBOX) == before
        assert await store.next_due(OUTBOX, range(SHARDS)) == sending.due
        assert [status.seen_at for status in await store.devices(OUTBOX)] == [None]
        result = await other.take_turn(answers=[answer(sending)])
        assert [entry.id for entry in result.closed] == [number], "the answer still fits its one try"
        assert bodies(result.sendings) == [b"2"]

    async def test_a_dispatcher_that_lost_one_shard_stores_when_the_other_devices_were_seen(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore
    ) -> None:
        await ManualDispatcher(other_store, "other").open(0)
        devices = [f"d{n}" for n in range(8)]
        result = await dispatcher.take_turn(sweep=True, seen=dict.fromkeys(devices, NOW), away=set(devices))
        assert result.lost == [0]
        stored = {status.device for status in await store.devices(OUTBOX) if status.seen_at == NOW}
        assert stored == {device for device in devices if shard_of(device, SHARDS) != 0}

    async def test_it_counts_how_many_are_waited_for(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in range(7)])
        await dispatcher.take_turn(room=5)
        assert await store.in_flight(OUTBOX, range(SHARDS)) == 5
        assert sum([await store.in_flight(OUTBOX, [shard]) for shard in range(SHARDS)]) == 5

    async def test_another_number_of_shards_is_refused(
        self, dispatcher: ManualDispatcher, store: OutboxStore
    ) -> None:
        await store.prepare(OUTBOX, SHARDS)
        with pytest.raises(ConfigError, match="shards"):
            await store.prepare(OUTBOX, SHARDS + 1)
        assert await store.epochs(OUTBOX) == dispatcher.grants

    async def test_what_is_added_goes_to_the_outbox_s_own_shards_and_lanes(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        """A program may take it for one with other numbers of these."""
        await store.prepare(OUTBOX, SHARDS, Adding(lanes=2))
        devices = [f"d{n}" for n in range(9)]
        with begin() as db:
            db.add([new(device, lane=7, supersede_key=device) for device in devices])
            db.add([elsewhere("again", lane=3), elsewhere("again", 1, supersede_key="again")])
        found = await store.commands(OUTBOX)
        assert {entry.device: entry.shard for entry in found} == {
            device: shard_of(device, SHARDS) for device in [*devices, "again"]
        }
        lanes = [crc32(device.encode()) % 2 for device in devices]
        assert [entry.lane for entry in found] == [*lanes, 1, crc32(b"again") % 2]
        sent = {sending.device for sending in await dispatcher.send()}
        assert sent == {*devices, "again"}

    async def test_what_was_added_before_a_node_came_goes_to_its_device_s_shard(
        self, store: OutboxStore, begin: Begin
    ) -> None:
        """Then only the program that adds has said how many shards there are."""
        await store.prepare("another", 1)
        with begin() as db:
            db.add([elsewhere(f"d{n}", shard) for n in range(4) for shard in (0, 1, 2, 9, -1)])
        await store.prepare(OUTBOX, SHARDS)
        dispatcher = ManualDispatcher(store)
        await dispatcher.open()
        moved: set[str] = set()
        sent: dict[str, int] = {}
        for _ in range(4):
            result = await dispatcher.take_turn(sweep=True)
            moved |= {*result.moved}
            sent |= {sending.device: sending.shard for sending in result.sendings}
        assert sent == {f"d{n}": shard_of(f"d{n}", SHARDS) for n in range(4)}
        assert moved == {f"d{n}" for n in range(4)}
        found = await store.commands(OUTBOX)
        assert [entry.shard for entry in found] == [shard_of(entry.device, SHARDS) for entry in found]
        assert (await dispatcher.take_turn(sweep=True)).moved == []

    async def test_a_cancel_of_what_was_added_elsewhere_is_heard(
        self, store: OutboxStore, begin: Begin
    ) -> None:
        await store.prepare("another", 1)
        with begin() as db:
            [number] = db.add([elsewhere("d1", 9, not_before=NOW + 60)])
            assert db.cancel(OUTBOX, device="d1") == 1
        await store.prepare(OUTBOX, SHARDS)
        dispatcher = ManualDispatcher(store)
        await dispatcher.open()
        await dispatcher.take_turn(sweep=True)
        result = await dispatcher.take_turn(sweep=True)
        assert [(entry.id, entry.reason) for entry in result.closed] == [(number, "cancelled")]

    # --- results

    async def test_how_to_add_is_what_it_was_last_made_ready_with(self, store: OutboxStore) -> None:
        for adding in (Adding(3, 60.0, 1_000), Adding(1, None, 2_000)):
            await store.prepare(OUTBOX, SHARDS, adding)
            assert await store.adding(OUTBOX) == adding
        assert await store.adding("unheard-of") is None
        await store.prepare("another", 1)
        assert {"another", OUTBOX} <= {*await store.names()}
        assert await store.names() == sorted(await store.names())

    async def test_results_are_told_in_the_transaction_that_closes(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await dispatcher.send()
        failing = True

        def on_result(db: Any, entry: StoredCommand) -> None:
            dispatcher.told.append(entry)
            if failing and entry.body == b"1":
                raise RuntimeError("the business failed")

        request = TurnRequest(
            outbox=OUTBOX,
            shards=SHARDS,
            grants=dispatcher.grants,
            sendable=[],
            now=NOW,
            answers=[answer(sending) for sending in sendings],
        )
        result = await store.take_turn(request, on_result)
        assert len(result.closed) == 3, "a failing business holds up no device"
        dispatcher.told.clear()
        sweep = TurnRequest(
            outbox=OUTBOX, shards=SHARDS, grants=dispatcher.grants, sendable=[], now=NOW, sweep=True
        )
        assert await store.expire(OUTBOX, NOW + 1e6, 100) == 2, "what isn't told is kept"
        await store.take_turn(sweep, on_result)
        assert {entry.body for entry in dispatcher.told} == {b"1"}
        failing = False
        dispatcher.told.clear()
        await store.take_turn(sweep, on_result)
        await store.take_turn(sweep, on_result)
        assert [entry.body for entry in dispatcher.told] == [b"1"]
        assert await store.expire(OUTBOX, NOW + 1e6, 100) == 1

    async def test_a_business_that_would_end_its_process_is_told_again(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        told: list[int] = []

        def on_result(db: Any, entry: StoredCommand) -> None:
            told.append(entry.id)
            if len(told) < 3:
                raise SystemExit(1)

        request = TurnRequest(
            outbox=OUTBOX,
            shards=SHARDS,
            grants=dispatcher.grants,
            sendable=[],
            now=NOW,
            answers=[answer(sending)],
        )
        assert len((await store.take_turn(request, on_result)).closed) == 1
        sweep = msgspec.structs.replace(request, answers=(), sweep=True)
        for _ in range(3):
            await store.take_turn(sweep, on_result)
        assert len(told) == 3

    # --- rollouts

    async def test_a_rollout_counts_and_stops_when_too_many_fail(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 10, 4.0, 0.2, NOW)
            db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 4) for n in range(10)])
        first = await dispatcher.send()
        assert len(first) == 4
        answers = [answer(first[0])] + [answer(sending, ok=False) for sending in first[1:]]
        await dispatcher.take_turn(answers=answers)
        [known] = await store.rollouts(OUTBOX)
        assert (known.id, known.name, known.total, known.created_at) == (rollout, "firmware", 10, NOW)
        assert (known.rate, known.abort_share) == (4.0, 0.2)
        assert (known.done, known.failed, known.aborted, known.over) == (1, 3, True, False)
        dispatcher.now += 1
        assert await dispatcher.send() == []
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 9, True)
        assert await store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1, CommandState.FAILED: 9}

    async def test_what_expires_counts_towards_the_share_that_stops_a_rollout(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 0.25, NOW)
            late = [new(f"d{n}", rollout=rollout, not_before=NOW + 9, expires_at=NOW + 5) for n in (1, 2)]
            db.add([new("d0", rollout=rollout), *late, new("d3", rollout=rollout, not_before=NOW + 9)])
        [sending] = await dispatcher.send()
        dispatcher.now += 5
        await dispatcher.take_turn(answers=[answer(sending)], sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (1, 2, True)
        dispatcher.now += 5
        assert await dispatcher.send() == []
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 3, True)

    async def test_a_rollout_follows_what_operators_do(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 5, None, 0.5, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n) for n in range(5)])
        [sending] = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        assert await store.cancel(ids[4])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (0, 2, False)
        assert await store.retry(ids[0])
        dispatcher.now += 3
        sendings = await dispatcher.send(sweep=True)
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (4, 1, True)

    async def test_a_rollout_that_operators_abort_stays_so(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 2, None, 0.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + 10) for n in range(2)])
        assert await store.cancel(ids[0])
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.failed, known.aborted, known.over) == (2, True, True)
        assert not await store.retry(ids[0])

    async def test_an_aborted_rollout_sends_nothing_more_and_what_is_out_may_succeed(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 1.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 2) for n in range(4)])
            db.add([new("other", not_before=NOW + 1)])
        sendings = await dispatcher.send()
        assert len(sendings) == 2
        assert not await store.abort("unheard-of", rollout)
        assert not await store.abort(OUTBOX, rollout + 1_000)
        assert await store.abort(OUTBOX, rollout)
        assert not await store.abort(OUTBOX, rollout), "it is aborted already"
        dispatcher.now += 1
        [other] = await dispatcher.send(answers=[answer(sending) for sending in sendings])
        assert other.device == "other"
        await dispatcher.take_turn(sweep=True, answers=[answer(other)])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted, known.over) == (2, 2, True, True)
        left = await store.command(ids[3])
        assert left is not None
        assert (left.state, left.reason) == (CommandState.FAILED, "its rollout was aborted")
        assert not await store.retry(ids[3])

    @pytest.mark.usefixtures("dispatcher")
    async def test_rollouts_are_listed_by_page_from_either_end(
        self, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, second, third, fourth = (
                db.add_rollout(OUTBOX, "firmware", 1, None, 1.0, NOW) for _ in range(4)
            )
            db.add_rollout("other", "firmware", 1, None, 1.0, NOW)

        async def listed(**asked: Any) -> list[int]:
            return [rollout.id for rollout in await store.rollouts(OUTBOX, **asked)]

        assert await listed() == [first, second, third, fourth]
        assert await listed(after=first, limit=2) == [second, third]
        assert await listed(newest=True, limit=2) == [fourth, third]
        assert await listed(newest=True, after=third, limit=1) == [second]

    async def test_a_rollout_that_is_over_is_not_aborted(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 1, None, 1.0, NOW)
            db.add([new("d1", rollout=rollout)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        assert not await store.abort(OUTBOX, rollout)
        [known] = await store.rollouts(OUTBOX)
        assert known.aborted is False

    async def test_a_rollout_keeps_its_rate_when_all_its_times_have_passed(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 20, 4.0, 1.0, NOW)
            db.add([new(f"d{n:02}", rollout=rollout, not_before=NOW + n / 4) for n in range(20)])
            db.add([new("other")])
        dispatcher.now += 3600
        rates = RolloutRates(share=1.0)
        sent = await dispatcher.send(rollouts=rates)
        assert len(sent) == 1 + 1, "one at a time, and what belongs to no rollout"
        for _ in range(19):
            dispatcher.now += 0.25
            sent = await dispatcher.send(rollouts=rates, answers=[answer(each) for each in sent])
            assert len(sent) == 1

    # --- briefs

    async def test_each_end_is_to_be_told_until_it_was(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            ids = db.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await dispatcher.send(brief=True)
        assert await store.briefs(OUTBOX, range(SHARDS), 10) == []
        sendings.sort(key=lambda sending: sending.device)
        answers = [answer(sending, ok=sending.device != "d0") for sending in sendings[:2]]
        await dispatcher.take_turn(brief=True, answers=answers)
        due = sorted(await store.briefs(OUTBOX, range(SHARDS), 10), key=lambda entry: entry.id)
        assert [(entry.id, entry.state) for entry in due] == [
            (ids[0], CommandState.FAILED),
            (ids[1], CommandState.ACKNOWLEDGED),
        ]
        assert len(await store.briefs(OUTBOX, range(SHARDS), 1)) == 1
        by_shard = [await store.briefs(OUTBOX, [shard], 10) for shard in range(SHARDS)]
        assert [{entry.shard for entry in entries} - {shard} for shard, entries in enumerate(by_shard)] == [
            set()
        ] * SHARDS
        assert not await store.retry(ids[0]), "its end is yet to be told"
        assert await store.expire(OUTBOX, NOW + 1e6, 10) == 0, "nor is it forgotten"
        await store.briefed(OUTBOX, due)
        await store.briefed(OUTBOX, due)
        assert await store.briefs(OUTBOX, range(SHARDS), 10) == []
        assert await store.retry(ids[0])
        dispatcher.now += 1
        [sending] = await dispatcher.send(brief=True)
        await dispatcher.take_turn(brief=True, answers=[answer(sending)])
        await store.briefed(OUTBOX, due[:1])
        [again] = await store.briefs(OUTBOX, range(SHARDS), 10)
        assert (again.id, again.state) == (ids[0], CommandState.ACKNOWLEDGED), (
            "another end than that which was told"
        )
        await store.briefed(OUTBOX, [again])
        assert await store.expire(OUTBOX, NOW + 1e6, 10) == 2

    async def test_what_operators_cancel_is_told_where_anybody_listens(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, second = db.add([new("d1"), new("d2")])
        assert await store.cancel(first)
        await dispatcher.take_turn(brief=True, sweep=True)
        [due] = await store.briefs(OUTBOX, range(SHARDS), 10)
        assert due.id == first
        await store.briefed(OUTBOX, [due])
        assert not await store.cancel(second), "it is out"
        await dispatcher.take_turn(sweep=True)
        with begin() as db:
            [third] = db.add([new("d1", not_before=NOW + 100)])
        assert await store.cancel(third)
        await dispatcher.take_turn(sweep=True)
        assert await store.briefs(OUTBOX, range(SHARDS), 10) == []
        assert await store.expire(OUTBOX, 1e12, 10) == 2

    # --- sources

    async def test_a_page_and_its_cursor_come_together(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore
    ) -> None:
        shard, epoch = 0, dispatcher.grants[0]
        assert await store.cursor(OUTBOX, "api") is None
        await store.fill(OUTBOX, shard, epoch, "api", "p1", [new("d1", b"1", dedupe_key="1")])
        page = [new("d1", b"1", dedupe_key="1"), new("d1", b"2")]
        await store.fill(OUTBOX, shard, epoch, "api", "p2", page)
        assert await store.cursor(OUTBOX, "api") == "p2"
        assert await store.waiting(OUTBOX, 10) == 2
        assert await store.waiting(OUTBOX, 1) == 1
        await ManualDispatcher(other_store, "other").open(shard)
        with pytest.raises(Fenced):
            await store.fill(OUTBOX, shard, epoch, "api", "p3", [new("d1", b"3")])
        assert await store.cursor(OUTBOX, "api") == "p2"
        assert await store.waiting(OUTBOX, 10) == 2

    # --- operators

    async def test_a_failed_command_can_be_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1", expires_at=NOW + 60)])
        [sending] = await dispatcher.send()
        assert not await store.retry(number)
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        assert await store.retry(number)
        [again] = await dispatcher.send()
        assert again.correlation.tries == 2
        await dispatcher.take_turn(answers=[answer(again)])
        assert (await self._command(store, number)).state is CommandState.ACKNOWLEDGED
        assert not await store.retry(number)
        assert not await store.retry(number + 1000)

    async def test_what_a_newer_command_has_replaced_is_not_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old] = db.add([new("d1", b"in", supersede_key="951")])
        [sending] = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        with begin() as db:
            db.add([new("d1", b"out", supersede_key="951"), new("d2", b"in", supersede_key="951")])
        for sending in await dispatcher.send():
            await dispatcher.take_turn(answers=[answer(sending)])
        assert not await store.retry(old), "who was taken off must not come in again"
        assert await dispatcher.send() == []

    async def test_a_newer_command_replaces_what_was_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old, other] = db.add([new("d1", b"in", supersede_key="951"), new("d1", b"other")])
        [sending] = await dispatcher.send()
        [sending] = await dispatcher.send(answers=[answer(sending, ok=False)])
        assert sending.correlation.command == other
        assert await store.retry(old)
        with begin() as db:
            db.add([new("d1", b"out", supersede_key="951", priority=1)])
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.body == b"out"
        assert await dispatcher.send(answers=[answer(sending)]) == []
        assert (await self._command(store, old)).state is CommandState.SUPERSEDED

    async def test_only_what_isn_t_out_can_be_cancelled(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            out, waiting, last = db.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await dispatcher.send()
        assert not await store.cancel(out)
        assert await store.cancel(waiting)
        entry = await self._command(store, waiting)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "cancelled")
        await dispatcher.take_turn(sweep=True)
        assert [told.id for told in dispatcher.told] == [waiting]
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.correlation.command == last

    async def test_a_caller_takes_back_one_command_with_its_own_change(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            out, waiting, last = db.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await dispatcher.send()
        transaction = begin()
        assert transaction.__enter__().cancel(OUTBOX, command=waiting) == 1
        assert not transaction.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert (await dispatcher.take_turn()).closed == [], "it was rolled back"
        with begin() as db:
            assert db.cancel(OUTBOX, command=waiting) == 1
            assert db.cancel(OUTBOX, command=out) == 0, "its device may be at it"
            assert db.cancel(OUTBOX, command=last + 1000) == 0
            assert db.cancel("gates", command=last) == 0
        result = await dispatcher.take_turn()
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (waiting, CommandState.FAILED, "cancelled")
        ]
        assert dispatcher.told == result.closed
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.correlation.command == last
        assert (await dispatcher.take_turn(answers=[answer(sending)])).sendings == []

    async def test_a_caller_takes_back_all_of_a_device_or_of_a_key(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"out"), new("d1", b"a", supersede_key="951"), new("d1", b"b")])
            db.add([new("d2", b"c", supersede_key="951", not_before=NOW + 100), new("d2", b"d")])
            db.add([new("d3", b"e", supersede_key="952", not_before=NOW + 100)])
        await dispatcher.take_turn(room=0)
        with begin() as db:
            assert db.cancel(OUTBOX, supersede_key="951") == 2
            assert db.cancel(OUTBOX, device="d3", supersede_key="951") == 0
            db.add([new("d2", b"later", supersede_key="951")])
        result = await dispatcher.take_turn(room=0)
        assert sorted(entry.body for entry in result.closed) == [b"a", b"c"]
        with begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 2
            db.add([new("d1", b"after")])
        result = await dispatcher.take_turn()
        assert sorted(entry.body for entry in result.closed) == [b"b", b"out"]
        assert bodies(result.sendings) == [b"after", b"d"], "nothing that is taken back goes out"
        assert await store.cancel_all(OUTBOX, device="d3", supersede_key="952") == 1
        assert [entry.body for entry in (await dispatcher.take_turn()).closed] == [b"e"]

    async def test_what_is_taken_back_does_not_go_out_however_much_it_is(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"%d" % n) for n in range(7)])
        with begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 7
        closed, more = 0, True
        while more:
            result = await dispatcher.take_turn(limit=3)
            assert result.sendings == []
            closed, more = closed + len(result.closed), result.more
        assert closed == 7
        with begin() as db:
            db.add([new("d1", b"again")])
        assert bodies(await dispatcher.send()) == [b"again"]

    async def test_nothing_goes_to_a_device_that_is_paused(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
            db.add([new("d2", b"3", not_before=NOW + 1)])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.pause(OUTBOX, "d1", NOW)
            db.pause(OUTBOX, "d1", NOW + 5)
            db.pause(OUTBOX, "d9", NOW)
        assert await store.paused(OUTBOX) == {"d1": NOW, "d9": NOW}
        assert [status.paused for status in await store.devices(OUTBOX, device="d1")] == [True]
        for _ in range(5):
            dispatcher.now = max(sending.due, dispatcher.now + PATIENCE.probe_s)
            assert b"1" not in bodies(await dispatcher.send())
        assert (await self._command(store, number)).spent == 1
        result = await dispatcher.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.sendings) == (1, []), "its answer counts, and nothing follows"
        assert await store.resume(OUTBOX, "d1")
        assert not await store.resume(OUTBOX, "d1")
        assert bodies(await dispatcher.send()) == [b"2"]

    async def test_what_was_out_when_its_device_was_paused_goes_again_once_it_is_resumed(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        dispatcher.now = sending.due
        assert (await dispatcher.take_turn()).freed == 1
        assert await store.resume(OUTBOX, "d1")
        [again] = await dispatcher.send()
        assert again.correlation.tries == 2

    @pytest.mark.parametrize("is_resumed", [False, True])
    async def test_a_device_that_is_no_longer_waited_for_is_not_freed_by_its_answer(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin, is_resumed: bool
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        dispatcher.now = sending.due
        assert (await dispatcher.take_turn()).freed == 1
        if is_resumed:
            assert await store.resume(OUTBOX, "d1")
            assert (await dispatcher.take_turn(room=0)).sendings == [], "it waits for its turn"
        result = await dispatcher.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 0)

    async def test_what_the_broker_did_not_take_of_a_paused_device_waits_as_it_did(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1"), new("d2")])
        sendings = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        await store.pause(OUTBOX, "d2")
        dispatcher.now = max(sending.due for sending in sendings)
        assert (await dispatcher.take_turn()).freed == 2
        unsent = [Unsent(sending.correlation) for sending in sendings]
        result = await dispatcher.take_turn(unsent=unsent, away={"d2"})
        assert (result.sendings, result.freed) == ([], 0)
        assert await store.in_flight(OUTBOX, range(SHARDS)) == 0
        assert await store.resume(OUTBOX, "d1")
        assert [sending.device for sending in await dispatcher.send(away={"d2"})] == ["d1"]

    async def test_nothing_goes_out_while_the_outbox_is_paused(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX)
        with begin() as db:
            db.add([new("d2", b"3"), new("d2", b"short", expires_at=NOW + 1)])
        dispatcher.now = sending.due
        result = await dispatcher.take_turn(sweep=True)
        assert (result.paused, result.sendings, len(result.closed)) == (True, [], 1)
        result = await dispatcher.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert await store.resume(OUTBOX)
        result = await dispatcher.take_turn()
        assert (result.paused, bodies(result.sendings)) == (False, [b"2", b"3"])

    async def test_commands_are_listed_by_page_state_and_device(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            numbers = db.add([new(f"d{n % 2}", b"%d" % n) for n in range(6)])
        await dispatcher.take_turn()
        assert [entry.id for entry in await store.commands(OUTBOX)] == numbers
        assert [entry.id for entry in await store.commands(OUTBOX, after=numbers[1], limit=2)] == numbers[2:4]
        newest = await store.commands(OUTBOX, limit=2, newest=True)
        assert [entry.id for entry in newest] == numbers[:-3:-1]
        before = await store.commands(OUTBOX, after=newest[-1].id, limit=2, newest=True)
        assert [entry.id for entry in before] == numbers[-3:-5:-1]
        assert [entry.id for entry in await store.commands(OUTBOX, state=CommandState.PUBLISHED)] == numbers[
            :2
        ]
        assert [entry.id for entry in await store.commands(OUTBOX, device="d1")] == numbers[1::2]
        assert await store.command(numbers[-1] + 1000) is None
        assert await store.counts(OUTBOX) == {CommandState.SCHEDULED: 4, CommandState.PUBLISHED: 2}

    async def test_devices_are_listed_with_what_waits_and_when_seen(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in (1, 1, 2, 3)])
        await dispatcher.take_turn(seen={"d2": NOW - 5, "d4": NOW - 500}, away={"d4"})
        statuses = await store.devices(OUTBOX)
        told = [(s.device, s.phases, s.waiting, s.seen_at, s.away) for s in statuses]
        assert told == [
            ("d1", (HeadPhase.OUT,), 2, None, False),
            ("d2", (HeadPhase.OUT,), 1, NOW - 5, False),
            ("d3", (HeadPhase.OUT,), 1, None, False),
            ("d4", (), 0, NOW - 500, True),
        ]
        assert all(status.shard == shard_of(status.device, SHARDS) for status in statuses)
        assert await store.devices(OUTBOX, after="d1", limit=2) == statuses[1:3]
        assert await store.devices(OUTBOX, device="d3") == statuses[2:3]
        await dispatcher.take_turn(seen={"d4": NOW})
        [status] = await store.devices(OUTBOX, device="d4")
        assert (status.seen_at, status.away) == (NOW, False)

    async def test_closed_commands_are_dropped_by_age(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in range(5)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings[:3]])
        dispatcher.now += 2
        await dispatcher.take_turn(answers=[answer(sendings[3])])
        assert await store.expire(OUTBOX, NOW, 10) == 0
        assert await store.expire(OUTBOX, NOW + 1, 2) == 2
        assert await store.expire(OUTBOX, NOW + 1, 2) == 1
        assert await store.expire(OUTBOX, NOW + 1, 2) == 0
        assert await store.counts(OUTBOX) == {CommandState.PUBLISHED: 1, CommandState.ACKNOWLEDGED: 1}

    async def test_what_is_archived_is_dropped_too(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            ids = db.add([new(f"d{n}") for n in range(3)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        assert await store.expire(OUTBOX, NOW + 1, 2, archive=True) == 2
        assert await store.expire(OUTBOX, NOW + 1, 2, archive=True) == 1
        assert await store.expire(OUTBOX, NOW + 1, 2, archive=True) == 0
        assert await store.commands(OUTBOX) == []
        with begin() as db:
            [fresh] = db.add([new("d1")])
        assert fresh not in ids, "an id is never given twice"

    async def test_who_comes_later_knows_devices_and_who_was_away(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}", lane=lane) for n in range(4) for lane in range(2)])
        away = {"d1", "d3"}
        await dispatcher.take_turn(seen={"d0": NOW - 5, "d1": NOW - 500, "d3": None, "d9": NOW}, away=away)
        known = [each for shard in range(SHARDS) for each in await store.known(OUTBOX, shard)]
        assert sorted((each.device, each.seen_at, each.away) for each in known) == [
            ("d0", NOW - 5, False),
            ("d1", NOW - 500, True),
            ("d2", None, False),
            ("d3", None, True),
        ]
        assert all(shard_of(each.device, SHARDS) == 0 for each in await store.known(OUTBOX, 0)), (
            "each shard has its own"
        )
        await dispatcher.take_turn(seen={"d1": None}, away=away)
        [status] = await store.devices(OUTBOX, device="d1")
        assert (status.seen_at, status.away) == (NOW - 500, True), "what was seen stands"

    async def test_closing_ends_who_waits_for_arrivals(
        self, dispatcher: ManualDispatcher, store: OutboxStore
    ) -> None:
        await store.arrived(OUTBOX, 0.01)
        waiting = asyncio.ensure_future(store.arrived(OUTBOX, 3600))
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait_for(waiting, PATIENCE_S)

    async def _command(self, store: OutboxStore, number: int) -> StoredCommand:
        entry = await store.command(number)
        assert entry is not None
        return entry
