"""Promises of answers, and of tries that get none."""

from __future__ import annotations

from holdfast.devices.conformance.outbox_bench import (
    LATEST_S,
    NOW,
    OUTBOX,
    PATIENCE,
    Begin,
    ManualDispatcher,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_queue import CommandState, Correlation, HeadPhase
from holdfast.devices.rules.device_turn import CommandAnswer, Unsent


class AnswersConformance(OutboxFixtures):
    """Promises of answers, and of tries that get none."""

    # --- answers

    async def test_a_newer_command_replaces_before_its_arrival_was_read(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old, _] = db.add([new("d1", b"%d" % n, supersede_key="p1") for n in range(2)])
        result = await dispatcher.take_turn(limit=1)
        assert ([entry.id for entry in result.closed], bodies(result.sendings)) == ([old], [b"1"])
        assert (await self.standing(store, old)).state is CommandState.SUPERSEDED

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
        assert (result.unmatched, result.closed) == (strays, [])
        assert (await self.standing(store, number)).state is CommandState.PUBLISHED
        result = await dispatcher.take_turn(answers=[answer(second), answer(second)])
        assert (len(result.closed), result.unmatched) == (1, [answer(second)])
        result = await dispatcher.take_turn(answers=[answer(second)])
        assert (result.closed, result.unmatched) == ([], [answer(second)])
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
        assert (result.late, result.unmatched, result.freed, result.sendings) == (1, [], 0, [])
        entry = await self.standing(store, number)
        assert (entry.state, entry.answer, dispatcher.told) == (CommandState.ACKNOWLEDGED, b"late", [entry])
        result = await dispatcher.take_turn(answers=[answer(first, b"late")])
        assert (len(result.unmatched), result.closed, result.sendings) == (1, [], [])
        result = await dispatcher.take_turn(answers=[answer(second)])
        assert (result.unmatched, result.closed, result.freed) == ([], [], 1)
        [first] = result.sendings
        assert first.body == b"1"
        assert len((await dispatcher.take_turn(answers=[answer(second)])).unmatched) == 1, "it is over"
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
        entry = await self.standing(store, number)
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
        entry = await self.standing(store, number)
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
        states = [(await self.standing(store, number)).state for number in numbers]
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
        assert (await self.standing(store, number)).state is CommandState.EXPIRED
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
        assert (await self.standing(store, number)).spent == 0
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
        entry = await self.standing(store, number)
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
            entry = await self.standing(store, number)
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
