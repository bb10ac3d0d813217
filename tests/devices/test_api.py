"""Commands to devices by the console's JSON API."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from sqlalchemy import create_engine

from holdfast import App
from holdfast.devices.conformance.outbox_bench import Driver
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.wiring.services import Services
from tests.console.api.conftest import Api
from tests.console.browser import running_console

COMMANDS = "/outboxes/doors/commands"


@pytest.fixture
async def api(services: Services, store: OutboxStore) -> AsyncIterator[Api]:
    """A program that may change something."""
    async with running_console(services) as console, Api(console, console.own_token) as opened:
        yield opened


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_command_is_cancelled_and_sent_again(api: Api) -> None:
    (number,) = (await api.do("POST", COMMANDS, {"commands": [{"device": "d1", "body": 1}]}))["ids"]
    assert (await api.do("POST", f"/commands/{number}/cancel"))["state"] == "failed"
    said = await api.send("POST", f"/commands/{number}/cancel")
    assert (said.status, said.body["type"]) == (409, "urn:holdfast:refused")


async def test_commands_of_a_device_are_cancelled_together(api: Api) -> None:
    commands = [{"device": device, "body": 1, "supersede_key": device} for device in ("d1", "d2")]
    await api.do("POST", COMMANDS, {"commands": commands})
    assert await api.do("POST", "/outboxes/doors/cancel", {"device": "d1"}) == {"asked_back": 1}
    said = await api.send("POST", "/outboxes/doors/cancel", {})
    assert (said.status, "'device'" in said.body["detail"]) == (400, True)


@pytest.mark.slow
async def test_an_outbox_and_a_device_are_paused_and_resumed(api: Api, store: OutboxStore) -> None:
    assert (await api.do("POST", "/outboxes/doors/pause"))["paused_since"] > 0
    assert [*(await api.do("POST", "/outboxes/doors/pause", {"device": "d1"}))["paused_devices"]] == ["d1"]
    assert (await api.do("POST", "/outboxes/doors/resume"))["paused_since"] is None
    assert (await api.do("POST", "/outboxes/doors/resume", {"device": "d1"}))["paused_devices"] == {}
    assert (await api.send("POST", "/outboxes/doors/resume")).status == 409
    assert await store.paused("doors") == {}


@pytest.mark.slow
async def test_a_rollout_that_is_aborted_cannot_be_aborted_again(
    api: Api, store: OutboxStore, services: Services
) -> None:
    outbox = App("office").outbox("doors", shards=3)
    with create_engine(services.config.outbox_url).begin() as db:
        rollout = outbox.add_rollout(db, "firmware", ["d1", "d2"], {"v": 2})
    assert (await api.get("/outboxes/doors"))["rollouts"][0]["aborted"] is False
    aborted = await api.do("POST", f"/outboxes/doors/rollouts/{rollout}/abort")
    assert (aborted["id"], aborted["name"], aborted["aborted"]) == (rollout, "firmware", True)
    said = await api.send("POST", f"/outboxes/doors/rollouts/{rollout}/abort")
    assert (said.status, "aborted already" in said.body["detail"]) == (409, True)
    assert (await api.send("POST", "/outboxes/doors/rollouts/999/abort")).status == 404
    assert (await api.send("POST", "/outboxes/doors/rollouts/x/abort")).status == 400
    entries = (await api.get("/audit"))["entries"]
    assert ("abort a rollout", f"doors/{rollout}", "done") in {
        (each["action"], each["subject"], each["outcome"]) for each in entries
    }
    async with Api(api.console) as reader:
        assert (await reader.send("POST", f"/outboxes/doors/rollouts/{rollout}/abort")).status == 403


@pytest.mark.slow
async def test_devices_are_listed_with_why_they_are_stuck(api: Api, store: OutboxStore) -> None:
    commands = [{"device": device, "body": 1} for device in ("d1", "d2", "d3")]
    await api.do("POST", COMMANDS, {"commands": commands})
    driver, now = Driver(store), await store.now()
    await driver.open()
    driver.now = now
    for _ in range(2):
        await driver.take_turn(seen={"d1": now, "d2": now}, away={"d2"}, sweep=True)
    listed = (await api.get("/outboxes/doors/devices"))["devices"]
    assert [(each["device"], each["standing"]) for each in listed] == [
        ("d1", "there"),
        ("d2", "away"),
        ("d3", "never seen"),
    ]
    stuck = (await api.get("/outboxes/doors/devices?chosen=stuck"))["devices"]
    assert [(each["device"], each["stuck"].partition(", not")[0]) for each in stuck] == [
        ("d2", "it is away"),
        ("d3", "sent, and not answered"),
    ]
    page = await api.get("/outboxes/doors/devices?chosen=away&limit=1")
    assert ([each["device"] for each in page["devices"]], page["next"]) == (["d2"], "d2")
    rest = await api.get(f"/outboxes/doors/devices?chosen=away&after={page['next']}")
    assert ([each["device"] for each in rest["devices"]], rest["next"]) == (["d3"], "")
    await api.do("POST", "/outboxes/doors/pause")
    assert (await api.get("/outboxes/doors/devices/d1"))["stuck"] == "its outbox is paused"
    assert await api.get("/outboxes") == {"outboxes": ["doors"]}
    newest = await api.get(f"{COMMANDS}?newest=true&limit=2")
    assert [each["device"] for each in newest["commands"]] == ["d3", "d2"]
    (oldest,) = (await api.get(f"{COMMANDS}?newest=true&after={newest['next']}"))["commands"]
    assert oldest["device"] == "d1"


@pytest.mark.parametrize(
    "command, status, detail",
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
    api: Api, store: OutboxStore, command: dict[str, Any], status: int, detail: str
) -> None:
    said = await api.send("POST", COMMANDS, {"commands": [{"device": "d1", "body": 1}, command]})
    assert (said.status, said.kind) == (status, "application/problem+json")
    assert detail in said.body["detail"]
    assert await store.commands("doors") == []


@pytest.mark.slow
async def test_an_unknown_name_is_answered_with_404(api: Api) -> None:
    for method, path in (
        ("GET", "/outboxes/gates"),
        ("GET", "/outboxes/gates/commands"),
        ("POST", "/outboxes/gates/pause"),
        ("GET", "/commands/1"),
        ("POST", "/commands/1/retry"),
        ("GET", "/outboxes/gates/devices"),
        ("GET", "/outboxes/doors/devices/d1"),
        ("POST", "/outboxes/gates/rollouts/1/abort"),
    ):
        said = await api.send(method, path)
        assert (said.status, said.body["type"]) == (404, "urn:holdfast:not-known"), path
    for number in ("x", "-1", "9" * 30, "1%2F2"):
        assert (await api.send("GET", f"/commands/{number}")).status == 400


@pytest.mark.slow
async def test_the_description_has_the_operations_of_devices(api: Api) -> None:
    document = await api.get("/openapi.json")
    assert "/api/v1/outboxes/{outbox}/commands" in document["paths"]
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
