"""The dispatcher, in virtual time."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from holdfast.devices.ports.device import Command, CommandRefused
from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules.device_queue import CommandState, HeadPhase, Patience, shard_of
from holdfast.devices.rules.device_turn import TurnRequest, TurnResult
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.services.memory.device import MemoryDevices
from holdfast.devices.services.memory.terminal import Behaviour
from holdfast.errors import InvalidMessage, OutcomeUnknown, Unavailable
from tests.devices.simulated.conftest import Site, TakeTurn

PATIENCE = Patience(retry_s=10.0, retry_max_s=20.0, max_tries=3, probe_s=30.0)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)


async def test_commands_go_one_after_the_other(site: Site) -> None:
    await site.start(2, Behaviour(latency_s=0.1))
    commands = [await site.add(f"d{n % 2}") for n in range(10)]
    await site.done(commands)
    counts = site.dispatcher.counts
    assert (counts.sent, counts.closed, counts.repeated, counts.unmatched) == (10, 10, 0, 0)
    assert site.dispatcher.in_flight == 0
    assert site.clock.monotonic() < 1.0, "the next follows at once"


async def test_an_idle_dispatcher_turns_about_once_a_second(site: Site) -> None:
    await site.start(1)
    await site.run("d0")
    turns = site.dispatcher.counts.turns
    await site.clock.sleep(600.0)
    assert site.dispatcher.counts.turns - turns < 700


async def test_a_silent_device_costs_its_own_slot_only(site: Site) -> None:
    await site.start(1, patience=PATIENCE, presence=NO_PRESENCE)
    for n in range(50):
        site.silence(f"silent-{n}")
    silent = [await site.add(f"silent-{n}") for n in range(50)]
    for _ in range(20):
        await site.run("d0", within_s=1.0)
    for command in silent:
        entry = await site.until(command, CommandState.FAILED)
        assert (entry.tries, entry.reason) == (3, "no answer in all tries")


async def test_a_device_that_isn_t_there_uses_up_no_tries_and_starts_at_once(site: Site) -> None:
    await site.start(0, patience=PATIENCE)
    commands = [await site.add("late") for _ in range(3)]
    await site.clock.sleep(300.0)
    entry = await site.command(commands[0])
    assert (entry.state is CommandState.PUBLISHED, entry.spent) == (True, 0)
    site.answer_all("late")
    site.broker.heartbeat("late")
    await site.done(commands, within_s=1.0)


async def test_who_was_away_is_so_for_the_next_dispatcher_too(site: Site) -> None:
    await site.start(0, patience=PATIENCE, presence=PresenceRules(offline_after_s=15.0))
    site.silence("d0")
    command = await site.add("d0")
    async with asyncio.timeout(60.0):
        while [(s.away, s.seen_at) for s in await site.store.devices("doors")] != [(True, None)]:
            await site.clock.sleep(1.0)
    before = await site.command(command)
    await site.dispatcher.served.disown(0)
    await site.own()
    await site.clock.sleep(10 * PATIENCE.probe_s)
    after = await site.command(command)
    assert after.tries >= before.tries + 5, "it is tried now and then"
    assert (after.spent, after.state) == (before.spent, CommandState.PUBLISHED)
    site.answer_all("d0")
    held = (HeadPhase.HELD,)
    while (await site.store.devices("doors"))[0].phases != held:  # else the try that is out goes on
        await site.clock.sleep(1.0)
    site.broker.heartbeat("d0")
    await site.until(command, CommandState.ACKNOWLEDGED, within_s=1.0)
    await site.clock.sleep(6.0)
    [status] = await site.store.devices("doors")
    assert (status.away, status.seen_at is not None) == (False, True)


async def test_an_answer_that_is_refused_says_so(site: Site) -> None:
    site.broker.max_payload = 100
    await site.start(0)
    site.answer_all("d0")
    entry = await site.until(await site.add("d0", {"name": "x" * 200}), CommandState.FAILED)
    assert "max_payload" in entry.reason
    site.broker.cut(site.outbox.spec.identity(0))
    assert site.log.events("warning").count("broker limit below max_body") == 1
    await site.run("d0")


async def test_a_command_that_breaks_connections_fails_alone(site: Site) -> None:
    await site.start(10, patience=PATIENCE)
    take, cuts = site.broker.take, []

    def take_or_cut(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        if b"poison" in payload:
            cuts.append(command.id)
            site.broker.later(lambda: site.broker.cut(devices.identity))
        else:
            take(devices, command, payload)

    with mock.patch.object(site.broker, "take", take_or_cut):
        poison = await site.add("d0", {"name": "poison"})
        others = [await site.add(f"d{n % 10}") for n in range(50)]
        entry = await site.until(poison, CommandState.FAILED)
        for command in others:
            assert (await site.until(command, CommandState.ACKNOWLEDGED)).spent <= 2
    assert entry.tries == len(cuts)
    assert entry.spent == PATIENCE.max_tries


async def test_a_command_that_the_broker_never_takes_fails_at_once(site: Site) -> None:
    await site.start(0, patience=PATIENCE)
    site.silence("d0")
    with mock.patch.object(site.broker, "take", lambda devices, command, _: devices.receive(
        CommandRefused(command.device, command.id, "too large for mqtt://user:hunter2@host", final=True)
    )):  # fmt: skip
        entry = await site.until(await site.add("d0"), CommandState.FAILED, within_s=1.0)
    assert (entry.tries, entry.reason) == (1, "too large for mqtt://user:***@host")


@pytest.mark.parametrize(
    "presence",
    [PresenceRules(offline_after_s=5.0), PresenceRules(heartbeats=False, silent_tries=2)],
    ids=["away", "there"],
)
async def test_a_command_that_the_broker_refuses_fails_after_all_tries(
    site: Site, presence: PresenceRules
) -> None:
    await site.start(1, patience=PATIENCE, presence=presence)
    take = site.broker.take

    def refuse_one(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        if command.device == "denied":
            devices.receive(CommandRefused(command.device, command.id, "not allowed", counts=True))
        else:
            take(devices, command, payload)

    with mock.patch.object(site.broker, "take", refuse_one):
        entry = await site.until(await site.add("denied"), CommandState.FAILED)
        assert (entry.tries, entry.spent, entry.reason) == (3, 3, "not allowed")
        await site.run("d0", within_s=1.0)
        [status] = await site.store.devices("doors", device="denied")
        assert status.away == presence.heartbeats, "a refusal says nothing of the device"
    assert site.log.events("warning").count("command refused by the broker") == 1


async def test_events_that_a_turn_could_not_store_go_to_the_next(site: Site) -> None:
    take = site.broker.take
    refused: list[str] = []
    failed: list[str] = []

    def refuse_once(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        if refused:
            take(devices, command, payload)
        else:
            refused.append(command.id)
            devices.receive(CommandRefused(command.device, command.id, "busy"))

    async def fail_once(request: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        for what in ("unsent", "seen"):
            if getattr(request, what) and what not in failed:
                failed.append(what)
                raise Unavailable("it is gone")
        return await take_turn()

    site.around_turns(fail_once)
    await site.start(1, patience=PATIENCE)
    with mock.patch.object(site.broker, "take", refuse_once):
        entry = await site.run("d0")
    assert (entry.tries, entry.spent) == (2, 1)
    await site.clock.sleep(12.0)
    assert failed == ["unsent", "seen"]
    [status] = await site.store.devices("doors")
    assert status.seen_at is not None


async def test_odd_answers_change_nothing_and_are_logged_once(site: Site) -> None:
    await site.start(0, patience=PATIENCE)
    heard: list[str] = []
    site.broker.listen("d0", lambda id_, payload: heard.append(id_))
    command = await site.add("d0")
    await site.until(command, CommandState.PUBLISHED)
    for _ in range(3):
        for odd in ("1.1.1", "garbage"):
            site.broker.answer("d0", odd, b"{}")
    await site.clock.sleep(1.0)
    await site.until(command, CommandState.PUBLISHED)
    assert site.log.events("warning").count("unmatched answer ignored") == 2
    site.broker.answer("d0", heard[0], b"{}")
    await site.until(command, CommandState.ACKNOWLEDGED)


async def test_invented_devices_leave_no_rows(site: Site) -> None:
    await site.start(1, patience=PATIENCE, presence=PresenceRules(offline_after_s=5.0))
    await site.run("d0")
    turns = site.dispatcher.counts.turns
    for n in range(1000):
        site.broker.heartbeat(f"invented-{n}")
        site.broker.answer(f"invented-{n}", "1.1.1", b"{}")
        site.broker.answer(f"invented-{n}", "garbage", b"{}")
    site.broker.heartbeat("d0")
    await site.clock.sleep(30.0)
    assert [status.device for status in await site.store.devices("doors")] == ["d0"]
    assert site.dispatcher.counts.unknown_devices == 3000
    assert len(site.log.events("warning")) == 1
    assert site.dispatcher.away == 1
    assert site.dispatcher.counts.turns - turns < 40, "they cost no turns"


async def test_a_device_that_answers_late_is_waited_for(site: Site) -> None:
    behaviour = Behaviour(latency_s=8.0, spread=0.2)
    await site.start(1, behaviour, patience=Patience(retry_s=2.0, retry_max_s=4.0, max_tries=5))
    for _ in range(5):
        await site.run("d0")
    counts = site.dispatcher.counts
    assert (counts.closed, counts.ends) == (5, {CommandState.ACKNOWLEDGED: 5})
    assert counts.late >= 1
    assert counts.repeated <= 5, "once it is known how long its answers take it isn't asked twice"
    assert "late answers detected" in site.log.events("warning")
    assert len(site.log.events("warning")) <= 2


async def test_nothing_is_sent_while_the_broker_is_away(site: Site) -> None:
    await site.start(3, patience=PATIENCE)
    await site.run("d0")
    site.broker.stop()
    await site.clock.sleep(1.0)
    commands = [await site.add(f"d{n}") for n in range(3)]
    await site.clock.sleep(100.0)
    scheduled = await site.store.commands("doors", state=CommandState.SCHEDULED)
    assert [entry.tries for entry in scheduled] == [0, 0, 0]
    site.broker.resume()
    await site.done(commands, within_s=5.0)


async def test_a_broker_that_confirms_nothing_delays_commands_for_a_while(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryDevices, "accepted", lambda *_, **__: None)
    await site.start(1, patience=PATIENCE, presence=NO_PRESENCE)
    for _ in range(5):
        await site.run("d0", within_s=1.0)
        await site.clock.sleep(5.0)
    site.silence("silent")
    silent = await site.add("silent")
    await site.until(silent, CommandState.PUBLISHED)
    await site.clock.sleep(5.0)
    held_up = await site.add("d0")
    await site.clock.sleep(5.0)
    assert (await site.command(held_up)).state is CommandState.SCHEDULED
    await site.until(held_up, CommandState.ACKNOWLEDGED, within_s=70.0)


async def test_the_rate_and_what_is_in_flight_are_limited(site: Site) -> None:
    await site.start(30, Behaviour(latency_s=0.5), rate=20.0, in_flight_max=4)
    commands = [await site.add(f"d{n}") for n in range(30)]
    most = 0
    while site.dispatcher.counts.closed < len(commands):
        most = max(most, site.dispatcher.in_flight)
        await site.clock.sleep(0.05)
    assert most == 4
    assert site.clock.monotonic() >= 30 / 4 * 0.5


async def test_a_rate_spreads_what_is_ready(site: Site) -> None:
    await site.start(100, rate=10.0)
    for n in range(100):
        await site.add(f"d{n}")
    await site.clock.sleep(5.0)
    assert 45 <= site.dispatcher.counts.sent <= 55


async def test_a_takeover_of_the_identity_loses_the_shard(site: Site) -> None:
    await site.start(1)
    await site.run("d0")
    await MemoryDevices(site.broker, site.outbox.spec.identity(0)).start()
    await site.clock.sleep(1.0)
    assert site.lost == [0]


async def test_without_a_membership_there_are_no_turns(site: Site) -> None:
    await site.start(1)
    site.membership.alive = False
    await site.add("d0")
    await site.clock.sleep(10.0)
    assert site.dispatcher.counts.turns <= 1
    site.membership.alive = True
    await site.clock.sleep(5.0)
    assert site.dispatcher.counts.closed == 1


async def test_a_turn_of_unknown_outcome_is_fenced(site: Site) -> None:
    await site.start(1)
    before = await site.store.epochs("doors")
    lost = [True]

    async def unanswered(_: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        result = await take_turn()
        if lost:
            lost.clear()
            raise OutcomeUnknown("the answer was lost")
        return result

    site.around_turns(unanswered)
    await site.run("d0")
    after = await site.store.epochs("doors")
    assert after[0] > before[0]
    assert site.lost == []


async def test_a_try_that_a_crash_took_back_is_known_to_the_next_owner(site: Site) -> None:
    await site.start(0, patience=PATIENCE, presence=NO_PRESENCE)
    times: list[float] = []
    site.broker.listen("d0", lambda id_, payload: times.append(site.clock.monotonic()))
    await site.add("d0")
    before = site.store.tables
    while not times:
        await site.clock.sleep(0.01)
    site.store.tables = before  # which forgets that it was sent
    await site.take_from()
    crashed = [True]

    async def crash_once(_: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        if crashed:
            crashed.clear()
            raise Unavailable("it has crashed since the last turn")
        return await take_turn()

    site.around_turns(crash_once)
    await site.add("d0")
    await site.wait(lambda: site.lost == [0], 10.0, 0.01)
    await site.dispatcher.served.disown(0)
    await site.own()
    await site.wait(lambda: len(times) >= 2, 60.0, 0.1)
    assert times[1] - times[0] >= PATIENCE.retry_s


@pytest.mark.slow
async def test_one_answer_that_was_on_its_way_for_very_long_is_soon_forgotten(site: Site) -> None:
    await site.start(0, patience=PATIENCE, presence=NO_PRESENCE)
    slow = SlowAnswer(site)
    await site.until(await slow.command(), CommandState.FAILED)
    await site.clock.sleep(3000.0)
    await slow.answer()
    answer = [True]

    def hear(id_: str, payload: bytes) -> None:
        slow.came.append(id_)
        if answer[0]:
            site.broker.answer("slow", id_, b"{}")

    site.broker.listen("slow", hear)
    for _ in range(20):
        await site.run("slow")
    answer[0] = False
    await site.add("slow")
    sent = len(slow.came)
    await site.clock.sleep(2 * PATIENCE.retry_s)
    assert len(slow.came) - sent >= 2, "it is sent again after the usual time"


async def test_a_shard_in_doubt_is_kept_until_it_can_be_opened_again(site: Site) -> None:
    await site.start(1)
    before = (await site.store.epochs("doors"))[0]
    unclear = mock.patch.object(site.store, "take_turn", side_effect=[OutcomeUnknown("no answer")] * 3)
    away = mock.patch.object(site.store, "open", side_effect=Unavailable("it is away"))
    with unclear as turns, away as reopened:
        command = await site.add("d0")
        await site.clock.sleep(20.0)
        assert reopened.call_count > 1
        assert turns.call_count == 1, "no turn is taken before the shard is open again"
    await site.until(command, CommandState.ACKNOWLEDGED)
    assert (await site.store.epochs("doors"))[0] > before
    assert site.lost == []


async def test_sources_stop_when_their_shard_goes_while_it_is_reopened(site: Site) -> None:
    await site.start(1)
    first_shards = list[int | None]()
    site.dispatcher.served.on_first_shard = first_shards.append
    opened, asked, gate = site.store.open, asyncio.Event(), asyncio.Event()

    async def open_late(*given: Any) -> int:
        asked.set()
        await gate.wait()
        return await opened(*given)

    unclear = mock.patch.object(site.store, "take_turn", side_effect=OutcomeUnknown("no answer"))
    with unclear, mock.patch.object(site.store, "open", open_late):
        await site.add("d0")
        await asked.wait()
        gone = asyncio.ensure_future(site.dispatcher.served.disown(0))
        while not first_shards:
            await site.clock.sleep(0.01)
        gate.set()
        await gone
    assert first_shards == [None]


async def test_disowning_ends_all_work_for_a_shard(site: Site) -> None:
    await site.start(1)
    await site.run("d0")
    await site.dispatcher.served.disown(0)
    await site.dispatcher.served.disown(0)
    command = await site.add("d0")
    await site.clock.sleep(10.0)
    await site.until(command, CommandState.SCHEDULED)
    assert site.dispatcher.shards == {}
    await site.own()
    await site.until(command, CommandState.ACKNOWLEDGED)


class SlowAnswer:
    """A device whose command is out, and whose answer the test gives."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.came: list[str] = []
        site.broker.listen("slow", lambda id_, payload: self.came.append(id_))

    async def command(self) -> int:
        """Send it a command; returns once it has come."""
        command = await self.site.add("slow")
        while not self.came:
            await self.site.clock.sleep(0.01)
        return command

    async def answer(self) -> None:
        """Answer the first try; returns once the answer is heard."""
        self.site.broker.answer("slow", self.came[0], b"{}")
        await self.site.clock.sleep(0.1)


