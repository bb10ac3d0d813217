"""The rights that docs/outbox.md names for the roles of a business suffice."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import Connection, create_engine

from holdfast import App
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer

TO_ADD = [
    *(f"INSERT, SELECT ON {{}}_{table}" for table in ("command", "arrival", "rollout")),
    *(f"USAGE ON SEQUENCE {{}}_{table}_id_seq" for table in ("command", "arrival", "rollout")),
    "SELECT ON {}_shard",
    "SELECT ON {}_setting",
]
TO_CANCEL = ["SELECT ON {}_command", "INSERT ON {}_cancel", "USAGE ON SEQUENCE {}_cancel_id_seq"]
TO_PAUSE = [
    "ALL ON {}_pause",
    "SELECT ON {}_head",
    "INSERT ON {}_arrival",
    "USAGE ON SEQUENCE {}_arrival_id_seq",
]

ROLE = "counter"


@contextmanager
def allowed(server: PostgresqlServer, rights: list[str]) -> Iterator[Connection]:
    """A transaction of a role with these rights."""
    with psycopg.connect(server.url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {ROLE}".encode())
        for right in rights:
            owner.execute(f"GRANT {right.format('holdfast_outbox')} TO {ROLE}".encode())
        engine = create_engine(server.url.replace("postgresql://postgres@", f"postgresql+psycopg://{ROLE}@"))
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()
            owner.execute(f"DROP OWNED BY {ROLE}".encode())
            owner.execute(f"DROP ROLE {ROLE}".encode())


@pytest.mark.parametrize("change", ["add", "cancel", "pause"])
async def test_the_rights_for_each_wish_suffice(postgresql_server: PostgresqlServer, change: str) -> None:
    outbox = App("office").outbox("doors", shards=1)
    store = SqlOutbox(postgresql_server.url, SystemClock())
    await store.prepare("doors", 1)
    await store.close()
    with allowed(postgresql_server, TO_ADD) as connection:
        outbox.add(connection, device="d1", command={"open": True})
    if change == "cancel":
        with allowed(postgresql_server, TO_CANCEL) as connection:
            assert outbox.cancel(connection, device="d1") == 1
    if change == "pause":
        with allowed(postgresql_server, TO_PAUSE) as connection:
            outbox.pause(connection, device="d1")
            assert outbox.resume(connection, device="d1")
