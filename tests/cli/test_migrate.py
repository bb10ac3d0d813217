"""``holdfast migrate`` and ``holdfast doctor --grants`` against PostgreSQL."""

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast import AsyncClient, Order
from holdfast.services.postgres import schema
from simulator.servers import PostgresqlServer

NUMBERS = [number for number, *_ in schema.migrations()]


@pytest.fixture
def url(postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of all services, with a password that is nobody's business."""
    url = postgresql_server.url.replace("postgres@", "postgres:hidden@")
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


@pytest.mark.usefixtures("url")
def test_a_database_is_brought_up_to_date_once(holdfast: Any) -> None:
    first = holdfast("migrate")
    assert first.code == 0, first.err
    [line] = first.out.splitlines()
    assert line.endswith(f": applied {', '.join(map(str, NUMBERS))}")
    assert "hidden" not in first.out
    assert holdfast("migrate").out.rstrip().endswith(": up to date")
    [told] = holdfast("migrate", "--json").lines
    assert told["applied"] == []


def test_nothing_is_to_be_done_for_services_without_tables(
    holdfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://127.0.0.1:1")
    told = holdfast("migrate")
    assert (told.code, told.out) == (
        0,
        "nothing to do: these services make their data when they are first used\n",
    )


def test_a_server_that_is_away_is_told(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://someone:hidden@127.0.0.1:1/app")
    told = holdfast("migrate")
    assert told.code != 0
    assert "127.0.0.1" in told.err
    assert "hidden" not in told.err + told.out


def test_the_printed_grants_are_sql_that_the_database_takes(
    holdfast: Any, url: str, postgresql_server: PostgresqlServer
) -> None:
    assert holdfast("migrate").code == 0
    printed = holdfast("doctor", "--grants", 'odd "role"')
    assert printed.code == 0, printed.err
    with psycopg.connect(postgresql_server.url) as connection:
        connection.execute('CREATE ROLE "odd ""role"""')
        connection.execute(printed.out.encode())
        query = "SELECT has_table_privilege('odd \"role\"', 'holdfast.messages', 'INSERT')"
        assert connection.execute(query.encode()).fetchone() == (True,)
        connection.rollback()


def test_what_only_sends_is_granted_no_more(holdfast: Any, url: str) -> None:
    printed = holdfast("doctor", "--grants", "shop", "--only-to-send")
    assert printed.code == 0, printed.err
    assert 'GRANT INSERT, SELECT (id) ON holdfast.messages TO "shop";' in printed.out
    assert "DELETE" not in printed.out
    assert "holdfast.tasks" not in printed.out
    told = holdfast("doctor", "--only-to-send")
    assert told.code != 0
    assert "--grants" in told.err


async def _send_and_wait(url: str) -> None:
    async with AsyncClient("shop", url=url) as client:
        trace = await client.send("mail", {"to": "a"}, then=Order(task_type="mail", body={}))
        later = await client.send("mail", {"to": "b"}, delay_s=90_000.0, dedupe="b")
        batch = await client.send_batch([Order(task_type="mail", body={})])
        for each in (trace, later, batch):
            assert await client.status(each) is not None
        with pytest.raises(TimeoutError):
            await client.wait(trace, 0.0)
        await client.stream("orders").send({"order": 1}, key="a")


def test_who_only_sends_may_send_tasks_too_where_that_is_granted(
    holdfast: Any, url: str, postgresql_server: PostgresqlServer
) -> None:
    assert holdfast("migrate").code == 0
    printed = holdfast("doctor", "--grants", "shop_web", "--only-to-send", "--tasks")
    assert printed.code == 0, printed.err
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS shop_web")
        connection.execute("CREATE ROLE shop_web LOGIN")
        connection.execute(printed.out.encode())
    asyncio.run(_send_and_wait(url.replace("postgres:hidden@", "shop_web@")))
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DROP OWNED BY shop_web")
        connection.execute("DROP ROLE shop_web")
    told = holdfast("doctor", "--grants", "shop_web", "--tasks")
    assert (told.code, "--only-to-send" in told.err) == (2, True)


def test_grants_are_about_databases_with_roles(holdfast: Any) -> None:
    told = holdfast("doctor", "--grants", "someone")
    assert told.code != 0
    assert "PostgreSQL" in told.err
