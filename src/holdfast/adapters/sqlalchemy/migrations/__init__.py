"""The outbox's tables as plain SQL, one file a database: for those who make their tables themselves.

With Alembic, copy ``alembic_0001_outbox.py`` into your ``versions`` and set its ``down_revision``.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal


def statements(number: int, dialect: Literal["sqlite", "postgresql"]) -> list[str]:
    """The statements of one migration."""
    name = f"{number:04d}_outbox.{dialect}.sql"
    sql = resources.files(__package__).joinpath(name).read_text()
    return [statement.strip() for statement in sql.split(";") if statement.strip()]
