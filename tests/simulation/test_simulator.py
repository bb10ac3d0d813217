"""The runtime keeps its promises in simulated trouble, and the simulator sees when it doesn't."""

from __future__ import annotations

import pytest

from holdfast.testing.simulator.mutations import RULES
from holdfast.testing.simulator.runner import simulate

SEEDS_A_TEST = 20
LIKELY = {
    "conditional-release": 106, "epoch-at-commit": 154, "judge-again": 65, "poison-count": 7,
    "queue-order": 37, "transfer-version": 32,
}  # fmt: skip
"""Seeds that noticed when last searched for, tried first: to search takes long."""


@pytest.mark.parametrize("first", range(0, 160, SEEDS_A_TEST))
def test_seeds_hold(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed).wrong == []


def test_a_seed_replays_the_same() -> None:
    for seed in (3, 8, 25):
        first, second = simulate(seed), simulate(seed)
        assert first == second
        assert first.counts, "this seed has faults"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_missing_protection_is_noticed(rule: str) -> None:
    for seed in (LIKELY.get(rule, 0), *range(RULES[rule].seeds)):
        if simulate(seed, rule).wrong:
            return
    pytest.fail(f"{RULES[rule].seeds} seeds did not notice that {rule!r} is missing: {RULES[rule].says}")
