"""What the clock sends: once over all nodes, in the zone that was meant, and caught up as was said."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest

from holdfast import App
from holdfast.errors import ConfigError, HandlerFailed
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.system.clock import SystemClock
from holdfast.tasks.names import task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.periodic import Periodic, PeriodicCall, PeriodicSender, Scheduler, Times
from holdfast.tasks.producer import Producer
from simulator.loop import SimClock
from tests.cluster.fakes import Log

VIRTUAL = True
APP, TYPE = "reports", "report.publish"
EPOCH = 1_700_000_000.0
"""Where simulated clocks begin."""

HOUR_S = 3600.0


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


START = at(2026, 1, 10)


class InlineThread:
    """A thread that is over at once, for virtual time doesn't wait for real ones; or never."""

    ident = None
    stuck: ClassVar[set[str]] = set()

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target
        self._name = name

    def start(self) -> None:
        if not self.is_alive():
            self._target()

    def is_alive(self) -> bool:
        return self._name in self.stuck


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InlineThread, "stuck", set())
    monkeypatch.setattr("holdfast.tasks.periodic.threading", SimpleNamespace(Thread=InlineThread))


class Rig:
    """What schedulers share, at a time of the world's."""

    def __init__(self, start: datetime = START) -> None:
        offset_s = start.timestamp() - EPOCH - asyncio.get_running_loop().time()
        self.clock = SimClock(Random(1), "c", offset_s=offset_s)
        self.registry = MemoryRegistry(self.clock)
        self.log = Log()
        self.store = MemoryTasks(self.clock)
        self.queue = MemoryQueue(self.clock)
        queues = {task_queue(APP, TYPE): self.queue}
        self.producer = Producer(APP, queues.__getitem__, self.store, self.clock, Log())

    @asynccontextmanager
    async def scheduling(self, *periodics: Periodic, leads: Sequence[bool] = (True,)) -> AsyncIterator[None]:
        """Nodes, each with a scheduler; those lead of which it is said."""
        running = [
            asyncio.ensure_future(
                Scheduler(
                    APP,
                    [
                        (periodic, PeriodicSender(periodic, self.producer, self.clock))
                        for periodic in periodics
                    ],
                    self.registry,
                    self.clock,
                    self.log,
                    leads=lambda name, lead=lead: lead,  # type: ignore[misc]
                ).run()
            )
            for lead in leads
        ]
        await self.clock.sleep(1.0)  # what is declared now counts from now
        yield
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    async def until(self, moment: datetime) -> None:
        await self.clock.sleep(moment.timestamp() - self.clock.wall())

    @property
    def sent(self) -> list[str]:
        """The traces of the tasks that are known."""
        return sorted(self.store.standing)


def periodic(cron: str = "30 2 * * *", orders: Any = None, **settings: Any) -> Periodic:
    return Periodic(
        name="nightly", cron=cron, orders=orders or (lambda when: [Order(task_type=TYPE)]), **settings
    )


def stamped(*moments: datetime) -> list[str]:
    return [f"nightly-{moment:%Y%m%dT%H%M%SZ}-0" for moment in moments]


@pytest.mark.slow
async def test_each_time_is_fired_once_by_the_node_that_leads() -> None:
    rig = Rig()
    async with rig.scheduling(periodic(), leads=[False, True, False]):
        await rig.until(at(2026, 1, 13))
    assert rig.sent == stamped(at(2026, 1, 10, 2, 30), at(2026, 1, 11, 2, 30), at(2026, 1, 12, 2, 30))
    assert len(rig.queue.messages) == 3


@pytest.mark.slow
async def test_several_that_think_they_lead_send_the_same_tasks() -> None:
    rig = Rig()
    async with rig.scheduling(periodic(), leads=[True, True, True]):
        await rig.until(at(2026, 1, 12))
    assert rig.sent == stamped(at(2026, 1, 10, 2, 30), at(2026, 1, 11, 2, 30))


@pytest.mark.slow
async def test_orders_learn_their_time_in_their_zone_and_may_be_many() -> None:
    rig, told = Rig(), list[datetime]()

    def orders(when: datetime) -> list[Order]:
        told.append(when)
        return [
            Order(task_type=TYPE, body={"customer": "a"}),
            Order(task_type=TYPE, task_id=f"b-{when:%Y-%m-%d}"),
            Order(task_type=TYPE, dedupe=f"c-{when:%Y-%m-%d}"),
        ]

    async with rig.scheduling(periodic(orders=orders, zone="Asia/Tokyo")):
        await rig.until(at(2026, 1, 11))
    assert told == [datetime(2026, 1, 11, 2, 30, tzinfo=ZoneInfo("Asia/Tokyo"))]
    assert stamped(at(2026, 1, 10, 17, 30))[0] in rig.sent
    assert "b-2026-01-11" in rig.sent
    assert len(rig.sent) == 3


