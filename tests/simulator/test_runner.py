"""Sweeps over seeds: those that fail are told, kept, and run again by the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import runner
from simulator.runner import SeedOutcome


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that are run; those that end in 7 fail."""
    seeds: list[int] = []

    def simulate(seed: int, rule: str | None = None, *, kind: str) -> SeedOutcome:
        seeds.append(seed)
        return SeedOutcome(seed, ["it is wrong"] if seed % 10 == 7 else [], {"crash": 1}, "", 1.0)

    monkeypatch.setattr(runner, "simulate", simulate)
    return seeds


def test_a_sweep_ends_at_the_first_that_fails(ran: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.sweep(0, 20, None, "tasks", 1) == 1
    assert ran == list(range(8))
    assert "--seed 7 --world tasks" in capsys.readouterr().out
    assert runner.sweep(0, 7, None, "streams", 1) == 0


def test_a_broken_rule_is_to_be_found(ran: list[int]) -> None:
    assert runner.sweep(0, 20, "task-epoch", "streams", 1) == 0
    assert runner.sweep(0, 5, "task-epoch", "streams", 1) == 1


def test_seeds_that_fail_are_kept_and_run_first(ran: list[int], tmp_path: Path) -> None:
    failures = tmp_path / "new" / "failures"
    assert runner.sweep(0, 20, None, "streams", 1, failures) == 1
    assert ran == list(range(20)), "it goes on after one that fails"
    assert runner.sweep(8, 1, None, "tasks", 1, failures) == 0, "those of another world are none of these"
    ran.clear()
    assert runner.sweep(100, 8, None, "streams", 1, failures) == 1
    assert ran == [7, 17, *range(100, 108)]
    assert runner.kept(failures, "streams") == [7, 17, 107], "each once"


def test_fresh_sweeps_begin_elsewhere_each_time() -> None:
    assert len({runner.fresh() for _ in range(100)}) == 100
