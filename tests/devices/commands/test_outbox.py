"""``holdfast outbox`` on the database of a business."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.cli import run
from holdfast.config.sources import load
from holdfast.console.audit import AuditLog
from holdfast.devices.conformance.outbox_bench import Driver, answer
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.devices.services.sqlalchemy.writer import SqlWriter
from holdfast.devices.spec import CommandFields
from holdfast.system.clock import SystemClock
from holdfast.wiring.services import Services


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def commands(url: str) -> list[int]:
    """Four commands: one failed, one out, two waiting behind it; and a rollout."""

    async def fill() -> list[int]:
        clock, outbox = SystemClock(), App("office").outbox("faces")
        store = SqlOutbox(url, clock)
        await store.prepare("faces", 1)
        added: list[CommandFields] = [{"device": "d1", "command": {"n": 0}}]
        added += [{"device": "d2", "command": {"n": n}} for n in range(3)]
        ids = await store.add(outbox.new(added))
        driver = Driver(store, shards=1, outbox="faces")
        await driver.open()
        driver.now = clock.wall()
        refused = [each for each in await driver.send() if each.device == "d1"]
        refusal = [answer(each, b'{"code":500}', ok=False) for each in refused]
        await driver.take_turn(answers=refusal, seen={"d1": 5.0, "d2": clock.wall()})
        await store.close()
        return ids

    return asyncio.run(fill())


def printed(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> list[Any]:
    assert run([*arguments, "--json", "--set", f"outbox_url={url}"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_commands_are_listed_without_their_bodies(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    listed = printed(capsys, url, "outbox", "ls", "faces")
    assert [(c["id"], c["device"], c["state"]) for c in listed] == [
        (commands[0], "d1", "failed"),
        (commands[1], "d2", "published"),
        (commands[2], "d2", "scheduled"),
        (commands[3], "d2", "scheduled"),
    ]
    assert not any("body" in c or "answer" in c for c in listed)
    assert [c["id"] for c in printed(capsys, url, "outbox", "ls", "faces", "--state", "failed")] == commands[
        :1
    ]
    assert run(["outbox", "ls", "faces", "--set", f"outbox_url={url}"]) == 0
    assert "the device refused" in capsys.readouterr().out
    assert run(["outbox", "ls", "faces", "--limit", "2", "--set", f"outbox_url={url}"]) == 0
    assert f"the first 2; for more: --after {commands[1]}" in capsys.readouterr().out


def test_show_has_all_fields_of_a_command(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    [shown] = printed(capsys, url, "outbox", "show", str(commands[0]))
    assert (shown["body"], shown["answer"], shown["reason"]) == (
        {"n": 0},
        {"code": 500},
        "the device refused",
    )
    assert run(["outbox", "show", "999", "--set", f"outbox_url={url}"]) != 0
    assert "no command 999" in capsys.readouterr().err


def test_a_spoilt_row_is_named_beside_the_others(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        spoil = "UPDATE holdfast_outbox_command SET {} WHERE id = ?"
        connection.execute(spoil.format("state = 'gone'"), [commands[1]])
        connection.execute(spoil.format("created_at = 1e300"), [commands[2]])
        connection.execute("INSERT INTO holdfast_outbox_pause VALUES ('faces', '', 1e300)")
    connection.close()
    assert run(["outbox", "stats", "faces", "--set", f"outbox_url={url}"]) == 0
    said = capsys.readouterr()
    assert f"{commands[1]}, 'gone'" in said.err
    assert "is paused since 1e+300" in said.out
    assert run(["outbox", "ls", "faces", "--set", f"outbox_url={url}"]) == 0
    assert "d1" in capsys.readouterr().out


@pytest.mark.slow
def test_retry_and_cancel_change_only_commands_that_allow_it(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    settings = ["--set", f"outbox_url={url}"]
    assert run(["outbox", "retry", str(commands[0]), *settings]) == 0
    assert run(["outbox", "cancel", str(commands[3]), *settings]) == 0
    assert run(["outbox", "cancel", str(commands[1]), str(commands[2]), *settings]) != 0
    assert f"nothing was done to {commands[1]}:" in capsys.readouterr().err
    [stats] = printed(capsys, url, "outbox", "stats", "faces")
    assert stats["commands"] == {"scheduled": 1, "published": 1, "failed": 2}


@pytest.mark.slow
def test_operators_changes_are_in_the_audit_log(
    capsys: pytest.CaptureFixture[str],
    url: str,
    commands: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    async def entries() -> set[tuple[str, str, str, str]]:
        async with Services(load()) as services:
            log = AuditLog(services.registry(), services.clock, None)
            found = await log.entries()
        assert all(entry.who.endswith("(command line)") for entry in found)
        return {(entry.action, entry.subject, str(entry.details), entry.outcome) for entry in found}

    assert asyncio.run(entries()) == set(), "the store of the cluster is there"
    done, out = str(commands[0]), str(commands[1])
    assert run(["outbox", "retry", done, "--set", f"outbox_url={url}"]) == 0
    for arguments in (
        ["cancel", out],
        ["cancel", "--outbox", "faces", "--device", "d2"],
        ["pause", "faces", "--device", "d2"],
        ["resume", "faces", "--device", "d2"],
        ["abort", "faces", "999"],
    ):
        run(["outbox", *arguments, "--set", f"outbox_url={url}"])
    assert "not in the audit log" not in capsys.readouterr().err
    device = "{'device': 'd2'}"
    assert asyncio.run(entries()) == {
        ("send a command again", done, "{}", "done"),
        ("cancel a command", out, "{}", "failed"),
        ("cancel commands", "faces", device, "done"),
        ("pause an outbox", "faces", device, "done"),
        ("resume an outbox", "faces", device, "done"),
        ("abort a rollout", "faces/999", "{}", "failed"),
    }


def test_a_rollout_that_is_aborted_cannot_be_aborted_again(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    async def add() -> int:
        store = SqlOutbox(url, SystemClock())
        await store.prepare("faces", 1)
        with store.engine.begin() as connection:
            number = SqlWriter(connection).add_rollout("faces", "firmware", 3, None, 1.0, 1.0)
        await store.close()
        return number

    number, database = str(asyncio.run(add())), ["--set", f"outbox_url={url}"]
    assert run(["outbox", "abort", "faces", number, *database]) == 0
    assert "firmware: 0 of 3 done" in capsys.readouterr().out
    [stats] = printed(capsys, url, "outbox", "stats", "faces")
    assert [rollout["aborted"] for rollout in stats["rollouts"]] == [True]
    assert run(["outbox", "abort", "faces", number, *database]) == 1
    assert "is aborted already" in capsys.readouterr().err
    assert run(["outbox", "abort", "faces", "999", *database]) == 1
    assert "has no rollout 999" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pause_is_shown_until_it_is_resumed(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    database = ["--set", f"outbox_url={url}"]
    assert run(["outbox", "pause", "faces", "--device", "d2", *database]) == 0
    assert run(["outbox", "pause", "faces", *database]) == 0
    [stats] = printed(capsys, url, "outbox", "stats", "faces")
    assert stats["paused_since"] is not None
    assert list(stats["paused_devices"]) == ["d2"]
    assert run(["outbox", "stats", "faces", *database]) == 0
    said = capsys.readouterr().out
    assert "is paused since" in said
    assert "devices that are paused: d2" in said
    standing = {line["device"]: line["standing"] for line in printed(capsys, url, "devices", "ls", "faces")}
    assert standing["d2"] == "paused"
    assert run(["outbox", "resume", "faces", *database]) == 0
    assert run(["outbox", "resume", "faces", "--device", "d2", *database]) == 0
    assert run(["outbox", "resume", "faces", *database]) != 0
    assert "is not paused" in capsys.readouterr().err
    [stats] = printed(capsys, url, "outbox", "stats", "faces")
    assert (stats["paused_since"], stats["paused_devices"]) == (None, {})
    assert run(["outbox", "pause", "faces", "--device", "a/b", *database]) != 0


def test_scheduled_commands_of_a_device_are_cancelled(
    capsys: pytest.CaptureFixture[str], url: str, commands: list[int]
) -> None:
    database = ["--set", f"outbox_url={url}"]
    assert run(["outbox", "cancel", "--outbox", "faces", "--device", "d2", *database]) == 0
    assert "2 to be cancelled" in capsys.readouterr().out
    for wrong in (
        [],
        ["--outbox", "faces"],
        ["1", "--outbox", "faces", "--device", "d2"],
        ["--device", "d2"],
    ):
        assert run(["outbox", "cancel", *wrong, *database]) != 0
        assert "--outbox with --device" in capsys.readouterr().err


def test_a_replaced_command_is_not_retried(capsys: pytest.CaptureFixture[str], url: str) -> None:
    async def fill() -> int:
        clock, outbox = SystemClock(), App("office").outbox("faces")
        store = SqlOutbox(url, clock)
        await store.prepare("faces", 1)
        old, _ = await store.add(
            outbox.new([{"device": "d1", "command": {"n": n}, "supersede_key": "951"} for n in range(2)])
        )
        await store.cancel(old)
        driver = Driver(store, shards=1, outbox="faces")
        await driver.open()
        await driver.take_turn(sendable=[], sweep=True)
        await store.close()
        return old

    assert run(["outbox", "retry", str(asyncio.run(fill())), "--set", f"outbox_url={url}"]) != 0
    assert "a newer command has replaced it" in capsys.readouterr().err
