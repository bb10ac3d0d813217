"""The schemas of databases: numbered migrations, of two kinds.

*Expanding* migrations add parts that earlier versions ignore, so nodes of the version before run beside new
ones. *Contracting* migrations remove parts that earlier versions use. They are applied only when an operator
confirms that no such node will run again. The last contracting one decides which versions can use a schema.
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
    """The version of a schema, and the numbers of its missing migrations.

    ``version`` is the number of the last applied one, 0 for none. ``expand`` are applied by nodes that start,
    if their user may, and by ``holdfast migrate``; ``contract`` by ``holdfast migrate --contract``.
    ``blocked`` expand after a missing one that contracts: until that is applied, nodes of this version can't
    use the schema.
    """

    version: int
    expand: list[int]
    contract: list[int]
    blocked: list[int]


def migrations_of(package: str) -> list[Migration]:
    """Return every migration of a package, in order."""
    files = list(resources.files(package).joinpath("migrations").iterdir())
    return sorted(
        Migration(int(file.name.split("_")[0]), file.read_text(), file.name.endswith(".contract.sql"))
        for file in files
        if file.name.endswith(".sql")
    )


def steps_from(version: int, known: Sequence[Migration]) -> SchemaSteps:
    """Sort the missing migrations of a schema. A new schema has no users, so all migrations expand it."""
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
    """Return what an operator must do before this version can use the schema."""
    return (
        f"it has version {steps.version}, and migration {steps.blocked[0]} comes after"
        f" {steps.contract[0]}, which contracts it: let all nodes run the version before this one, run"
        " `holdfast migrate --contract` of that version, and then start nodes of this one"
    )