@pytest.mark.slow
async def test_changes_of_summer_time_fire_once() -> None:
    """What is skipped when clocks are put forward is fired all the same, what comes twice once."""
    rig = Rig(at(2026, 3, 28, 12))
    async with rig.scheduling(periodic(zone="Europe/Berlin")):
        await rig.until(at(2026, 3, 30, 12))
    assert rig.sent == stamped(at(2026, 3, 29, 1, 0), at(2026, 3, 30, 0, 30))
    rig = Rig(at(2026, 10, 24, 12))
    async with rig.scheduling(periodic(zone="Europe/Berlin")):
        await rig.until(at(2026, 10, 26, 12))
    assert rig.sent == stamped(at(2026, 10, 25, 0, 30), at(2026, 10, 26, 1, 30))


@pytest.mark.slow
async def test_intervals_follow_time_as_it_passes_when_clocks_are_changed() -> None:
    rig = Rig(at(2026, 3, 29, 0, 15))
    async with rig.scheduling(periodic("*/20 2 * * *", zone="Europe/Berlin")):
        await rig.until(at(2026, 3, 29, 4))
    assert rig.sent == [], "there is no hour from 2 to 3"
    rig = Rig(at(2026, 10, 24, 23, 45))
    async with rig.scheduling(periodic("0 * * * *", zone="Europe/Berlin")):
        await rig.until(at(2026, 10, 25, 2, 30))
    assert rig.sent == stamped(*(at(2026, 10, 25, hour) for hour in (0, 1, 2)))


@pytest.mark.parametrize("missed, hours", [("all", [3, 4, 5]), ("last", [5]), ("skip", list[int]())], ids=str)
async def test_what_was_missed_is_caught_up_as_said(missed: Any, hours: list[int]) -> None:
    rig = Rig()
    hourly = periodic("0 * * * *", missed=missed, window_s=3 * HOUR_S)
    async with rig.scheduling(hourly):
        await rig.until(at(2026, 1, 10, 0, 30))
    await rig.until(at(2026, 1, 10, 5, 30))
    async with rig.scheduling(hourly):
        assert rig.sent == stamped(*(at(2026, 1, 10, hour) for hour in hours))
        await rig.until(at(2026, 1, 10, 6, 30))
    assert rig.sent == stamped(*(at(2026, 1, 10, hour) for hour in [*hours, 6]))


async def test_what_is_declared_now_has_missed_nothing() -> None:
    rig = Rig(at(2026, 1, 10, 2, 31))
    async with rig.scheduling(periodic(missed="all", window_s=HOUR_S)):
        await rig.until(at(2026, 1, 10, 12))
    assert rig.sent == []


async def test_another_node_fires_what_its_leader_did_not() -> None:
    rig = Rig()
    async with rig.scheduling(periodic()):
        await rig.until(at(2026, 1, 10, 2, 29))
    await rig.until(at(2026, 1, 10, 2, 31))  # the leader died, nobody has noticed yet
    async with rig.scheduling(periodic()):
        await rig.until(at(2026, 1, 10, 3))
    assert rig.sent == stamped(at(2026, 1, 10, 2, 30))


