"""Migrations: what is applied at once, what waits for an operator, and what keeps a version out."""

from __future__ import annotations

import pytest

from holdfast.common.migrations import Migration, SchemaSteps, blocked_text, migrations_of, steps_from

KNOWN = [Migration(1, ""), Migration(2, ""), Migration(3, "", contracts=True), Migration(4, "")]


@pytest.mark.parametrize(
    "version, known, steps",
    [
        (0, KNOWN, SchemaSteps(0, [1, 2, 3, 4], [], [])),
        (1, KNOWN[:3], SchemaSteps(1, [2], [3], [])),
        (2, KNOWN[:3], SchemaSteps(2, [], [3], [])),
        (2, KNOWN, SchemaSteps(2, [], [3], [4])),
        (3, KNOWN, SchemaSteps(3, [4], [], [])),
        (4, KNOWN, SchemaSteps(4, [], [], [])),
        (9, KNOWN, SchemaSteps(9, [], [], [])),
    ],
)
def test_what_adds_is_applied_up_to_what_removes(
    version: int, known: list[Migration], steps: SchemaSteps
) -> None:
    assert steps_from(version, known) == steps


def test_what_keeps_a_version_out_is_told_with_what_to_do() -> None:
    told = blocked_text(steps_from(2, KNOWN))
    assert "migration 4 comes after 3" in told
    assert "holdfast migrate --contract" in told


@pytest.mark.parametrize("package", ["holdfast.services.sqlite", "holdfast.services.postgres"])
def test_migrations_are_numbered_without_gaps(package: str) -> None:
    numbers = [migration.number for migration in migrations_of(package)]
    assert numbers == list(range(1, len(numbers) + 1))
