"""Commands to devices by the console's JSON API."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from holdfast.config import Config
from holdfast.console.service import Console, ConsoleSettings
from holdfast.devices.adapters import open_outbox
from holdfast.devices.ports.outbox import Adding, OutboxStore
from holdfast.wiring import Services
from tests.cluster.fakes import Log
from tests.console.api.conftest import Api

COMMANDS = "/outboxes/doors/commands"


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """Services with a database of commands."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with Services(Config(url=url, outbox_url=f"sqlite:///{tmp_path}/office.db")) as opened:
        yield opened


@pytest.fixture
async def store(services: Services) -> AsyncIterator[OutboxStore]:
    """The outbox ``doors``, as a node makes it."""
    opened = open_outbox(services)
    await opened.prepare("doors", 3, Adding(lanes=1, expires_in_s=60.0, max_body=1_000))
    yield opened
    await opened.close()


@pytest.fixture
async def api(services: Services, store: OutboxStore) -> AsyncIterator[Api]:
    """A program that may change something."""
    console = Console(services, ConsoleSettings(port=0), Log())
    await console.start()
    try:
        async with Api(console, console.own_token) as opened:
            yield opened
    finally:
        await console.stop()


async def test_commands_are_added_once_and_listed_by_page(api: Api, store: OutboxStore) -> None:
    commands = [
        {"device": "d1", "body": {"do": "open"}, "dedupe_key": "a"},
        {"device": "d2", "body_base64": base64.b64encode(b"\xff\x00").decode(), "expires_in_s": None},
        {"device": "d1", "body": "text", "priority": 3},
    ]
    added = await api.do("POST", COMMANDS, {"commands": commands})
    assert (await api.do("POST", COMMANDS, {"commands": commands[:1]}))["ids"] == added["ids"][:1]
    stored = await store.commands("doors")
    assert [each.body for each in stored] == [b'{"do":"open"}', b"\xff\x00", b'"text"']
    assert stored[0].expires_at is not None
    assert stored[1].expires_at is None
    page = await api.get(f"{COMMANDS}?limit=2")
    assert [each["id"] for each in page["commands"]] == added["ids"][:2]
    more = await api.get(f"{COMMANDS}?limit=2&after={page['next']}")
    assert ([each["id"] for each in more["commands"]], more["next"]) == (added["ids"][2:], None)
    assert [each["device"] for each in (await api.get(f"{COMMANDS}?device=d2"))["commands"]] == ["d2"]
    shown = await api.get(f"/commands/{added['ids'][0]}")
    assert (shown["command"]["dedupe_key"], shown["contents"]["body"]) == ("a", {"do": "open"})
    entries = (await api.get("/audit"))["entries"]
    assert {(each["action"], each["subject"], each["outcome"]) for each in entries} == {
        ("add commands", "doors", "done")
    }
    assert "open" not in str(entries)


async def test_a_command_is_taken_back_and_sent_again(api: Api) -> None:
    (number,) = (await api.do("POST", COMMANDS, {"commands": [{"device": "d1", "body": 1}]}))["ids"]
    assert (await api.do("POST", f"/commands/{number}/cancel"))["state"] == "failed"
    said = await api.send("POST", f"/commands/{number}/cancel")
    assert (said.status, said.body["type"]) == (409, "urn:holdfast:refused")


async def test_commands_of_a_device_are_taken_back_together(api: Api) -> None:
    commands = [{"device": device, "body": 1, "supersede_key": device} for device in ("d1", "d2")]
    await api.do("POST", COMMANDS, {"commands": commands})
    assert await api.do("POST", "/outboxes/doors/cancel", {"device": "d1"}) == {"asked_back": 1}
    said = await api.send("POST", "/outboxes/doors/cancel", {})
    assert (said.status, "'device'" in said.body["detail"]) == (400, True)


async def test_an_outbox_and_a_device_are_paused_and_resumed(api: Api, store: OutboxStore) -> None:
    assert (await api.do("POST", "/outboxes/doors/pause"))["paused_since"] > 0
    assert [*(await api.do("POST", "/outboxes/doors/pause", {"device": "d1"}))["paused_devices"]] == ["d1"]
    assert (await api.do("POST", "/outboxes/doors/resume"))["paused_since"] is None
    assert (await api.do("POST", "/outboxes/doors/resume", {"device": "d1"}))["paused_devices"] == {}
    assert (await api.send("POST", "/outboxes/doors/resume")).status == 409
    assert await store.paused("doors") == {}


@pytest.mark.parametrize(
    "command, status, told",
    [
        ({"device": "d1"}, 400, "commands[1]: give either 'body'"),
        ({"device": "", "body": 1}, 400, "$.commands[1].device"),
        ({"device": "a/+/#", "body": 1}, 400, "commands[1]"),
        ({"device": "a\0", "body": 1}, 400, "commands[1]"),
        ({"device": "d1", "body": 1, "dedupe_key": ""}, 400, "dedupe_key"),
        ({"device": "d1", "body": 1, "priority": 2**40}, 400, "priority"),
        ({"device": "d1", "body_base64": "A"}, 400, "body_base64"),
        ({"device": "d1", "body": "x" * 2_000}, 413, "max_body"),
        ({"device": "d1", "body": 1, "colour": "red"}, 400, "`colour`"),
    ],
)
async def test_if_one_command_is_wrong_none_is_added(
    api: Api, store: OutboxStore, command: dict[str, Any], status: int, told: str
) -> None:
    said = await api.send("POST", COMMANDS, {"commands": [{"device": "d1", "body": 1}, command]})
    assert (said.status, said.kind) == (status, "application/problem+json")
    assert told in said.body["detail"]
    assert await store.commands("doors") == []


async def test_what_is_not_there_is_told(api: Api) -> None:
    for method, path in (
        ("GET", "/outboxes/gates"),
        ("GET", "/outboxes/gates/commands"),
        ("POST", "/outboxes/gates/pause"),
        ("GET", "/commands/1"),
        ("POST", "/commands/1/retry"),
    ):
        said = await api.send(method, path)
        assert (said.status, said.body["type"]) == (404, "urn:holdfast:not-known"), path
    for number in ("x", "-1", "9" * 30, "1%2F2"):
        assert (await api.send("GET", f"/commands/{number}")).status == 400


async def test_the_description_has_the_operations_of_devices(api: Api) -> None:
    document = await api.get("/openapi.json")
    assert "/api/v1/outboxes/{outbox}/commands" in document["paths"]
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
