"""One command to five thousand devices: rolled out at its rate, counted, and stopped when too many fail."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from holdfast import App
from holdfast.devices.conformance.outbox_bench import Driver, answer
from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.rules.device_turn import CommandAnswer, Rollout
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox

DEVICES = [f"d{number:04}" for number in range(5_000)]
RATE = 500.0


async def rolled_out(store: SqlOutbox, engine: Engine, does: Callable[[str], bool]) -> tuple[Rollout, int]:
    """The rollout at its end, and how many devices got the command. Each second there are turns until
    nothing is left to do; the devices answer in the next one."""
    outbox = App("office").outbox("doors")
    with Session(engine) as db, db.begin():
        number = outbox.add_rollout(db, "firmware", DEVICES, {"v": 2}, rate=RATE, abort_share=0.05)
    [first] = await store.commands("doors", limit=1)
    driver = Driver(store, shards=1)
    await driver.open()
    answers: list[CommandAnswer] = []
    sent: list[str] = []

    async def take_turn(now: float, *, sweep: bool) -> bool:
        nonlocal answers
        driver.now = now
        result = await driver.take_turn(answers=answers, sweep=sweep)
        answers = [answer(sending, ok=does(sending.device)) for sending in result.sendings]
        sent.extend(sending.device for sending in result.sendings)
        return result.more or bool(answers)

    async def progress() -> Rollout:
        [rollout] = await store.rollouts("doors")
        assert (rollout.id, rollout.total) == (number, len(DEVICES))
        counts = await store.counts("doors")
        assert (rollout.done, rollout.failed) == (
            counts.get(CommandState.ACKNOWLEDGED, 0),
            counts.get(CommandState.FAILED, 0),
        )
        return rollout

    for second in range(12):
        sweep = True
        while await take_turn(first.created_at + second, sweep=sweep):
            sweep = False
        assert len(sent) <= second * RATE + 1, "no more than its rate"
        await progress()
    assert sent == DEVICES[: len(sent)]
    return await progress(), len(sent)


@pytest.mark.slow
async def test_all_get_it_in_their_order(store: SqlOutbox, engine: Engine) -> None:
    rollout, sent = await rolled_out(store, engine, lambda device: not device.endswith("00"))
    assert (rollout.done, rollout.failed, rollout.aborted, rollout.over) == (4_950, 50, False, True)
    assert sent == 5_000


@pytest.mark.slow
async def test_it_stops_once_one_in_twenty_has_failed(store: SqlOutbox, engine: Engine) -> None:
    rollout, sent = await rolled_out(store, engine, lambda device: int(device[1:]) % 5 != 0)
    assert (rollout.aborted, rollout.over) == (True, True)
    assert 251 * 5 - 4 <= sent <= 251 * 5 + RATE, "nothing goes once more than 250 have failed"
    assert rollout.done + rollout.failed == 5_000
