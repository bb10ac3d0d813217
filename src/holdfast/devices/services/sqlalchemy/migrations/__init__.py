"""The outbox's tables as plain SQL, one file a database: for those who make their tables themselves.

With Alembic, copy each ``alembic_NNNN_….py`` into your ``versions`` and set its ``down_revision``.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

from sqlalchemy import DDL, Connection

Dialect = Literal["sqlite", "postgresql"]

LATEST = 4
_END = re.compile(r";\s*(?:\n\n|\Z)")
"""An empty line follows each statement; those in the body of a function have none after them."""


def statements(number: int, dialect: Dialect) -> list[str]:
    """The statements of one migration. Only those of the second may be executed again."""
    name = f"{number:04d}_outbox.{dialect}.sql"
    sql = resources.files(__package__).joinpath(name).read_text()
    return [statement.strip() for statement in _END.split(sql) if statement.strip()]


def steps(number: int, connection: Connection) -> list[DDL]:
    """The same, to be executed: what stands in them is nobody's parameter."""
    return [
        DDL(each.replace("%", "%%"))  # type: ignore[no-untyped-call]
        for each in statements(number, dialect_of(connection))
    ]


def dialect_of(connection: Connection) -> Dialect:
    """Return the dialect whose statements a connection takes."""
    return "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
