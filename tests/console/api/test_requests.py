"""Whatever is sent is answered as a problem that says what to do; changes are in the audit log."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import aiohttp.web
import pytest

from holdfast.console.api.operations import Call, Operation, route
from holdfast.console.service import Console
from holdfast.operate.actions import NoFields
from holdfast.testing import NodeForTests
from tests.console.api.conftest import Api

JSON = {"Content-Type": "application/json"}


async def test_without_a_token_one_reads_and_changes_nothing(reader: Api, console: Console) -> None:
    assert (await reader.get("/overview"))["streams"]["total"] >= 0
    said = await reader.send("POST", "/streams/frames/a/pause", {})
    assert (said.status, said.kind) == (403, "application/problem+json")
    assert "operate" in said.body["detail"]
    assert (await reader.get("/audit"))["entries"] == []


async def test_a_request_with_a_wrong_token_gets_401(console: Console) -> None:
    async with Api(console, "wrong") as stranger:
        said = await stranger.raw("GET", "/api/v1/overview")
        assert (said.status, said.kind) == (401, "application/problem+json")


@pytest.mark.slow
async def test_changes_are_in_the_audit_log_with_who_what_and_outcome(
    api: Api, reader: Api, node: NodeForTests
) -> None:
    node.stream("frames").send({"camera": "audited", "frame": 0})
    await asyncio.to_thread(node.results, "frames")
    await api.do("POST", "/streams/frames/audited/skip", {"through": 5})
    await api.send("POST", "/streams/frames/audited/skip", {"through": 1})
    secret = {"messages": [{"body": {"camera": "audited", "frame": 6, "password": "hunter2"}}]}
    await api.do("POST", "/streams/frames/messages", secret)
    sent, failed, skipped = (await reader.get("/audit?limit=3"))["entries"]
    assert (skipped["who"], skipped["action"], skipped["subject"]) == ("local", "skip", "frames/audited")
    assert (skipped["details"], skipped["outcome"]) == ({"through": "5"}, "done")
    assert "it stands at run 0, seq 5" in skipped["text"]
    assert failed["outcome"] == "failed"
    assert "passed already" in failed["text"]
    assert (sent["action"], sent["subject"], sent["text"]) == ("send", "frames", "1 message")
    assert "hunter2" not in json.dumps(sent)


async def test_of_tasks_that_follow_the_audit_log_has_the_types_alone(
    api: Api, reader: Api, node: NodeForTests
) -> None:
    last: dict[str, Any] = {"task_type": "mail.send", "body": {"to": "hunter2"}}
    told = {"task_type": "mail.hang", "body": "hunter2", "then": [last], "on_failure": [last]}
    task = last | {"delay_s": 600, "then": [last, told], "on_failure": [told]}
    await api.do("POST", "/tasks/shop", task)
    (sent,) = (await reader.get("/audit?limit=1"))["entries"]
    assert sent["details"] == {
        "task_type": "mail.send",
        "delay_s": "600.0",
        "then": "2: mail.send, mail.hang",
        "on_failure": "1: mail.hang",
    }


async def test_what_is_refused_before_it_begins_is_not_in_the_audit_log(api: Api) -> None:
    before = await api.get("/audit")
    assert (await api.send("POST", "/streams/frames/a/skip", {"through": "x"})).status == 400
    assert await api.get("/audit") == before


async def test_a_body_of_10_megabytes_is_refused(api: Api) -> None:
    for path, limit in (("/streams/frames/a/skip", "1048576"), ("/dead-letters/purge", "1048576")):
        said = await api.raw("POST", f"/api/v1{path}", io.BytesIO(b" " * 10_000_000), JSON)
        assert (said.status, said.kind) == (413, "application/problem+json")
        assert limit in said.body["detail"]


async def test_a_body_that_grows_while_it_is_sent_is_refused(api: Api) -> None:
    async def endless() -> Any:
        for _ in range(200):
            yield b" " * 65_536

    said = await api.raw("POST", "/api/v1/streams/frames/a/skip", endless(), JSON)
    assert said.status == 413


@pytest.mark.parametrize(
    "data, headers, status, told",
    [
        (b"{", JSON, 400, "the body is wrong"),
        (b"\xff", JSON, 400, "the body is wrong"),
        (b"[" * 100_000, JSON, 400, "nests deeper"),
        (b'"text"', JSON, 400, "object"),
        (b'{"through": 1, "more": 2}', JSON, 400, "unknown field `more`"),
        (b'{"through": "1"}', JSON, 400, "$.through"),
        (b'{"through": 1.5}', JSON, 400, "$.through"),
        (b'{"through": -1}', JSON, 400, "$.through"),
        (b'{"through": 1e400}', JSON, 400, "through"),
        (b"through=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        (b"{}", {**JSON, "Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    ],
)
async def test_a_request_with_a_wrong_body_says_what_is_wrong(
    api: Api, data: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    said = await api.raw("POST", "/api/v1/streams/frames/a/skip", data, headers)
    assert (said.status, said.kind) == (status, "application/problem+json")
    assert told in said.body["detail"]


@pytest.mark.parametrize(
    "path, status",
    [
        ("/api/v1/streams/frames/%00", 400),
        ("/api/v1/streams/frames/%ff", 400),
        ("/api/v1/streams/frames/" + "k" * 5_000, 400),
        ("/api/v1/streams/fra%2Fmes/k", 400),
        ("/api/v1/streams/frames/a/b/c", 404),
        ("/api/v1/streams/frames/", 404),
        ("/api/v1/tasks/sh%2Fop", 400),
        ("/api/v1/tasks/shop/%0a", 400),
        ("/api/v1/nothing", 404),
        ("/api/v2/overview", 404),
        ("/api/v1/streams?sort=colour", 400),
        ("/api/v1/streams?limit=-1", 400),
        ("/api/v1/streams?limit=1e9", 400),
        ("/api/v1/streams?cursor=" + "A" * 3_999, 400),
        ("/api/v1/streams?cursor=%00", 400),
        ("/api/v1/streams?text=" + "x" * 5_000, 400),
        ("/api/v1/tasks/shop?since_s=nan", 400),
        ("/api/v1/tasks/shop?since_s=inf", 400),
        ("/api/v1/streams?colour=%3Cscript%3E", 400),
    ],
)
async def test_a_wrong_path_or_parameter_is_told(
    api: Api, node: NodeForTests, path: str, status: int
) -> None:
    await api.do("POST", "/tasks/shop", {"task_type": "mail.send", "body": {"to": "x"}})
    said = await api.raw("GET", path)
    assert (said.status, said.kind) == (status, "application/problem+json"), said


async def test_a_method_that_a_path_does_not_have_is_told(api: Api) -> None:
    said = await api.send("DELETE", "/overview")
    assert (said.status, said.kind) == (405, "application/problem+json")


async def test_a_problem_hides_no_program_and_no_secret(api: Api) -> None:
    said = await api.raw("GET", "/api/v1/streams?text=a&%3Cscript%3Ealert(1)%3C/script%3E=1")
    assert said.kind == "application/problem+json"
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{api.console.address}/api/v1/overview") as response,
    ):
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"


async def test_a_change_goes_on_though_its_caller_hangs_up(console: Console, api: Api) -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(call: Call[NoFields, None]) -> NoFields:
        begun.set()
        await may_end.wait()
        ended.set()
        return NoFields()

    slow = Operation(
        method="POST", path="/slow", name="slow", action="slow", summary=".", act=act, answer=NoFields
    )
    serve = route(slow, console.parts.audit).handler
    app = aiohttp.web.Application(middlewares=[console.parts.access.admit])
    console.parts.access.require([("operate", [aiohttp.web.post("/api/v1/slow", serve)])])
    app.add_routes([aiohttp.web.post("/api/v1/slow", serve)])
    runner = aiohttp.web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0]
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {console.own_token}"}
            asking = asyncio.ensure_future(session.post(f"http://{host}:{port}/api/v1/slow", headers=headers))
            await begun.wait()
            asking.cancel()
        may_end.set()
        async with asyncio.timeout(30.0):
            await ended.wait()
            while not (entry := (await api.get("/audit?limit=1"))["entries"][0])["outcome"]:
                await console.parts.clock.sleep(0.02)
        assert (entry["action"], entry["outcome"]) == ("slow", "done")
    finally:
        await runner.cleanup()
