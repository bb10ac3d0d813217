"""The outbox's tables as plain SQL, one file a database, for users who create their tables themselves.

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
"""The end of a statement: an empty line follows it, unlike those in the body of a function."""


def statements(number: int, dialect: Dialect) -> list[str]:
    """Return the statements of one migration. Only the second one's may be executed again."""
    name = f"{number:04d}_outbox.{dialect}.sql"
    sql = resources.files(__package__).joinpath(name).read_text()
    return [statement.strip() for statement in _END.split(sql) if statement.strip()]


def steps(number: int, connection: Connection) -> list[DDL]:
    """Return the statements of one migration for SQLAlchemy, which takes nothing in them for a parameter."""
    return [
        DDL(each.replace("%", "%%"))  # type: ignore[no-untyped-call]
        for each in statements(number, dialect_of(connection))
    ]


def dialect_of(connection: Connection) -> Dialect:
    """Return the dialect whose statements a connection takes."""
    return "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