async def test_answers_are_written_before_their_shard_goes(site: Site) -> None:
    await site.start(1)
    slow = SlowAnswer(site)
    command = await slow.command()
    gate, at_gate = asyncio.Event(), asyncio.Event()

    async def gated(_: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        at_gate.set()
        await gate.wait()
        return await take_turn()

    site.around_turns(gated)
    await site.add("d0")
    await at_gate.wait()
    await slow.answer()
    going = asyncio.ensure_future(site.dispatcher.served.disown(0))
    await site.clock.sleep(0.1)
    gate.set()
    await going
    assert (await site.command(command)).state is CommandState.ACKNOWLEDGED
    assert site.dispatcher.shards == {}


async def test_a_shard_goes_although_no_turn_can_be_written(site: Site) -> None:
    await site.start(1)
    slow = SlowAnswer(site)
    await slow.command()
    with mock.patch.object(site.store, "take_turn", side_effect=Unavailable("the database is gone")):
        await slow.answer()
        async with asyncio.timeout(30.0):
            await site.dispatcher.served.disown(0)
    assert site.dispatcher.shards == {}


@pytest.mark.parametrize("failing_turns", [1, 1000])
async def test_answers_of_a_lost_shard_are_kept_until_it_comes_back(site: Site, failing_turns: int) -> None:
    """Also where a turn is written after the shard has gone: it says nothing of that shard."""
    await site.start(1)
    slow = SlowAnswer(site)
    command = await slow.command()
    opened, taken, turns = site.store.open, site.store.take_turn, itertools.count()

    async def unclear_turn(request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        if next(turns) < failing_turns:
            raise OutcomeUnknown("no answer")
        return await taken(request, on_result)

    async def unanswered(*args: Any) -> int:
        await opened(*args)
        raise OutcomeUnknown("the answer was lost")

    unclear = mock.patch.object(site.store, "take_turn", unclear_turn)
    untold = mock.patch.object(site.store, "open", unanswered)
    ended: list[MemoryDevices] = []
    with unclear, untold, mock.patch.object(site.broker, "disconnect", ended.append):
        await slow.answer()
        await site.clock.sleep(1.0)
        assert site.lost == [0]
        assert ended, "the broker keeps what devices say from now on for the next owner"
    await site.dispatcher.served.disown(0)
    await site.own()
    await site.until(command, CommandState.ACKNOWLEDGED, within_s=5.0)
    assert len(slow.came) == 1


async def test_answers_of_a_fenced_turn_are_kept_until_the_shard_comes_back(site: Site) -> None:
    await site.start(1)
    slow = SlowAnswer(site)
    command = await slow.command()
    await site.take_from()
    await slow.answer()
    assert site.lost == [0]
    await site.dispatcher.served.disown(0)
    await site.own()
    await site.until(command, CommandState.ACKNOWLEDGED, within_s=5.0)
    assert len(slow.came) == 1


async def test_a_clock_that_is_set_shifts_what_is_due(site: Site) -> None:
    await site.start(0, patience=PATIENCE, presence=NO_PRESENCE)
    times: list[float] = []
    site.broker.listen("d0", lambda id_, payload: times.append(site.clock.monotonic()))
    await site.add("d0", expires_in_s=None)
    wall, jumps = site.clock.wall, [3600.0, -7200.0]
    for jump_s in jumps:
        await site.clock.sleep(6.0)
        site.clock.wall = lambda by=jump_s: wall() + by  # type: ignore[misc, method-assign]
    await site.wait(lambda: len(times) >= 3, 60.0, 0.1)
    first, second, third = times
    assert second - first >= PATIENCE.retry_s
    assert third - second >= 2 * PATIENCE.retry_s * 0.9


async def test_limits_are_divided_as_the_shards_are(site: Site) -> None:
    await site.start(200, Behaviour(latency_s=1.0), shards=4, rate=40.0, in_flight_max=40)
    for number in (1, 2, 3):
        await site.dispatcher.served.disown(number)
    for n in range(200):
        await site.add(f"d{n}")
    most, begun_at, before = 0, site.clock.monotonic(), site.dispatcher.counts.sent
    while site.clock.monotonic() - begun_at < 4.0:
        most = max(most, site.dispatcher.in_flight)
        await site.clock.sleep(0.05)
    assert most == 10
    assert 30 <= site.dispatcher.counts.sent - before <= 45, "a fourth of 40 a second"


@pytest.mark.parametrize("returned", [None, 7, ["a"]])
async def test_a_device_for_which_group_returns_no_text_has_no_group(site: Site, returned: Any) -> None:
    await site.start(3, group=lambda device: returned, group_rates={"a": 0.01})
    commands = [await site.add(f"d{n}") for n in range(3)]
    await site.done(commands, within_s=1.0)
    [(_, event, fields)] = [entry for entry in site.log.entries if entry[0] == "error"]
    assert event == "group function failed"
    assert (fields["outbox"], fields["error"]) == ("doors", f"it returned {type(returned).__name__}")
    assert fields["device"] in ("d0", "d1", "d2")


async def test_a_group_that_fails_for_some_devices_limits_the_others_all_the_same(site: Site) -> None:
    await site.start(5, group={"d0": "a", "d1": "a", "d2": "b"}.__getitem__, group_rates={"a": 0.1})
    commands = [await site.add(f"d{n}") for n in range(5)]
    await site.done(commands[2:], within_s=1.0)
    limited = {(await site.command(command)).state for command in commands[:2]}
    assert limited == {CommandState.ACKNOWLEDGED, CommandState.SCHEDULED}
    [(_, _, fields)] = [entry for entry in site.log.entries if entry[0] == "error"]
    assert (fields["error"], ".py:" in fields["at"]) == ("KeyError", True)
    await site.done(commands)


async def test_failures_of_group_are_logged_once_a_kind(site: Site) -> None:
    def group(device: str) -> str:
        raise RuntimeError(f"unheard of: {device}") if device < "d5" else SystemExit(device)

    await site.start(10, group=group, group_rates={"a": 1.0})
    await site.done([await site.add(f"d{n}") for n in range(10)], within_s=1.0)
    logged = [fields for level, _, fields in site.log.entries if level == "error"]
    assert sorted(fields["error"] for fields in logged) == ["RuntimeError", "SystemExit"]
    assert not any("unheard" in str(fields) for fields in logged), "its text may hold people's data"


async def test_last_seen_of_a_lost_shard_s_devices_is_not_stored(site: Site) -> None:
    await site.start(8, shards=2)
    stored = list[TurnRequest]()

    async def overtaken(request: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        if request.seen and not stored:
            stored.append(request)
            await site.store.open("doors", 1, request.grants[1], "another")
        return await take_turn()

    site.around_turns(overtaken)
    await site.done([await site.add(f"d{n}") for n in range(8)])
    await site.wait(lambda: site.lost == [1])
    seen = {device for _, device in site.store.tables.seen}
    assert seen == {device for device in stored[0].seen if shard_of(device, 2) == 0}
    assert 0 < len(seen) < 8


@pytest.mark.parametrize("late", ["open", "epochs"])
async def test_a_connection_that_is_made_while_its_shard_is_opened_anew_stays(site: Site, late: str) -> None:
    await site.start(1)
    opened, epochs = site.store.open, site.store.epochs
    unclear, asked = [True], list[str]()
    identity = site.outbox.spec.identity(0)

    async def unanswered(_: TurnRequest, take_turn: TakeTurn) -> TurnResult:
        if unclear:
            unclear.clear()
            raise OutcomeUnknown("the answer was lost")
        return await take_turn()

    async def opened_late(*args: Any) -> int:
        epoch = await opened(*args)
        if late == "open":
            site.broker.cut(identity)
            await site.clock.sleep(1.0)
        return epoch

    async def told_late(outbox: str) -> Mapping[int, int]:
        found = await epochs(outbox)
        asked.append(outbox)
        if late == "epochs" and len(asked) == 1:  # the dispatcher asks, before it opens
            site.broker.cut(identity)
            await site.clock.sleep(0.01)
        elif late == "epochs":
            await site.clock.sleep(1.0)
        return found

    await site.clock.sleep(0.1)
    site.around_turns(unanswered)
    site.store.open = opened_late  # type: ignore[method-assign, assignment]
    site.store.epochs = told_late  # type: ignore[method-assign]
    await site.run("d0")
    assert len(asked) >= 2, "the connection was made anew"
    assert site.lost == []


async def test_a_command_that_a_dialect_refuses_with_odd_characters_fails_with_a_text_that_can_be_stored(
    site: Site,
) -> None:
    """A database raises what isn't expected of it, and each node that has the command would end."""
    await site.start(1)
    error = InvalidMessage("can't write \udcff\0 here")
    with mock.patch.object(MemoryDevices, "publish", side_effect=error):
        entry = await site.until(await site.add("d0"), CommandState.FAILED)
    assert entry.reason == "can't write ?\N{REPLACEMENT CHARACTER} here"
