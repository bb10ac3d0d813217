"""Promises of limits and of the clock."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.devices.conformance.outbox_bench import (
    LATEST_S,
    NOW,
    OUTBOX,
    PATIENCE,
    SHARDS,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.rules.device_queue import shard_of
from holdfast.devices.rules.group_rate import GroupRate


class LimitsConformance(OutboxFixtures):
    """Promises of limits and of the clock."""

    async def test_no_more_devices_are_sent_to_than_there_is_room_for(self, driver: Driver) -> None:
        driver.add([new(f"d{n:02d}", b"%02d %d" % (n, m)) for m in range(2) for n in range(20)])
        first = await driver.send(room=5)
        assert len(first) == 5
        assert await driver.send(room=0) == []
        rest = await driver.send(room=100)
        assert len({sending.device for sending in first + rest}) == 20
        freed = await driver.take_turn(room=0, answers=[answer(sending) for sending in first])
        assert len(freed.sendings) == 5
        assert freed.freed == 5

    async def test_of_devices_that_are_due_the_longest_due_goes_first(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"3")])
        [sending] = await driver.send()
        driver.add([new("d2", b"2")])
        assert await driver.send(room=0) == []
        driver.now += 1
        assert bodies(await driver.send(room=0, answers=[answer(sending)])) == [b"2"]

    async def test_a_rate_is_kept_for_repeats_too(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in range(6)])
        assert len(await driver.send()) == 6
        driver.now += LATEST_S
        result = await driver.take_turn(rate=4)
        assert (len(result.sendings), result.more) == (4, True)
        assert len(await driver.send(rate=4)) == 2

    async def test_a_group_keeps_to_its_rate(self, driver: Driver) -> None:
        driver.add([new(f"slow-{n}") for n in range(5)] + [new(f"fast-{n}") for n in range(5)])
        groups = GroupRate(lambda device: device.split("-")[0], {"slow": 1.0})
        sent = [sending.device.split("-")[0] for sending in await driver.send(groups=groups)]
        assert sorted(sent) == ["fast"] * 5 + ["slow"]
        count = len(sent)
        for _ in range(6):
            driver.now += 1.0
            count += len(await driver.send(groups=groups))
        assert count == 10

    async def test_a_shard_that_can_t_send_still_hears(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        result = await driver.take_turn(sendable=[], answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert bodies(await driver.send()) == [b"2"]

    async def test_due_times_follow_the_clock(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        [sending] = await driver.send()
        for jump_s in (3600.0, -7200.0):
            driver.now += jump_s
            assert await driver.send(shift_s=jump_s) == []
            sending = msgspec.structs.replace(sending, due=sending.due + jump_s)
            assert await driver.store.next_due(OUTBOX, [sending.shard]) == pytest.approx(
                sending.due, abs=0.001
            )
        driver.now = sending.due
        assert bodies(await driver.send()) == [b"1"]

    async def test_a_due_time_that_is_much_too_late_is_capped(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        assert bodies(await driver.send()) == [b"1"]
        driver.now -= 3600.0
        assert await driver.send(check_dues=True) == []
        driver.now += PATIENCE.longest_s()
        assert bodies(await driver.send()) == [b"1"]
        assert (await driver.store.next_due(OUTBOX, [shard_of("d2", SHARDS)])) is not None
        driver.now = NOW + 10_000
        assert b"2" in bodies(await driver.send())
