"""``holdfast doctor`` on services that are not SQLite."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import failing_targets
from holdfast.devices.services.mqtt import roundtrip
from holdfast.operate.survey import PendingEffects
from holdfast.ports.coordinator import Member
from simulator.servers import MosquittoServer, RedisServer
from tests.collector import Collector


def test_what_redis_may_lose_is_named(redis_server: RedisServer, holdfast: Any) -> None:
    outcome = holdfast(
        "doctor", "--set", f"coordinator_url={redis_server.url}", "-s", f"state_url={redis_server.url}"
    )
    assert f"✓ coordinator: {redis_server.url}: answers; 0 nodes live" in outcome.out
    assert "nothing is kept on disk: a restart loses every message and every checkpoint" in outcome.out
    assert "→ set appendonly yes and appendfsync everysec" in outcome.out
    assert outcome.code == 1


def test_a_redis_that_is_not_there_is_told_once(holdfast: Any) -> None:
    outcome = holdfast("doctor", "--set", "state_url=redis://127.0.0.1:1")
    assert "✗ state store: redis://127.0.0.1:1: " in outcome.out
    assert "check that redis://127.0.0.1:1 is up" in outcome.out
    assert outcome.code == 3


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:1", "rediss+cluster://ann:hunter2@127.0.0.1:1"])
def test_doctor_shows_no_password_of_a_url(holdfast: Any, url: str) -> None:
    outcome = holdfast("doctor", "--set", f"state_url={url}")
    assert "hunter2" not in outcome.out + outcome.err


@pytest.mark.parametrize("setting", ["trace_url", "metrics_url"])
def test_a_collector_is_asked_whether_it_takes_anything(holdfast: Any, setting: str) -> None:
    collector, check = Collector(), setting.removesuffix("_url").replace("trace", "traces")
    try:
        outcome = holdfast("doctor", "--set", f"{setting}={collector.url}")
        assert f"✓ {check}: {collector.url}: the collector takes" in outcome.out
    finally:
        collector.close()
    outcome = holdfast("doctor", "--set", f"{setting}={collector.url}")
    assert f"✗ {check}: {collector.url}: the collector takes no" in outcome.out
    assert outcome.code == 3


def test_the_store_of_values_and_the_back_up_of_dead_letters_are_looked_at(
    holdfast: Any, place: Path
) -> None:
    (place / "plain").touch()
    outcome = holdfast(
        "doctor", "-s", "values_url=file:values", "-s", f"dlq_backup_url=file:{place}/plain/letters.jsonl"
    )
    assert "✓ values: file:values: there is no folder" in outcome.out
    assert "✗ dead-letter backup: " in outcome.out
    assert f"file {place}/plain/letters.jsonl doesn't exist yet, and " in outcome.out
    assert outcome.code == 2
    away = "postgresql://nobody:hunter2@127.0.0.1:1/letters"
    outcome = holdfast("doctor", "-s", f"dlq_backup_url={away}")
    assert "✗ dead-letter backup: postgresql://nobody:***@127.0.0.1:1/letters: " in outcome.out
    assert outcome.code == 3


@pytest.mark.parametrize("arguments", [(), ("--upgrade",)])
def test_a_foreign_distribution_of_our_packages_name_is_warned_of(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    assert "is installed beside" not in holdfast("doctor", *arguments).out
    about = place / "site/holdfast-0.5.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0.5.1\n")
    monkeypatch.syspath_prepend(place / "site")
    outcome = holdfast("doctor", *arguments)
    assert "! packages: 'holdfast' 0.5.1 is installed beside 'holdfast-streams'" in outcome.out
    assert "→ pip uninstall holdfast, then pip install --force-reinstall" in outcome.out


# --- devices


@pytest.fixture
def broker() -> Iterator[MosquittoServer]:
    server = MosquittoServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_the_broker_and_the_database_of_outboxes_are_looked_at(
    holdfast: Any, place: Path, broker: MosquittoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "office.db").touch()
    monkeypatch.setattr(roundtrip, "advice", lambda times_ms: "switch off Nagle's algorithm")
    settings = ["-s", "outbox_url=sqlite:///office.db", "-s", f"devices_url={broker.url}"]
    outcome = holdfast("doctor", *settings)
    assert "✓ outbox: sqlite:///office.db: SQLite 3." in outcome.out
    assert "no tables yet: a node makes them" in outcome.out
    assert f"✓ devices: {broker.url}: a message takes" in outcome.out
    assert "! devices: switch off Nagle's algorithm" in outcome.out
    assert outcome.code == 0


def test_an_app_with_an_outbox_needs_both(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "office_with_doors.py").write_text(
        "from holdfast import App\napp = App('office')\napp.outbox('doors', max_body=2000)\n"
    )
    monkeypatch.syspath_prepend(place)
    outcome = holdfast("doctor", "office_with_doors:app")
    assert "✗ outbox: the app has an outbox: set outbox_url" in outcome.out
    assert "✗ devices: devices_url is ''" in outcome.out
    wrong = holdfast(
        "doctor", "office_with_doors:app", "-s", "devices_url=mqtt://127.0.0.1:1?max_payload=1000"
    )
    assert "max_body = 2000" in wrong.out
    away = holdfast(
        "doctor",
        "-s",
        "outbox_url=postgresql://ann:hunter2@127.0.0.1:1/x",
        "-s",
        "devices_url=mqtt://:hunter2@127.0.0.1:1",
    )
    assert away.code == 3
    assert "✗ outbox: " in away.out
    assert "✗ devices: " in away.out
    assert "hunter2" not in away.out + away.err


def test_a_target_that_takes_nothing_is_named_once_for_all_streams_of_a_node() -> None:
    member = Member("m", "node-a", "http://a")
    pending = [
        PendingEffects("s/a", 2, 9.0, "alerts", 3),
        PendingEffects("s/b", 1, 70.0, "alerts", 1, "503"),
        PendingEffects("s/c", 5, 1.0, "reports", 0),
    ]
    [finding] = failing_targets(member, pending)
    assert (finding.check, finding.verdict) == ("target alerts of node-a", "warning")
    assert (
        finding.text
        == "takes nothing: 3 effects of 2 streams waiting, the oldest for 70 s; its last error: 503"
    )
    assert "holdfast streams effects s/b" in finding.fix
