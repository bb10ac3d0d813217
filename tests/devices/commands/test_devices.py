"""``holdfast devices ls`` and ``show``."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.devices.conformance.outbox_bench import Driver
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.system.clock import SystemClock

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def office(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three devices: one was just seen, one long ago, one is away; each has two commands, one of them out."""
    url = f"sqlite:///{place / 'office.db'}"
    monkeypatch.setenv("HOLDFAST_OUTBOX_URL", url)

    async def prepare() -> None:
        store, outbox = SqlOutbox(url, CLOCK), App("office").outbox("faces")
        await store.prepare("faces", 1)
        names = ("away", "fresh", "old")
        await store.add(outbox.new({"device": name, "command": {"n": n}} for n in range(2) for name in names))
        driver = Driver(store, shards=1, outbox="faces")
        await driver.open()
        driver.now = now = CLOCK.wall()
        seen = {"fresh": now - 1, "old": now - 7200, "away": now - 50}
        for _ in range(2):
            await driver.take_turn(seen=seen, away={"away"}, sweep=True)
        await store.close()

    asyncio.run(prepare())


@pytest.mark.slow
def test_devices_are_listed_and_stale_ones_flagged(holdfast: Any) -> None:
    listed = holdfast("devices", "ls", "faces", "--json")
    assert listed.code == 0, listed.err
    assert {line["device"]: line["standing"] for line in listed.lines} == {
        "away": "away",
        "fresh": "there",
        "old": "stale",
    }
    assert {line["waiting"] for line in listed.lines} == {2}
    stale = holdfast("devices", "ls", "faces", "--stale", "--stale-after-s", "86400", "--json")
    assert [line["device"] for line in stale.lines] == ["away"]
    table = holdfast("devices", "ls", "faces").out
    assert "fresh" in table
    assert "standing" in table
    assert holdfast("devices", "ls", "faces", "--limit", "1", "--json").lines[0]["device"] == "away"
    assert "the first 1;" in holdfast("devices", "ls", "faces", "--limit", "1").out
    unknown = holdfast("devices", "ls", "doors")
    assert unknown.code == 1
    assert "no outbox 'doors' in outbox_url" in unknown.err


def test_one_device_is_shown_with_its_commands(holdfast: Any) -> None:
    shown = holdfast("devices", "show", "faces/fresh", "--json")
    assert shown.code == 0, shown.err
    [record] = shown.lines
    assert (record["standing"], record["doing"], record["shard"]) == ("there", "out", 0)
    assert [command["state"] for command in record["commands"]] == ["published", "scheduled"]
    assert "scheduled" in holdfast("devices", "show", "faces/old").out


@pytest.mark.parametrize(
    "device, code, said", [("fresh", 2, "OUTBOX/DEVICE"), ("faces/404", 1, "never had a command")]
)
def test_an_unknown_device_is_named(holdfast: Any, device: str, code: int, said: str) -> None:
    shown = holdfast("devices", "show", device)
    assert shown.code == code
    assert said in shown.err


@pytest.mark.slow
def test_stuck_devices_are_listed_with_the_reason(holdfast: Any) -> None:
    stuck = holdfast("devices", "ls", "faces", "--stuck", "--json")
    assert {line["device"]: line["stuck"].rpartition(", ")[0] for line in stuck.lines} == {
        "away": "it is away",
        "old": "sent, and not answered",
    }
    assert "it is away" in holdfast("devices", "show", "faces/away").out
    assert holdfast("outbox", "pause", "faces").code == 0
    stuck = holdfast("devices", "ls", "faces", "--stuck", "--json")
    assert {line["stuck"] for line in stuck.lines} == {"its outbox is paused"}
    assert len(stuck.lines) == 3
    assert holdfast("devices", "ls", "faces", "--stuck", "--stale").code == 2


def test_without_an_outbox_the_setting_is_named(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_OUTBOX_URL")
    assert "outbox_url" in holdfast("devices", "ls", "faces").err


OLD = "DROP TABLE holdfast_outbox_pause"
"""Leaves what operators' commands see of a database that only the first migration has come to."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("devices", "ls", "faces"),
        ("devices", "show", "faces/fresh"),
        ("outbox", "stats", "faces"),
        ("outbox", "pause", "faces"),
        ("outbox", "pause", "faces", "--device", "fresh"),
        ("outbox", "resume", "faces"),
    ],
    ids=" ".join,
)
def test_tables_of_an_older_version_are_named_with_the_remedy(
    holdfast: Any, place: Path, command: tuple[str, ...]
) -> None:
    with closing(sqlite3.connect(place / "office.db")) as database:
        database.execute(OLD)
    outcome = holdfast(*command)
    assert outcome.code == 2, "to try again doesn't help"
    assert "no such table: holdfast_outbox_pause" in outcome.err
    assert "start a node of this version once" in outcome.err
    assert "by a migration" in outcome.err


def test_a_database_without_tables_is_reported_with_the_remedy(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "empty.db").touch()
    monkeypatch.setenv("HOLDFAST_OUTBOX_URL", f"sqlite:///{place / 'empty.db'}")
    for command in (("devices", "ls", "faces"), ("outbox", "ls", "faces"), ("outbox", "show", "7")):
        outcome = holdfast(*command)
        assert outcome.code == 2
        assert "start a node of this version once" in outcome.err
