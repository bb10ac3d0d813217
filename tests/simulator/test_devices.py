"""Devices get their commands in simulated trouble, and the simulator sees when a protection is missing."""

from __future__ import annotations

import pytest

from simulator import devices
from simulator.mutations import RULES
from simulator.runner import simulate
from tests.simulator.protections import by_tier

SEEDS_A_TEST = 20
SEEDS_QUICK = 40
"""Seeds of the gate; the rest run at night, as fresh ones do."""

LIKELY = {
    "device-arrival": 5, "device-burst": 340, "device-cancel": 1, "device-clock": 123,
    "device-confirmed": 244, "device-epoch": 24, "device-expiry": 4, "device-forgotten": 28,
    "device-freed": 19, "device-fresh": 551, "device-group": 3, "device-in-flight": 6, "device-last-try": 19,
    "device-late": 244, "device-late-answer": 19, "device-one-try": 19, "device-pause": 3,
    "device-presence": 34, "device-put-off-forgotten": 666207658350, "device-rate": 20,
    "device-result": 8, "device-still-out": 28,
    "device-takeover": 759, "device-told-again": 8,
}  # fmt: skip
"""Seeds that noticed when last searched for, tried first: to search takes long."""

HEAL_LIMIT_S = 400.0
"""Few seeds need as long, and to wait in vain for the usual limit takes long."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < SEEDS_QUICK else pytest.mark.nightly)
        for first in range(0, 100, SEEDS_A_TEST)
    ],
)
def test_no_seed_breaks_an_invariant_of_devices(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed, kind="devices").wrong == []


@pytest.mark.slow
def test_a_seed_replays_the_same_run() -> None:
    for seed in (3, 8, 25):
        assert simulate(seed, kind="devices") == simulate(seed, kind="devices")


@pytest.mark.parametrize("rule", by_tier({"devices"}))
def test_a_seed_of_devices_fails_where_a_protection_is_missing(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "HEAL_LIMIT_S", HEAL_LIMIT_S)
    for seed in (LIKELY.get(rule, 0), *range(RULES[rule].seeds)):
        if simulate(seed, rule).wrong and not simulate(seed, kind="devices").wrong:
            return
    pytest.fail(f"{RULES[rule].seeds} seeds did not notice that {rule!r} is missing: {RULES[rule].says}")
