"""The alarms of owners: each rings once, at the time that was set last, and stale times are forgotten."""

import asyncio
from random import Random

from holdfast import App
from holdfast.ports.coordinator import Claim
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.sequencer import Rules
from holdfast.streams.alarms import Alarms
from holdfast.streams.owned import OwnedStream
from simulator.loop import SimClock

VIRTUAL = True


def owned(key: str) -> OwnedStream:
    app = App("alarms")
    app.stream("s", seq="n")(lambda message, context: None)
    rules = OwnerOptions(Rules("dense"))
    return OwnedStream(app.streams["s"], key, OwnerMachine(key, rules, 0.0), Claim(key, "m", 1), 0.0)


async def test_an_alarm_rings_at_the_time_that_was_set_last() -> None:
    clock = SimClock(Random(0), "alarms")
    entries = {key: owned(key) for key in ("s/a", "s/b")}
    alarms, rang = Alarms(clock, entries), []
    serving = asyncio.ensure_future(alarms.serve(lambda entry, now: rang.append((entry.key, now))))
    began = clock.monotonic()
    alarms.set(entries["s/a"], began + 9.0)
    await clock.sleep(1.0)
    alarms.set(entries["s/b"], began + 5.0)
    alarms.set(entries["s/a"], began + 3.0)
    await clock.sleep(20.0)
    assert [(key, round(at - began, 3)) for key, at in rang] == [("s/a", 3.0), ("s/b", 5.0)]
    assert entries["s/a"].timer_at is None
    serving.cancel()


async def test_an_owner_that_is_gone_is_not_woken() -> None:
    clock = SimClock(Random(0), "alarms")
    entries = {"s/a": owned("s/a")}
    alarms, rang = Alarms(clock, entries), []
    serving = asyncio.ensure_future(alarms.serve(lambda entry, now: rang.append(entry.key)))
    alarms.set(entries["s/a"], clock.monotonic() + 1.0)
    entries["s/a"] = owned("s/a")  # another owner of the key
    await clock.sleep(2.0)
    assert rang == []
    serving.cancel()


async def test_stale_times_of_an_owner_are_forgotten() -> None:
    """An owner's far time stays behind whenever a nearer one is set. With a day as its idle timeout and one
    message a second there would be 86,400 of each stream."""
    clock = SimClock(Random(0), "alarms")
    entries = {"s/a": owned("s/a")}
    alarms = Alarms(clock, entries, spare=10)
    for second in range(100, 0, -1):
        alarms.set(entries["s/a"], float(second))
        assert len(alarms) <= 14