@pytest.mark.slow
async def test_a_time_that_fails_keeps_no_later_one_back_and_has_no_other_sent_again() -> None:
    rig, asked = Rig(), list[datetime]()

    def orders(when: datetime) -> list[Order]:
        asked.append(when)
        if when == at(2026, 1, 10, 1, 20):
            raise OSError("no such day")
        return [Order(task_type=TYPE)]

    slow = periodic("*/20 * * * *", orders, missed="all", window_s=HOUR_S)
    async with rig.scheduling(slow):
        await rig.until(at(2026, 1, 10, 1, 5))
    await rig.until(at(2026, 1, 10, 1, 50))  # no node runs
    async with rig.scheduling(slow):
        assert rig.sent[-1:] == stamped(at(2026, 1, 10, 1, 40)), "it came after the one that fails"
        await rig.until(at(2026, 1, 10, 2, 10))
        assert rig.sent[-1:] == stamped(at(2026, 1, 10, 2, 0)), "on time"
        await rig.until(at(2026, 1, 10, 3, 10))
    assert max(Counter(when for when in asked if when != at(2026, 1, 10, 1, 20)).values()) == 1
    assert at(2026, 1, 10, 1, 20) in asked
    assert rig.sent == stamped(
        *(at(2026, 1, 10, 0, minute) for minute in (20, 40)),
        *(
            at(2026, 1, 10, hour, minute)
            for hour, minute in ((1, 0), (1, 40), (2, 0), (2, 20), (2, 40), (3, 0))
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("failures, sent", [(3, 1), (1000, 0)])
async def test_orders_that_fail_are_asked_for_again_within_their_window(failures: int, sent: int) -> None:
    rig, asked = Rig(), list[float]()

    def orders(when: datetime) -> list[Order]:
        asked.append(rig.clock.wall())
        if len(asked) <= failures:
            raise OSError("no such database")
        return [Order(task_type=TYPE)]

    other = Periodic(name="other", cron="0 * * * *", orders=lambda when: [Order(task_type=TYPE)])
    async with rig.scheduling(periodic(orders=orders, window_s=HOUR_S), other):
        await rig.until(at(2026, 1, 10, 5))
        assert [task_id for task_id in rig.sent if task_id.startswith("nightly")] == (
            stamped(at(2026, 1, 10, 2, 30)) * sent
        )
    assert max(asked) - at(2026, 1, 10, 2, 30).timestamp() <= HOUR_S
    assert len(asked) == (failures + 1 if sent else HOUR_S // 30)
    errors = [fields["error"] for _, event, fields in rig.log.entries if event == "cannot run periodic"]
    assert all(f"({__file__}:" in error for error in errors), "each says where it was raised"
    assert sum(task_id.startswith("other") for task_id in rig.sent) == 4, "others are fired meanwhile"


@pytest.mark.slow
async def test_orders_that_are_none_keep_no_others_from_being_fired() -> None:
    rig = Rig()
    wrong: Any = lambda when: ["report.publish"]  # noqa: E731
    other = Periodic(name="other", cron="0 * * * *", orders=lambda when: [Order(task_type=TYPE)])
    async with rig.scheduling(periodic(orders=wrong), other):
        await rig.until(at(2026, 1, 10, 5))
    failures = [fields["error"] for _, event, fields in rig.log.entries if event == "cannot run periodic"]
    assert "it returned a str; it must return a list of holdfast.Order" in failures[0]
    assert len(rig.sent) == 4, "others are fired meanwhile"


async def test_a_deed_that_fails_in_whatever_way_is_done_again_and_ends_no_other() -> None:
    rig, done = Rig(), list[str]()

    async def fails(moment: datetime) -> None:
        done.append("fails")
        raise KeyError("a fault of ours")

    async def works(moment: datetime) -> None:
        done.append("works")

    periodics: list[tuple[Times, PeriodicCall]] = [
        (Times(name="a", cron="0 1 * * *", window_s=60.0), fails),
        (Times(name="b", cron="0 * * * *"), works),
    ]
    scheduler = Scheduler(APP, periodics, rig.registry, rig.clock, rig.log, leads=lambda name: True)
    running = asyncio.ensure_future(scheduler.run())
    await rig.until(at(2026, 1, 10, 2, 30))
    running.cancel()
    await asyncio.wait([running])
    assert (done.count("fails"), done.count("works")) == (2, 2)


async def test_orders_that_hang_keep_no_others_from_being_fired() -> None:
    rig = Rig()
    InlineThread.stuck.add("periodic-nightly")
    other = Periodic(name="other", cron="0 * * * *", orders=lambda when: [Order(task_type=TYPE)])
    async with rig.scheduling(periodic(timeout_s=20.0), other):
        await rig.until(at(2026, 1, 10, 3, 10))
        assert rig.sent == [
            "other-20260110T010000Z-0",
            "other-20260110T020000Z-0",
            "other-20260110T030000Z-0",
        ]
        failures = [fields for _, event, fields in rig.log.entries if event == "cannot run periodic"]
        assert {fields["periodic"] for fields in failures} == {"nightly"}
        assert "timeout_s = 20" in failures[0]["error"]
        assert "still hang" in failures[1]["error"]
        InlineThread.stuck.clear()
        await rig.until(at(2026, 1, 10, 3, 20))
    assert rig.sent[0] == stamped(at(2026, 1, 10, 2, 30))[0], "once they answer, within their window"


def test_a_periodic_that_hangs_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real threads
    begun, over = SimpleQueue[None](), SimpleQueue[None]()

    def orders(when: datetime) -> list[Order]:
        begun.put(None)
        over.get()
        return []

    async def ask() -> None:
        sender = PeriodicSender(periodic(orders=orders, timeout_s=0.01), Rig().producer, SystemClock())
        with pytest.raises(HandlerFailed, match=r"timeout_s = 0\.01"):
            await sender(START)
        begun.get()
        with pytest.raises(HandlerFailed, match=r"still hangs, in .*orders \(.*test_periodic\.py, line"):
            await sender(START)
        over.put(None)

    asyncio.run(ask())


async def test_a_function_that_answered_is_asked_again_though_its_thread_has_not_quite_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lingering(InlineThread):
        begun = False

        def start(self) -> None:
            super().start()
            self.begun = True

        def is_alive(self) -> bool:
            return self.begun

    monkeypatch.setattr("holdfast.tasks.periodic.threading", SimpleNamespace(Thread=Lingering))
    rig = Rig()
    sender = PeriodicSender(periodic(), rig.producer, rig.clock)
    moments = at(2026, 1, 10, 2, 30), at(2026, 1, 11, 2, 30)
    for moment in moments:
        await sender(moment)
    assert rig.sent == stamped(*moments)


async def test_a_clock_that_was_far_ahead_silences_no_periodic() -> None:
    """Nothing was fired until the time that it had shown."""
    rig = Rig()
    async with rig.scheduling(periodic("0 * * * *")):
        await rig.until(at(2026, 1, 10, 0, 30))
        rig.clock.set_by_s = 10 * 365 * 24 * HOUR_S
        await rig.clock.sleep(60.0)
        rig.clock.set_by_s = 0.0
        sent = rig.sent
        await rig.until(at(2026, 1, 10, 3, 30))
    assert sorted({*rig.sent} - {*sent}) == stamped(*(at(2026, 1, 10, hour) for hour in (1, 2, 3)))
    assert "record of periodic ahead of clock" in (rig.log.events("warning"))


async def test_a_clock_that_is_put_back_fires_nothing_twice() -> None:
    rig = Rig()
    async with rig.scheduling(periodic("*/10 * * * *")):
        await rig.until(at(2026, 1, 10, 0, 35))
    assert rig.sent == stamped(*(at(2026, 1, 10, 0, minute) for minute in (10, 20, 30)))
    late = Rig(at(2026, 1, 10, 0, 5))
    late.registry = rig.registry
    async with late.scheduling(periodic("*/10 * * * *")):
        await late.until(at(2026, 1, 10, 0, 34))
        assert late.sent == []
        await late.until(at(2026, 1, 10, 0, 41))
    assert late.sent == stamped(at(2026, 1, 10, 0, 40))


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"cron": "30 2 * *"}, "five fields"),
        ({"cron": "0 0 31 4 *"}, "day-of-month"),
        ({"cron": "0 0 */31 2 1#5"}, r"cron '0 0 \*/31 2 1#5' comes at no time"),
        ({"cron": "30 2 * * *", "zone": "Mars/Base"}, "isn't a time zone"),
        ({"cron": "30 2 * * *", "missed": "some"}, "missed is 'some'; it must be one of all, last, skip"),
        ({"cron": "30 2 * * *", "window_s": 0.0}, "window_s is 0.0; it must be a number above 0"),
        ({"cron": "30 2 * * *", "window_s": math.inf}, "window_s is inf; it must be a number"),
        ({"cron": "30 2 * * *", "window_s": True}, "window_s is True; it must be a number"),
        ({"cron": 5}, "cron is 5; it must be a text"),
        ({"cron": "30 2 * * *", "zone": None}, "zone is None; it must be a text"),
        ({"cron": "30 2 * * *", "timeout_s": 0.0}, "timeout_s is 0.0; it must be a number above 0"),
    ],
)
def test_what_can_t_be_meant_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        App("reports").periodic("nightly", **settings)(lambda when: [])


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 600, 5, None])
def test_names_can_be_part_of_a_trace(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"periodic .*name"):
        App("reports").periodic(name, "30 2 * * *")(lambda when: [])


def test_a_periodic_that_is_declared_twice_is_refused() -> None:
    app = App("reports")
    app.periodic("nightly", "30 2 * * *")(lambda when: [])
    with pytest.raises(ConfigError, match="dead letters"):
        app.periodic("dlq-backup", cron="0 2 * * *")(lambda _: [])
    with pytest.raises(ConfigError, match="twice"):
        app.periodic("nightly", "30 3 * * *")(lambda when: [])


@pytest.mark.slow
@pytest.mark.parametrize("junk", [b"", b"\xff", b"[" * 100_000])
async def test_a_record_that_can_t_be_read_begins_anew(junk: bytes) -> None:
    rig = Rig()
    await rig.registry.put(f"periodic/{APP}/nightly", junk, 0)
    async with rig.scheduling(periodic("0 3 * * *")):
        await rig.until(at(2026, 1, 12))
    assert len(rig.sent) == 2
    assert "bad record of periodic" in rig.log.events("warning")
