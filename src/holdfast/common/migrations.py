"""The schemas of databases: numbered migrations, of two kinds.

Those that *expand* add what versions without them don't look at, so nodes of the version before go on beside
those that have applied them. Those that *contract* remove what versions without them use; they are applied
only when an operator says that no such node will run again. The last one that contracted says which versions
can use a schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import msgspec


class Migration(NamedTuple):
    """One step. Its file is called ``NUMBER_NAME.sql``, or ``NUMBER_NAME.contract.sql`` if it contracts."""

    number: int
    sql: str
    contracts: bool = False


class SchemaSteps(msgspec.Struct, frozen=True):
    """The version of a schema, and the numbers of the migrations that it hasn't had.

    ``version`` is the number of the last one that it has had, 0 for none. ``expand`` are applied by nodes
    that start, if their user may, and by ``holdfast migrate``; ``contract`` by ``holdfast migrate
    --contract``. ``blocked`` are those that expand and come after one that contracts: until that is applied,
    nodes of this version can't use the schema.
    """

    version: int
    expand: list[int]
    contract: list[int]
    blocked: list[int]


def migrations_of(package: str) -> list[Migration]:
    """Every migration of a package, in order."""
    files = list(resources.files(package).joinpath("migrations").iterdir())
    return sorted(
        Migration(int(file.name.split("_")[0]), file.read_text(), file.name.endswith(".contract.sql"))
        for file in files
        if file.name.endswith(".sql")
    )


def steps_from(version: int, known: Sequence[Migration]) -> SchemaSteps:
    """Sort what a schema hasn't had. One that has had nothing has nobody who could miss anything, so all
    migrations expand it."""
    missing = [migration for migration in known if migration.number > version]
    contract = [migration.number for migration in missing if migration.contracts and version]
    first = min(contract, default=missing[-1].number + 1 if missing else 0)
    expanding = [migration.number for migration in missing if migration.number not in contract]
    return SchemaSteps(
        version,
        [number for number in expanding if number < first],
        contract,
        [number for number in expanding if number > first],
    )


def blocked_text(steps: SchemaSteps) -> str:
    """Say what has to be done before this version can use the schema."""
    return (
        f"it has version {steps.version}, and migration {steps.blocked[0]} comes after"
        f" {steps.contract[0]}, which contracts it: see that all nodes run the version before this one, run"
        " `holdfast migrate --contract` of that version, and then start nodes of this one"
    )
