"""Tasks sent by the clock that are added and changed while nodes run."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.errors import ConfigError, InvalidMessage, OperationRefused
from holdfast.tasks.discovery import Directory, Listing, NodeEntry
from holdfast.tasks.order import Order
from holdfast.tasks.periodic import PeriodicSender, Scheduler
from holdfast.tasks.schedule import (
    ENTRIES_MAX,
    SCHEDULE,
    ScheduleEntry,
    ScheduleFollower,
    Schedules,
    document_name,
    entry_of,
)
from tests.tasks.test_periodic import APP, HOUR_S, TYPE, Rig, at, periodic

VIRTUAL = True
HOURLY = ScheduleEntry(cron="0 * * * *", task_type=TYPE, body={"pages": 3})


class ScheduleRig(Rig):
    def __init__(self) -> None:
        super().__init__()
        self.schedules = Schedules(self.registry, APP, self.clock)
        self.led = list[str]()

    def follower(self, *declared: Any) -> ScheduleFollower:
        def leads(name: str) -> bool:
            self.led.append(name)
            return True

        def deed(made: Any) -> PeriodicSender:
            return PeriodicSender(made, self.producer, self.clock)

        periodics = [(each, deed(each)) for each in declared]
        scheduler = Scheduler(APP, periodics, self.registry, self.clock, self.log, leads=leads)
        return ScheduleFollower(APP, scheduler, deed, self.registry, self.clock, self.log)

    @asynccontextmanager
    async def following(self, *declared: Any) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.follower(*declared).run())
        await self.clock.sleep(1.0)
        yield
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])

    async def set(self, name: str, entry: ScheduleEntry) -> None:
        await self.schedules.set(name, entry, self.clock.wall())


async def test_what_is_added_while_a_node_runs_is_sent() -> None:
    rig = ScheduleRig()
    async with rig.following():
        await rig.until(at(2026, 1, 10, 2, 30))
        await rig.set("hourly", HOURLY)
        await rig.until(at(2026, 1, 10, 4, 30))
        assert rig.sent == ["hourly-20260110T030000Z-0", "hourly-20260110T040000Z-0"]
        assert set(rig.led) == {SCHEDULE}, "nodes of other apps, which have no schedule, don't lead it"


async def test_what_is_changed_counts_from_then_on() -> None:
    rig = ScheduleRig()
    async with rig.following():
        await rig.set("report", HOURLY)
        await rig.until(at(2026, 1, 10, 1, 30))
        await rig.set("report", ScheduleEntry(cron="15 * * * *", task_type=TYPE))
        await rig.until(at(2026, 1, 10, 2, 30))
        assert rig.sent == ["report-20260110T010000Z-0", "report-20260110T021500Z-0"], (
            "01:15 had passed before"
        )


async def test_what_is_removed_is_sent_no_more_and_may_be_added_again() -> None:
    rig = ScheduleRig()
    async with rig.following():
        await rig.set("report", HOURLY)
        await rig.until(at(2026, 1, 10, 1, 30))
        await rig.schedules.remove("report")
        await rig.until(at(2026, 1, 10, 3, 30))
        await rig.set("report", ScheduleEntry(cron="0 * * * *", task_type=TYPE, window_s=9e4, missed="all"))
        await rig.until(at(2026, 1, 10, 4, 30))
        assert rig.sent == ["report-20260110T010000Z-0", "report-20260110T040000Z-0"]
    with pytest.raises(OperationRefused, match="has no 'other'"):
        await rig.schedules.remove("other")


async def test_what_was_due_while_no_node_ran_is_caught_up() -> None:
    rig = ScheduleRig()
    await rig.set("report", HOURLY)
    await rig.until(at(2026, 1, 10, 1, 10))
    async with rig.following():
        assert rig.sent == ["report-20260110T010000Z-0"]


@pytest.mark.parametrize("known", [False, True], ids=["a new one", "one that was there before"])
async def test_what_a_clock_that_was_far_ahead_has_set_is_sent_from_now_on(known: bool) -> None:
    rig = ScheduleRig()
    async with rig.following():
        if known:
            await rig.set("hourly", HOURLY)
            await rig.until(at(2026, 1, 10, 0, 30))
            await rig.schedules.remove("hourly")
        await rig.until(at(2026, 1, 10, 2, 10))
        await rig.schedules.set("hourly", HOURLY, rig.clock.wall() + 400 * 24 * HOUR_S)
        await rig.until(at(2026, 1, 10, 4, 30))
        assert rig.sent == ["hourly-20260110T030000Z-0", "hourly-20260110T040000Z-0"]
        told = "periodic set by wrong clock"
        assert rig.log.events("warning").count(told) == 1
    await rig.until(at(2026, 1, 10, 6, 30))
    async with rig.following():  # a node that begins catches up as ever
        assert rig.sent[2:] == ["hourly-20260110T060000Z-0"]


async def test_what_the_code_declares_is_not_replaced() -> None:
    rig = ScheduleRig()
    declared = NodeEntry("n", "http://n", (TYPE,), ("nightly", SCHEDULE))
    await Directory(rig.registry, APP, rig.clock).change(lambda _: Listing({}, {"m": declared}))
    with pytest.raises(OperationRefused, match="'nightly' is declared in the code"):
        await rig.set("nightly", HOURLY)
    await Directory(rig.registry, APP, rig.clock).change(lambda _: Listing())
    await rig.set("nightly", HOURLY)
    async with rig.following(periodic()):
        await rig.until(at(2026, 1, 10, 1, 30))
        assert rig.sent == []
        assert "schedule entry ignored" in rig.log.events("warning")


async def test_when_the_schedule_can_t_be_read_for_want_of_descriptors_nothing_is_left_running() -> None:
    """It is started again, and what is declared would be looked after twice."""
    rig = ScheduleRig()

    async def changed(name: str, version: int, wait_s: float) -> None:
        await rig.clock.sleep(1.0)
        raise OSError(errno.EMFILE, "Too many open files")

    rig.registry.changed = changed  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Too many open files"):
        await rig.follower(periodic()).run()
    assert rig.led == ["nightly"]
    await rig.clock.sleep(HOUR_S)
    assert rig.led == ["nightly"]


async def test_a_damaged_schedule_leaves_what_it_had_before() -> None:
    rig = ScheduleRig()
    async with rig.following():
        await rig.set("report", HOURLY)
        await rig.clock.sleep(1.0)
        document = await rig.registry.get(document_name(APP))
        assert document is not None
        await rig.registry.put(document.name, b"?", document.version)
        await rig.until(at(2026, 1, 10, 1, 30))
        assert rig.sent == ["report-20260110T010000Z-0"]


@pytest.mark.parametrize(
    "name,wrong,error,said",
    [
        ("n", {"cron": "61 * * * *"}, ConfigError, "cron '61"),
        ("n", {"cron": "0 0 */31 2 1#5"}, ConfigError, "comes at no time"),
        ("n", {"zone": "Moon"}, ConfigError, "zone 'Moon'"),
        ("n", {"missed": "some"}, ConfigError, "missed"),
        ("n", {"window_s": 0}, ConfigError, "window_s"),
        ("n", {"tries": 0}, InvalidMessage, "tries"),
        ("n", {"body": float("nan")}, InvalidMessage, "body"),
        ("a\x07b", {}, ConfigError, "periodic"),
        ("dlq-backup", {}, OperationRefused, "dlq-backup"),
    ],
)
async def test_an_entry_that_can_not_be_is_refused(
    name: str, wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    rig = ScheduleRig()
    values = {"cron": "0 * * * *", "task_type": TYPE} | wrong
    with pytest.raises(error, match=said):
        await rig.set(name, ScheduleEntry(**values))
    assert not await rig.schedules.read()


async def test_an_entry_over_the_limit_of_a_schedule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENTRIES_MAX == 1000
    monkeypatch.setattr("holdfast.tasks.schedule.ENTRIES_MAX", 2)
    rig = ScheduleRig()
    for name in ("a", "b", "a"):
        await rig.set(name, HOURLY)
    with pytest.raises(ConfigError, match="has 2 entries already"):
        await rig.set("c", HOURLY)


@pytest.mark.parametrize(
    "field,value", [("task_id", "t"), ("dedupe", "d"), ("delay_s", 1.0), ("then", Order(task_type=TYPE))]
)
def test_a_task_in_a_schedule_has_no_options_that_it_can_not_keep(field: str, value: Any) -> None:
    order = Order(task_type=TYPE, **{field: value})
    with pytest.raises(InvalidMessage, match=f"field '{field}' is set"):
        entry_of(order, "0 * * * *", zone="UTC", missed="last", window_s=60.0)
