"""Promises of answers, and of tries that get none."""

from __future__ import annotations

from holdfast.devices.conformance.outbox_bench import (
    LATEST_S,
    NOW,
    OUTBOX,
    PATIENCE,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.rules.device_queue import CommandState, Correlation, HeadPhase
from holdfast.devices.rules.device_turn import CommandAnswer, Unsent


class AnswersConformance(OutboxFixtures):
    """Promises of answers, and of tries that get none."""

    # --- answers

    async def test_a_newer_command_replaces_before_its_arrival_was_read(self, driver: Driver) -> None:
        [old, _] = driver.add([new("d1", b"%d" % n, supersede_key="p1") for n in range(2)])
        result = await driver.take_turn(limit=1)
        assert ([entry.id for entry in result.closed], bodies(result.sendings)) == ([old], [b"1"])
        assert (await driver.stored(old)).state is CommandState.SUPERSEDED

    async def test_only_a_published_command_can_be_answered(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        driver.add([new("d2")])
        first = next(s for s in await driver.send() if s.device == "d1")
        driver.now = first.due
        second = next(s for s in await driver.send() if s.device == "d1")
        assert second.correlation.tries == 2
        epoch, command, tries = second.correlation.epoch, second.correlation.command, 2
        strays = [
            CommandAnswer("d2", second.correlation),
            CommandAnswer("d1", Correlation(epoch, command, tries + 1)),
            CommandAnswer("d1", Correlation(epoch - 1, command, tries)),
            CommandAnswer("d2", first.correlation),
            CommandAnswer("d1", Correlation(epoch, command + 1000, tries)),
        ]
        result = await driver.take_turn(answers=strays)
        assert (result.unmatched, result.closed) == (strays, [])
        assert (await driver.stored(number)).state is CommandState.PUBLISHED
        result = await driver.take_turn(answers=[answer(second), answer(second)])
        assert (len(result.closed), result.unmatched) == (1, [answer(second)])
        result = await driver.take_turn(answers=[answer(second)])
        assert (result.closed, result.unmatched) == ([], [answer(second)])
        assert len(driver.reported) == 1

    async def test_an_answer_to_an_earlier_try_counts(self, driver: Driver) -> None:
        [number, _, _] = driver.add([new("d1", b"%d" % n) for n in range(3)])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now += 1
        result = await driver.take_turn(answers=[answer(first, b"late")])
        assert (result.late, result.unmatched, result.freed, result.sendings) == (1, [], 0, [])
        entry = await driver.stored(number)
        assert (entry.state, entry.answer, driver.reported) == (
            CommandState.ACKNOWLEDGED,
            b"late",
            [entry],
        )
        result = await driver.take_turn(answers=[answer(first, b"late")])
        assert (len(result.unmatched), result.closed, result.sendings) == (1, [], [])
        result = await driver.take_turn(answers=[answer(second)])
        assert (result.unmatched, result.closed, result.freed) == ([], [], 1)
        [first] = result.sendings
        assert first.body == b"1"
        assert len((await driver.take_turn(answers=[answer(second)])).unmatched) == 1, "it is over"
        driver.now = first.due
        [second] = await driver.send()
        result = await driver.take_turn(answers=[answer(first)])
        assert (len(result.closed), result.freed, result.sendings) == (1, 0, [])
        driver.now += LATEST_S
        result = await driver.take_turn()
        assert (result.freed, bodies(result.sendings)) == (1, [b"2"]), "the last one will never be answered"

    async def test_a_late_answer_does_not_lengthen_the_wait_for_the_last_try(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now = second.due - 1
        assert await driver.send(answers=[answer(first)]) == []
        driver.now = second.due
        assert bodies(await driver.send()) == [b"2"]

    async def test_a_late_answer_to_a_held_command_frees_its_device(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now = second.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        result = await driver.take_turn(answers=[answer(first)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_a_slow_device_is_not_asked_again_too_soon(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send(slow={"d1": 40.0})
        assert sending.due - driver.now == 60.0
        driver.now += 59
        assert await driver.send(check_dues=True, slow={"d1": 40.0}) == []

    async def test_a_refusal_closes_and_the_next_goes(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        assert bodies(await driver.send(answers=[answer(sending, b"no", ok=False)])) == [b"2"]
        entry = await driver.stored(number)
        assert (entry.state, entry.answer, entry.reason) == (CommandState.FAILED, b"no", "the device refused")

    # --- tries, expiry, absence

    async def test_a_command_without_an_answer_is_sent_again_and_fails(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        for tries, least_s in ((2, 20.0), (3, 35.0)):
            driver.now = sending.due - 0.1
            assert await driver.send() == []
            driver.now = sending.due
            result = await driver.take_turn()
            [sending] = result.sendings
            assert result.repeats == 1
            assert (sending.correlation.tries, sending.body) == (tries, b"1")
            assert sending.due - driver.now >= least_s
        driver.now = sending.due
        result = await driver.take_turn()
        assert (bodies(result.sendings), result.freed, result.repeats) == ([b"2"], 1, 0)
        entry = await driver.stored(number)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "no answer in all tries")
        assert driver.reported == [entry]

    async def test_an_expired_command_is_not_sent(self, driver: Driver) -> None:
        numbers = driver.add([new("d1", b"%d" % n, expires_at=NOW + 5) for n in range(30)])
        driver.add([new("d1", b"lasting")])
        [sending] = await driver.send()
        driver.now += 5
        assert (await driver.take_turn()).closed == [], "the device may be at it"
        sendings = await driver.send(answers=[answer(sending)])
        while not sendings:
            sendings = await driver.send()
        assert bodies(sendings) == [b"lasting"]
        states = [(await driver.stored(number)).state for number in numbers]
        assert states == [CommandState.ACKNOWLEDGED, *[CommandState.EXPIRED] * 29]
        assert len(driver.reported) == 30

    async def test_a_sweep_closes_expired_commands(self, driver: Driver) -> None:
        _, number = driver.add([new("d1"), new("d1", b"short", expires_at=NOW + 5)])
        await driver.take_turn()
        driver.now += 5
        await driver.take_turn(sweep=True)
        assert (await driver.stored(number)).state is CommandState.EXPIRED
        assert [entry.body for entry in driver.reported] == [b"short"]

    async def test_a_device_that_is_away_is_only_probed(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        away = {"d1"}
        assert await driver.send(away=away) == []
        for tries in range(1, 5):
            driver.now += PATIENCE.probe_s
            [probe] = await driver.send(away=away)
            assert probe.correlation.tries == tries
            driver.now = probe.due
            result = await driver.take_turn(away=away)
            assert (result.sendings, result.freed) == ([], 1)
        assert (await driver.stored(number)).spent == 0
        assert [status.phases for status in await driver.store.devices(OUTBOX)] == [(HeadPhase.HELD,)]
        [sending] = await driver.send(back=["d1"])
        assert sending.correlation.tries == 5
        result = await driver.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 1)

    async def test_a_late_answer_of_a_held_command_closes_it(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        driver.now = sending.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        result = await driver.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_an_unsent_try_is_given_back(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        [sending] = await driver.send()
        for tries in range(2, 6):
            await driver.take_turn(unsent=[Unsent(sending.correlation)], pause_s=1.0)
            assert await driver.send() == []
            driver.now += 2.0 ** (tries - 2)
            [sending] = await driver.send()
            assert sending.correlation.tries == tries
        entry = await driver.stored(number)
        assert (entry.tries, entry.spent) == (5, 1)
        await driver.take_turn(unsent=[Unsent(sending.correlation, certain=False)])
        driver.now += 1.0
        assert await driver.send() == [], "it may have reached the device"
        driver.now = sending.due
        assert len(await driver.send()) == 1

    async def test_a_refused_command_fails_after_all_tries(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        for tries in range(1, PATIENCE.max_tries):
            [sending] = await driver.send()
            await driver.take_turn(unsent=[Unsent(sending.correlation, refusal="not allowed")])
            entry = await driver.stored(number)
            assert (entry.tries, entry.spent, entry.reason) == (tries, tries, "not allowed")
            driver.now = sending.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        driver.now += PATIENCE.probe_s
        [probe] = await driver.send(away={"d1"})
        refused = Unsent(probe.correlation, spent=probe.counts, refusal="not allowed")
        result = await driver.take_turn(unsent=[refused])
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (number, CommandState.FAILED, "not allowed")
        ]
        assert bodies(result.sendings) == [b"2"]
