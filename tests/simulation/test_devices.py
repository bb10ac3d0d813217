"""Devices get their commands in simulated trouble, and the simulator sees when a protection is missing."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest

from holdfast.adapters.memory.outbox import MemoryOutbox, MemoryRows
from holdfast.core import device_queue, device_turn
from holdfast.core.device_queue import Phase
from holdfast.testing.simulator.runner import simulate

SEEDS_A_TEST = 25
SEEDS_TO_NOTICE = 150


@pytest.mark.parametrize("first", range(0, 100, SEEDS_A_TEST))
def test_seeds_hold(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed, kind="devices").wrong == []


def test_a_seed_replays_the_same() -> None:
    for seed in (3, 8, 25):
        assert simulate(seed, kind="devices") == simulate(seed, kind="devices")


_take, _look, _heads = device_turn.take, MemoryRows.look, MemoryRows.heads


def _any_epoch(rows: Any, turn: Any, random: Any) -> Any:
    with mock.patch.object(MemoryRows, "epochs", return_value=dict(turn.grants)):
        return _take(rows, turn, random)


def _tell_before(self: MemoryOutbox, transaction: Any, entry: Any, on_result: Any) -> None:
    del transaction.tables.untold[entry.id]
    on_result(transaction, entry)


def _forget_an_arrival(self: MemoryRows, turn: Any) -> Any:
    found = _look(self, turn)
    self.drop(found.arrivals[:1])
    return msgspec.structs.replace(found, arrivals=found.arrivals[1:])


def _due_at_once(self: Any, spent: int, random: float) -> float:
    return 0.5


def _fits_any_try(entry: Any, device: str, correlation: Any) -> bool:
    return bool(entry.state == "published" and entry.device == device)


def _first_of_any_phase(self: MemoryRows, pairs: Any) -> Any:
    found = _heads(self, pairs)
    return {pair: msgspec.structs.replace(head, phase=Phase.WAITING) for pair, head in found.items()}


RULES: dict[str, tuple[Any, str, Any]] = {
    "a turn names the standing epoch": (device_turn, "take", _any_epoch),
    "a result is told in the transaction that closes": (MemoryOutbox, "_tell", _tell_before),
    "an addition reaches its head": (MemoryRows, "look", _forget_an_arrival),
    "an answer is waited for": (device_queue.Patience, "interval_s", _due_at_once),
    "an answer fits one try": (device_queue, "fits", _fits_any_try),
    "a device that is waited for gets nothing new": (MemoryRows, "heads", _first_of_any_phase),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_missing_protection_is_noticed(rule: str) -> None:
    with mock.patch.object(*RULES[rule]):
        noticed = any(simulate(seed, kind="devices").wrong for seed in range(SEEDS_TO_NOTICE))
    assert noticed, f"{SEEDS_TO_NOTICE} seeds did not notice that it is missing: {rule}"
