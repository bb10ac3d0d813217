"""What a server's settings put at risk."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from holdfast.config.settings import Config
from holdfast.errors import ConfigError
from holdfast.services.postgres.durability import ServerStatus, check, judge
from holdfast.wiring.services import Services
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

SOUND = {
    "server_version_num": "150018",
    "server_encoding": "UTF8",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "one",
}
STANDING = ServerStatus(SOUND, ["sync"], is_standby=False, uses=True, creates=True, lacking=[])


def test_a_sound_server_has_no_risk() -> None:
    assert judge(STANDING, "holdfast") == []
    quorum = STANDING._replace(
        standbys=["quorum", "async"], settings=SOUND | {"server_version_num": "130000"}
    )
    assert judge(quorum, "holdfast") == []
    assert judge(STANDING._replace(standbys=[None]), "holdfast") == [], "out of sight"
    assert judge(STANDING._replace(uses=None, creates=None), "holdfast") == [], "there is no schema yet"


@pytest.mark.parametrize(
    "settings,verdict,text",
    [
        ({"server_version_num": "120022"}, "failed", "PostgreSQL 12"),
        ({"server_encoding": "LATIN1"}, "failed", "LATIN1"),
        ({"fsync": "off"}, "failed", "whole database"),
        ({"full_page_writes": "off"}, "warning", "damaged"),
        ({"synchronous_standby_names": ""}, "warning", "fail-over forgets"),
        ({"synchronous_commit": "local"}, "warning", "waits for no standby"),
    ],
)
def test_a_setting_that_may_lose_writes_is_named_with_its_fix(
    settings: dict[str, str], verdict: str, text: str
) -> None:
    [risk] = judge(STANDING._replace(settings=SOUND | settings), "holdfast")
    assert risk.verdict == verdict
    assert text in risk.text
    assert risk.fix


def test_commits_that_wait_for_no_disk_are_named_first() -> None:
    off = judge(STANDING._replace(settings=SOUND | {"synchronous_commit": "off"}), "holdfast")
    assert [risk.verdict for risk in off] == ["failed", "warning"]
    assert "a second" in off[0].text


@pytest.mark.parametrize(
    "standing,verdict,text",
    [
        (STANDING._replace(is_standby=True), "failed", "takes no writes"),
        (STANDING._replace(standbys=["async"]), "warning", "every commit waits"),
        (STANDING._replace(standbys=[]), "warning", "every commit waits"),
        (STANDING._replace(uses=False), "failed", "may not use anything"),
        (STANDING._replace(lacking=["effects", "results"]), "failed", "effects, results"),
        (STANDING._replace(creates=False), "warning", "may not change the schema"),
        (
            STANDING._replace(standbys=[], settings=SOUND | {"synchronous_standby_names": ""}),
            "warning",
            "no standby",
        ),
    ],
)
def test_a_server_that_may_lose_or_refuse_writes_is_a_risk(
    standing: ServerStatus, verdict: str, text: str
) -> None:
    [risk] = judge(standing, "holdfast")
    assert (risk.server, risk.verdict) == ("", verdict)
    assert text in risk.text
    assert risk.fix


async def test_risks_are_read_from_a_real_server(postgresql_server: PostgresqlServer) -> None:
    async with Services(Config(state_url=postgresql_server.url)) as services:
        found = await services.risks()
    assert [(setting, risk.verdict) for setting, risk in found if setting == "state_url"] == [
        ("state_url", "failed"),  # tests don't wait for the disk
        ("state_url", "warning"),
        ("state_url", "warning"),
    ]


@pytest.fixture
async def url_of_ann(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> AsyncIterator[str]:
    """For a user who owns nothing of what is there, and may read the migrations."""
    await check(make_database(postgresql_server.url))
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE ann LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA holdfast TO ann")
        connection.execute("GRANT SELECT ON holdfast.migrations TO ann")
        yield postgresql_server.url.replace("postgres@", "ann@")
        connection.execute("DROP OWNED BY ann; DROP ROLE ann")


async def test_what_a_user_may_not_do_is_told(
    url_of_ann: str, postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    refused = [risk for risk in await check(make_database(url_of_ann)) if "may not" in risk.text]
    assert [risk.verdict for risk in refused] == ["failed"]
    assert "checkpoints" in refused[0].text
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO ann")
        allowed = [risk for risk in await check(make_database(url_of_ann)) if "may not" in risk.text]
        assert [risk.verdict for risk in allowed] == ["warning"], "it can't bring the schema up to date"
        connection.execute("REVOKE USAGE ON SCHEMA holdfast FROM ann")
        with pytest.raises(ConfigError, match="grants"):
            await check(make_database(url_of_ann))
