"""The runtime keeps its promises in simulated trouble, and the simulator sees when it doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing.simulator import tasks, world
from holdfast.testing.simulator.mutations import RULES
from holdfast.testing.simulator.runner import simulate

SEEDS_A_TEST = 20
QUICK = 2
"""Tests of so many seeds that `make test` runs; the rest are for the soak, which has fresh ones too."""

LIKELY = {
    "commit-number": 23, "conditional-release": 106, "epoch-at-commit": 154, "identity-window": 19,
    "judge-again": 65, "open-expects": 7, "poison-count": 7, "queue-order": 37, "receipt-merging": 1,
    "reissue": 24, "repeat-unknown": 7, "room-for-lower": 30, "sender-custody": 15,
    "skip-before-letter": 7, "task-epoch": 6, "task-maximum": 51, "task-reissue": 11, "task-stand-in": 9,
    "task-strict": 35, "transfer-version": 32,
}  # fmt: skip
"""Seeds that noticed when last searched for, tried first: to search takes long."""

HEAL_LIMIT_S = 100.0
"""Few seeds need as long, and to wait in vain for the usual limit takes long."""


def beginnings(count: int, step: int, quick: int = QUICK) -> list[Any]:
    """The first seeds of tests that take ``step`` seeds each."""
    return [
        pytest.param(first, marks=() if first < quick * step else pytest.mark.soak)
        for first in range(0, count, step)
    ]


@pytest.mark.parametrize("first", beginnings(100, SEEDS_A_TEST))
def test_seeds_hold(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed).wrong == []


TASK_SEEDS_A_TEST = 5


@pytest.mark.parametrize("first", beginnings(40, TASK_SEEDS_A_TEST))
def test_seeds_of_tasks_hold(first: int) -> None:
    for seed in range(first, first + TASK_SEEDS_A_TEST):
        assert simulate(seed, kind="tasks").wrong == []


@pytest.mark.parametrize("seed, kind", [(3, "streams"), (8, "streams"), (25, "streams"), (5, "tasks")])
def test_a_seed_replays_the_same(seed: int, kind: str) -> None:
    first, second = simulate(seed, kind=kind), simulate(seed, kind=kind)
    assert first == second
    assert first.counts, "this seed has faults"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule, mutation in RULES.items() if mutation.world != "devices"])
def test_a_missing_protection_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "HEAL_LIMIT_S", HEAL_LIMIT_S)
    monkeypatch.setattr(tasks, "HEAL_LIMIT_S", HEAL_LIMIT_S)
    for seed in (LIKELY.get(rule, 0), *range(RULES[rule].seeds)):
        if simulate(seed, rule).wrong and not simulate(seed, kind=RULES[rule].world).wrong:
            return
    pytest.fail(f"{RULES[rule].seeds} seeds did not notice that {rule!r} is missing: {RULES[rule].says}")
