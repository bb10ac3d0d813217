"""Which protections the gate switches off, and which only the night does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from simulator.mutations import RULES

IN_GATE = {
    "epoch-at-commit",
    "delete-after-commit",
    "skip-before-letter",
    "room-for-lower",
    "sender-forwards",
    "task-epoch",
    "poison-count",
    "conditional-release",
    "task-maximum",
    "device-order",
    "effect-answer",
    "effect-order",
    "timer-fired",
    "due-claims",
    "query-committed",
    "archive-first",
}
"""One for each promise of docs/guarantees.md that names protections, in its order: each takes two simulations
at least, and all of them would take as long as the other tests together."""


def by_tier(worlds: Iterable[str]) -> list[Any]:
    """Return the rules of these worlds as parameters: in the gate, or at night."""
    return [
        pytest.param(rule, marks=pytest.mark.slow if rule in IN_GATE else pytest.mark.nightly)
        for rule, mutation in RULES.items()
        if mutation.world in worlds
    ]
