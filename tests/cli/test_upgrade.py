"""``holdfast doctor --upgrade`` and ``holdfast migrate --contract``: what must happen first, what next."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import holdfast as package
from holdfast.common.migrations import Migration
from holdfast.common.protocol_versions import OUR_VERSIONS, ProtocolVersions
from holdfast.operate import versions
from holdfast.ports.coordinator import Load, Member
from holdfast.services.postgres import schema as postgres_schema
from holdfast.services.sqlite import schema as sqlite_schema

KNOWN: dict[ModuleType, list[Migration]] = {
    schema: schema.migrations() for schema in (sqlite_schema, postgres_schema)
}
Later = Callable[[int], None]


@pytest.fixture(autouse=True)
def under_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version."""
    monkeypatch.setattr(package, "__version__", "0.5.1")
    monkeypatch.setattr(versions, "OLDEST", "0.4")


@pytest.fixture(params=["sqlite", "postgresql"])
def schema(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """That of all services."""
    if request.param == "sqlite":
        return sqlite_schema
    monkeypatch.setenv("HOLDFAST_URL", request.getfixturevalue("postgresql_server").url)
    return postgres_schema


@pytest.fixture
def later(schema: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Later:
    """Make it a version with so many more migrations: one that adds, one that removes, one that adds."""
    known, table = KNOWN[schema], "checkpoints" if schema is sqlite_schema else "{schema}.checkpoints"
    more = [
        Migration(len(known) + 1, f"ALTER TABLE {table} ADD COLUMN colour text;"),
        Migration(len(known) + 2, f"ALTER TABLE {table} DROP COLUMN colour;", contracts=True),
        Migration(len(known) + 3, f"ALTER TABLE {table} ADD COLUMN size text;"),
    ]

    def make(count: int) -> None:
        monkeypatch.setattr(schema, "migrations", lambda: known + more[:count])

    return make


def live(arrange: Any, version: str) -> Callable[[], None]:
    """Have a node live that runs this version; returns what ends it."""
    member = Member("id", "shop-1", "http://127.0.0.1:1", Load(version=version))
    arrange(lambda services: services.coordinator().join(member, 600.0))
    return lambda: arrange(lambda services: services.coordinator().leave("id"))


def checks(holdfast: Any) -> dict[str, dict[str, Any]]:
    """What ``doctor --upgrade`` tells, by check."""
    found: dict[str, dict[str, Any]] = {}
    for line in holdfast("doctor", "--upgrade", "--json").lines:
        before = found.get(line["check"], {"text": ""})
        found[line["check"]] = line | {"text": before["text"] + line["text"]}
    return found


@pytest.mark.slow
def test_each_step_is_named_in_its_order_and_none_is_taken(
    holdfast: Any, arrange: Any, schema: ModuleType, later: Later
) -> None:
    number = len(KNOWN[schema]) + 1
    assert holdfast("migrate").code == 0
    leave = live(arrange, "0.4.2")
    later(2)
    for _ in range(2):
        told = checks(holdfast)
        assert f"without migration {number}, which only add" in told["tables"]["text"]
        assert told["next"]["text"].startswith("expand the tables: `holdfast migrate`")
        assert told["node shop-1"]["verdict"] == "warning"
    assert holdfast("migrate").out.rstrip().endswith(f"applied {number}")
    assert checks(holdfast)["next"]["text"] == "replace the nodes, one after the other: shop-1"
    refused = holdfast("migrate", "--contract")
    assert refused.code == 1
    assert "node shop-1 runs 0.4.2" in refused.err
    leave()
    leave = live(arrange, "0.5.0")
    assert checks(holdfast)["next"]["text"] == "once nothing is to go back: `holdfast migrate --contract`"
    assert holdfast("migrate", "--contract").out.rstrip().endswith(f"applied {number + 1}")
    assert checks(holdfast)["next"]["text"] == "nothing is left to do"
    leave()


def test_what_was_not_contracted_keeps_the_next_version_out(holdfast: Any, later: Later) -> None:
    later(0)
    assert holdfast("migrate").code == 0
    later(3)
    told = holdfast("doctor", "--upgrade")
    assert told.code == 1
    assert "which contracts it" in told.out
    assert "✗ next: correct what failed" in told.out
    refused = holdfast("status")
    assert refused.code != 0
    assert "run `holdfast migrate --contract` of that version" in refused.err


def test_a_database_that_a_newer_version_contracted_is_named(holdfast: Any, later: Later) -> None:
    later(2)
    assert holdfast("migrate").code == 0, "there was nothing, so nobody misses what is removed"
    later(0)
    told = holdfast("doctor", "--upgrade")
    assert told.code == 1
    assert "made by a newer Holdfast" in told.out


@pytest.mark.parametrize(
    "version, verdict, text",
    [
        ("0.5.7", "ok", "runs 0.5.7"),
        ("0.4.0", "warning", "goes on beside this version"),
        ("0.3.9", "failed", "runs 0.3.9, which can't run beside 0.5.1"),
        ("", "failed", "runs a version before 0.2, which can't run beside 0.5.1"),
        ("0.6.0.dev0", "failed", "newer than this one"),
    ],
)
def test_a_node_of_another_version_is_told(
    holdfast: Any, arrange: Any, version: str, verdict: str, text: str
) -> None:
    live(arrange, version)
    told = checks(holdfast)["node shop-1"]
    assert told["verdict"] == verdict
    assert text in told["text"]
    assert holdfast("doctor", "--upgrade").code == (1 if verdict == "failed" else 0)


def test_a_node_that_this_version_could_not_call_is_told(holdfast: Any, arrange: Any) -> None:
    load = Load(version="0.4.0", speaks=ProtocolVersions(OUR_VERSIONS.newest + 1, OUR_VERSIONS.newest + 2))
    member = Member("id", "shop-1", "http://127.0.0.1:1", load)
    arrange(lambda services: services.coordinator().join(member, 600.0))
    told = checks(holdfast)["node shop-1"]
    assert told["verdict"] == "failed"
    assert told["text"].startswith("runs 0.4.0; it speaks peer protocol 2-3, this process 1;")
    assert "wait until it is gone" in told["fix"]
    assert holdfast("doctor", "--upgrade").code == 1


def test_settings_that_are_gone_are_told(
    holdfast: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOLDFAST_SLOT", "3")
    told = checks(holdfast)
    assert "HOLDFAST_SLOT isn't a setting" in told["environment"]["text"]
    assert "HOLDFAST_SLOTS" in told["environment"]["fix"]
    (tmp_path / "holdfast.toml").write_text("slot = 3\n")
    assert holdfast("doctor", "--upgrade").code == 2
    assert checks(holdfast)["settings"]["verdict"] == "failed"


def test_nothing_is_made_where_nothing_is(holdfast: Any, tmp_path: Any) -> None:
    assert checks(holdfast)["next"]["text"] == "nothing is left to do"
    assert list(tmp_path.iterdir()) == []


def test_the_tables_of_outboxes_are_looked_at(holdfast: Any, tmp_path: Any) -> None:
    (tmp_path / "office.db").touch()
    told = holdfast("doctor", "--upgrade", "-s", "outbox_url=sqlite:///office.db")
    assert "outbox: sqlite:///office.db: SQLite 3." in told.out
    assert "no tables yet" in told.out


@pytest.mark.parametrize(
    "given",
    [
        ("--upgrade", *more)
        for more in (("a:app",), ("--grants", "shop"), ("--iam-policy",), ("--only-to-send",))
    ]
    + [("--grants", "shop", "a:app"), ("--grants", "shop", "--iam-policy")],
    ids=" ".join,
)
def test_doctor_refuses_options_that_cannot_be_combined(holdfast: Any, given: tuple[str, ...]) -> None:
    refused = holdfast("doctor", *given)
    assert (refused.code, refused.err.startswith(f"{given[0]} can")) == (2, True)
    assert "be combined" in refused.err
