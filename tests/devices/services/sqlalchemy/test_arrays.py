"""Arrays come to PostgreSQL as what they were."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from psycopg import ClientCursor

from holdfast.devices.services.sqlalchemy.statements import ArrayValue, array
from simulator.servers import PostgresqlServer

CASES: list[tuple[str, Sequence[ArrayValue]]] = [
    ("bigint", []),
    ("bigint", [0, -1, 2**63 - 1, None]),
    ("float8", [0.1, 1e300, -5e-324, None, 1_700_000_000.123457]),
    ("float8", [1, 2.5]),
    (
        "text",
        ["", "NULL", "null", "a,b", "{}", '"', "\\", '\\"', "'", " ", "\n", "größer 🚪", "%s $1 :x", None],
    ),
    ("bytea", [b"", b"\x00\xff", b'{"a": "\\"}', None]),
]


@pytest.mark.parametrize("kind, values", CASES)
async def test_an_array_comes_to_postgresql_as_it_was(
    postgresql_server: PostgresqlServer, kind: str, values: Sequence[ArrayValue]
) -> None:
    with psycopg.connect(postgresql_server.url) as connection:
        cursor = ClientCursor(connection)
        cursor.execute(f"PREPARE given AS SELECT unnest(CAST($1 AS {kind}[]))")
        cursor.execute("EXECUTE given (%(values)s)", {"values": array(values)})
        assert [row[0] for row in cursor.fetchall()] == list(values)


async def test_a_text_that_postgresql_can_not_keep_is_refused_and_not_cut(
    postgresql_server: PostgresqlServer,
) -> None:
    with psycopg.connect(postgresql_server.url) as connection, pytest.raises(psycopg.DataError, match="NUL"):
        ClientCursor(connection).execute("SELECT CAST(%s AS text[])", [array(["a\0b"])])
