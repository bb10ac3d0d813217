"""Streams that act beyond Holdfast: webhooks, queues by URL and outboxes, on a whole node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast import App, Context, Job, devices
from holdfast.assembly.checks import check_app
from holdfast.config.sources import load
from holdfast.errors import ConfigError, TooLarge
from holdfast.testing import NodeSettings, StreamTest, node_for_tests
from holdfast.wiring.services import Services
from tests.on_node import on

PATIENCE_S = 20.0


class Office:
    """A web server in a thread of its own. ``answer`` says the status of each answer."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, Any]] = []
        self.answer: Callable[[int], int] = lambda count: 204
        self.changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="office", daemon=True)
        app = web.Application()
        app.router.add_post("/{path:.*}", self._note)
        self._server = TestServer(app, loop=self._loop)

    def __enter__(self) -> Office:
        self._thread.start()
        self._run(self._server.start_server()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._server.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _note(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        with self.changed:
            self.posted.append((request.path, request.headers["webhook-id"], body))
            self.changed.notify_all()
            status = self.answer(len(self.posted))
        return web.Response(status=status, text="no such site", headers={"Retry-After": "0"})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def wait_for(self, count: int) -> list[tuple[str, str, Any]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.posted) >= count, PATIENCE_S), self.posted
            return list(self.posted)


@pytest.fixture
def office() -> Iterator[Office]:
    with Office() as office:
        yield office


def until(found: Callable[[], Any]) -> Any:
    """Return what ``found`` finds, once it finds something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (it := found()):
        assert time.monotonic() < deadline
    return it


def cameras(target: str, **settings: Any) -> App:
    """Cameras that pass on each message to a target."""
    app = App("site")

    @app.stream("cameras", **settings)
    def camera(message: dict[str, Any], context: Context) -> dict[str, Any]:
        context.send(target, {"n": message["n"]}, key=message.get("to"))
        return {"n": message["n"]}

    return app


@pytest.mark.slow
def test_a_webhook_gets_what_a_stream_sends_in_order_though_it_fails_at_first(office: Office) -> None:
    office.answer = lambda count: 503 if count <= 2 else 200
    with node_for_tests(cameras(f"{office.url}/alerts")) as node:
        for n in range(3):
            node.stream("cameras").send({"n": n}, key="gate")
        posted = office.wait_for(5)
        assert [body["n"] for _, _, body in posted] == [0, 0, 0, 1, 2]
        ids = [each for _, each, _ in posted]
        assert ids[0] == ids[1] == ids[2], "a repeat has the id of the first"
        assert len(set(ids)) == 3
        assert not node.dead_letters("cameras")


@pytest.mark.slow
def test_a_webhook_gets_what_a_task_sends_and_streams_and_tasks_may_send_in_turn(office: Office) -> None:
    app = App("site")

    @app.task("report")
    def report(body: dict[str, Any], job: Job) -> None:
        job.send("cameras", {**body, "seen": True}, key="gate")
        job.send(f"{office.url}/tasks", body)
        if job.attempt == 1:
            raise ValueError("not yet")

    @app.stream("cameras")
    def camera(message: dict[str, Any], context: Context) -> None:
        if not message.get("seen"):
            context.send("report", {"n": message["n"]})
        else:
            context.send(f"{office.url}/cameras", {"n": message["n"]})

    office.answer = lambda count: 503 if count == 1 else 200
    with node_for_tests(app) as node:
        node.stream("cameras").send({"n": 7}, key="gate")
        posted = office.wait_for(3)
        assert sorted({(path, body["n"]) for path, _, body in posted}) == [("/cameras", 7), ("/tasks", 7)]
        assert len({each for _, each, _ in posted}) == 2, "the attempt that failed has sent nothing"


@pytest.mark.slow
def test_a_task_and_a_stream_that_send_to_each_other_for_ever_are_stopped() -> None:
    app = App("site")

    @app.task("ping")
    def ping(body: dict[str, Any], job: Job) -> None:
        job.send("pong", body, key="gate")

    @app.stream("pong")
    def pong(message: dict[str, Any], context: Context) -> None:
        context.send("ping", {})

    with node_for_tests(app) as node:
        node.stream("pong").send({}, key="gate")
        (letter,) = until(lambda: node.dead_letters("pong") or node.dead_letters("ping"))
        assert "16 effects" in letter.reason


def test_what_a_webhook_refuses_is_a_dead_letter_that_says_so(office: Office) -> None:
    office.answer = lambda count: 410 if count == 1 else 200
    target = f"{office.url}/alerts"
    with node_for_tests(cameras(target)) as node:
        for n in range(2):
            node.stream("cameras").send({"n": n}, key="gate")
        office.wait_for(2)
        [letter] = until(lambda: node.dead_letters("cameras"))
        assert letter.reason == f"webhook {target} answered 410: no such site"
        assert letter.attributes["target"] == target
        assert letter.body == b'{"n":0}'
        assert [body["n"] for _, _, body in office.posted] == [0, 1]


def test_a_handler_that_sends_to_a_url_that_nothing_serves_hears_of_it() -> None:
    with node_for_tests(cameras("gopher://host/alerts", max_tries=1)) as node:
        node.stream("cameras").send({"n": 1}, key="gate")
        assert node.results("cameras") == []
        [letter] = node.dead_letters("cameras")
        assert "target is 'gopher://host/alerts': nothing serves that" in letter.reason
        assert "https://hooks.example.com/alerts" in letter.reason


def test_a_queue_by_its_url_gets_what_a_stream_sends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    with node_for_tests(cameras(f"{url}#alerts")) as node:
        node.stream("cameras").send({"n": 1}, key="gate")
        node.results("cameras", 1)

        async def receive() -> Any:
            async with Services(load({"url": url})) as other:
                return await other.queue("alerts").receive(1, PATIENCE_S, 30.0, "reader")

        [delivery] = asyncio.run(receive())
    assert (delivery.body, delivery.attributes["source"]) == (b'{"n":1}', "cameras/gate")


def test_an_outbox_gets_commands_from_a_stream_each_once(tmp_path: Path) -> None:
    """A door is opened. A repeat of the effect adds no second command; a device that can't be is a letter."""
    app = cameras("doors")
    app.outbox("doors")
    office = f"sqlite:///{tmp_path / 'office.db'}"
    settings: NodeSettings = {"outbox_url": office, "devices_url": "mqtt://127.0.0.1:1"}
    with node_for_tests(app, settings=settings) as node:
        for n, door in enumerate(["north", "south", "north", "no/such+door"]):
            node.stream("cameras").send({"n": n, "to": door}, key="gate")
        node.results("cameras", 4)

        async def commands(services: Services) -> Any:
            store = devices.open_outbox(services)
            try:
                return await store.commands("doors")
            finally:
                await store.close()

        found = until(lambda: all_of(on(node, commands, outbox_url=office), 3))
        assert sorted((each.device, msgspec.json.decode(each.body)["n"]) for each in found) == [
            ("north", 0),
            ("north", 2),
            ("south", 1),
        ]
        [letter] = until(lambda: node.dead_letters("cameras"))
        assert "no/such+door" in letter.reason
        assert (letter.attributes["target"], letter.attributes["target_key"]) == ("doors", "no/such+door")


def all_of(found: list[Any], count: int) -> list[Any] | None:
    return found if len(found) == count else None


def test_results_go_to_a_target_too(office: Office) -> None:
    """Those of wake() as well, under the stream's key. No result is no effect."""
    app = App("site")

    @app.stream("cameras", results_to="totals")
    def camera(message: dict[str, Any], context: Context) -> Any:
        return {"n": message["n"]} if message["n"] else None

    @app.stream("totals", results_to=f"{office.url}/totals")
    def total(message: dict[str, Any], context: Context) -> Any:
        return [context.key, message["n"] * 10]

    with node_for_tests(app) as node:
        for n in range(3):
            node.stream("cameras").send({"n": n}, key="gate")
        assert [body for _, _, body in office.wait_for(2)] == [["gate", 10], ["gate", 20]]
        assert [result.value for result in node.results("totals", 2)] == [["gate", 10], ["gate", 20]]


def test_stream_test_shows_results_as_what_they_are_sent_to() -> None:
    """After what the handler itself sends. A result over the limit of an effect is the message's failure."""
    app = App("site")

    @app.stream("cameras", results_to="totals")
    def camera(message: dict[str, Any], context: Context) -> Any:
        context.send("totals", {"first": True})
        return {"n": "x" * message["n"]}

    @app.stream("totals")
    def total(message: dict[str, Any], context: Context) -> None: ...

    test = StreamTest(app, "cameras")
    test.send({"key": "gate", "n": 1})
    assert [(sent.target, sent.key, sent.body) for sent in test.sent] == [
        ("totals", "gate", {"first": True}),
        ("totals", "gate", {"n": "x"}),
    ]
    with pytest.raises(TooLarge, match="262144"):
        test.send({"key": "gate", "n": 300_000})


@pytest.mark.parametrize(
    "target, said",
    [
        (
            "nowhere",
            r"stream 'cameras': results_to: target 'nowhere' is not declared; name one of \['cam",
        ),
        ("gopher://host", "stream 'cameras': results_to: target is 'gopher://host': nothing serves that"),
        ("sqlite:///a.db", "stream 'cameras': results_to: target is 'sqlite:///a.db': it names no queue"),
    ],
)
def test_results_to_a_target_that_is_not_there_are_refused_at_the_start(
    target: str, said: str, tmp_path: Path
) -> None:
    app = App("site")

    @app.stream("cameras", results_to=target)
    def camera(message: dict[str, Any], context: Context) -> None: ...

    with pytest.raises(ConfigError, match=said):
        check_app(Services(load({"url": f"sqlite:///{tmp_path / 'a.db'}"})), app)


def test_an_outbox_has_a_longer_name_where_a_stream_has_its_name() -> None:
    app = cameras("nothing")
    app.outbox("cameras")
    assert app.targets == {"stream:cameras": ("stream", "cameras"), "outbox:cameras": ("outbox", "cameras")}
    with pytest.raises(ConfigError, match="target outbox:cameras is declared twice"):
        app.add_target("outbox", "cameras")
    with pytest.raises(ConfigError, match="target stream:x is declared twice"):
        app.add_target("stream", "x")


def test_a_target_that_no_package_opens_is_told_at_the_start() -> None:
    app = cameras("bell")
    app.add_target("gong", "bell")
    with (
        pytest.raises(ConfigError, match="nothing takes effects for gong:bell: install the package"),
        node_for_tests(app),
    ):
        pass
