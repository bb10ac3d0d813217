"""What the API says of tasks, limits and schedules, and does to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.testing import NodeForTests
from tests.console.api.conftest import LET_GO, Api


async def test_a_task_is_sent_and_told_of(api: Api, node: NodeForTests) -> None:
    sent = await api.do(
        "POST", "/tasks/shop", {"task_type": "mail.send", "body": {"to": "a@example.com"}, "trace_id": "t/1"}
    )
    assert sent == {"trace_id": "t/1"}
    await asyncio.to_thread(node.outcome, "t/1")
    task = await api.get("/tasks/shop/t%2F1")
    assert (task["state"], task["value"]) == ("succeed", "sent to a@example.com")


@pytest.mark.slow
async def test_tasks_are_listed_by_page_and_by_state(api: Api, node: NodeForTests) -> None:
    for number in range(3):
        body = {"task_type": "mail.send", "body": {"to": "x"}, "trace_id": f"listed-{number}"}
        await api.do("POST", "/tasks/shop", body)
        await asyncio.to_thread(node.outcome, f"listed-{number}")
    traces, cursor = [], ""
    while True:
        page = await api.get(f"/tasks/shop?state=succeed&limit=2&cursor={cursor}")
        assert len(page["tasks"]) <= 2
        traces += [task["trace_id"] for task in page["tasks"]]
        cursor = page["next"]
        if not cursor:
            break
    assert {f"listed-{number}" for number in range(3)} <= {*traces}
    assert len(traces) == len({*traces})
    assert (await api.get("/tasks/shop?state=running"))["tasks"] == []
    assert (await api.get("/tasks/shop?since_s=0"))["tasks"] == []


async def test_a_waiting_task_is_cancelled_once(api: Api, node: NodeForTests) -> None:
    body = {"task_type": "mail.send", "body": {"to": "x"}, "trace_id": "late", "delay_s": 600}
    await api.do("POST", "/tasks/shop", body)
    task = await api.do("POST", "/tasks/shop/late/cancel", {"reason": "ordered twice"})
    assert task["trace_id"] == "late"
    outcome = await asyncio.to_thread(node.outcome, "late")
    assert "ordered twice" in outcome.detail
    said = await api.send("POST", "/tasks/shop/late/cancel")
    assert (said.status, said.body["type"]) == (409, "urn:holdfast:refused")


@pytest.mark.slow
async def test_a_running_task_tells_where_it_is(api: Api, node: NodeForTests) -> None:
    await api.do("POST", "/tasks/shop", {"task_type": "mail.hang", "body": {}, "trace_id": "hangs"})
    async with asyncio.timeout(30.0):
        while (await api.get("/tasks/shop/hangs"))["note"] != "waits":
            pass
    found = await api.get("/tasks/shop/hangs/stack")
    assert "mail.hang" in found["stacks"]
    assert (found["progress"], found["note"], found["numbers"]) == (0.4, "waits", {"mails": 7.0})
    assert found["ran_s"] >= found["quiet_s"] >= 0
    LET_GO.set()
    await asyncio.to_thread(node.outcome, "hangs")
    said = await api.send("GET", "/tasks/shop/hangs/stack")
    assert (said.status, said.body["type"]) == (409, "urn:holdfast:refused")


async def test_a_failed_task_is_run_anew(api: Api, node: NodeForTests) -> None:
    await api.do("POST", "/tasks/shop", {"task_type": "mail.send", "body": {"bad": True}, "trace_id": "bad"})
    await asyncio.to_thread(node.outcome, "bad")
    ended_at = (await api.get("/tasks/shop/bad"))["ended_at"]
    assert await api.do("POST", "/tasks/shop/bad/retry") == {"trace_id": "bad"}
    async with asyncio.timeout(30.0):
        while (await api.get("/tasks/shop/bad"))["ended_at"] <= ended_at:
            await api.console.parts.clock.sleep(0.02)


@pytest.mark.parametrize(
    "body, told",
    [
        ({"task_type": "mail.send", "tries": 0}, "'tries'"),
        ({"task_type": "mail.send", "delay_s": -1}, "'delay_s'"),
        ({"task_type": "mail.send", "at": "tomorrow"}, "$.at"),
        ({"task_type": ""}, "$.task_type"),
        ({"task_type": "mail.send", "colour": "red"}, "`colour`"),
        ({"task_type": 7}, "$.task_type"),
        ({}, "`task_type`"),
        ([], "object"),
        ({"task_type": "mail.send", "trace_id": "a\0"}, "'trace_id'"),
        ({"task_type": "mail.send", "then": [{"task_type": "mail.send", "priority": 1e9}]}, "priority"),
    ],
)
async def test_a_wrong_task_is_named_and_not_sent(api: Api, body: Any, told: str) -> None:
    said = await api.send("POST", "/tasks/shop", body)
    assert (said.status, said.kind) == (400, "application/problem+json")
    assert told in said.body["detail"]


async def test_what_is_not_known_is_told(api: Api, node: NodeForTests) -> None:
    await api.do("POST", "/tasks/shop", {"task_type": "mail.send", "body": {"to": "x"}})
    for method, path in (
        ("GET", "/tasks/shop/none"),
        ("POST", "/tasks/shop/none/cancel"),
        ("POST", "/tasks/shop/none/retry"),
        ("GET", "/tasks/unheard"),
        ("GET", "/tasks/unheard/t"),
        ("DELETE", "/periodic/shop/none"),
    ):
        said = await api.send(method, path)
        assert (said.status, said.body["type"]) == (404, "urn:holdfast:not-known"), path


async def test_limits_are_changed_one_by_one(api: Api) -> None:
    changed = await api.do("PATCH", "/limits/shop", {"global": 40, "rates": {"mail.send": 2.5}})
    assert (changed["global"], changed["node"], changed["rates"]) == (40, 0, {"mail.send": 2.5})
    await api.do("PATCH", "/limits/shop", {"node": 8, "rates": {"mail.send": None}})
    (limit,) = (await api.get("/limits"))["limits"]
    assert (limit["app"], limit["global"], limit["node"], limit["rates"]) == ("shop", 40, 8, {})
    for wrong in ({"global": -1}, {"rates": {"mail.send": -1}}, {"strict": "yes"}, {"most": 1}):
        assert (await api.send("PATCH", "/limits/shop", wrong)).status == 400


async def test_the_schedule_is_changed_while_nodes_run(api: Api) -> None:
    entry = {"cron": "30 2 * * *", "task_type": "mail.send", "body": {"to": "x"}, "zone": "Europe/Berlin"}
    made = await api.do("PUT", "/periodic/shop/nightly%2F1", entry)
    assert made["entries"]["nightly/1"]["cron"] == "30 2 * * *"
    assert (await api.get("/periodic/shop")) == made
    said = await api.send("PUT", "/periodic/shop/other", entry | {"cron": "every day"})
    assert (said.status, said.kind) == (422, "application/problem+json")
    assert "every day" in said.body["detail"]
    assert (await api.do("DELETE", "/periodic/shop/nightly%2F1"))["entries"] == {}
