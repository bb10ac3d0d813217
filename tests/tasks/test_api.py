"""A node's ``/v1/tasks``: what clients may ask, and that they are answered as its description says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from importlib.resources import files
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from yarl import URL

from holdfast.errors import Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import CountMember, EndAttempt, ReturnAttempt, StartAttempt, State, Task
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.system.clock import SystemClock
from holdfast.tasks import api
from holdfast.tasks.api import PATH, TaskApi
from holdfast.tasks.names import task_queue
from holdfast.tasks.producer import Producer
from holdfast.tasks.wire import Envelope, decode_task
from tests.cluster.fakes import Log

APP, TYPE = "reports", "report.publish"
LIMIT_BYTES = 10_000
SECRET = "a-secret-for-tests-only"
DOCUMENT: dict[str, Any] = json.loads(files("holdfast.tasks").joinpath("openapi.json").read_text())


class Rig:
    """The API over services in memory, and a client of it."""

    def __init__(self, client: TestClient[web.Request, web.Application], store: MemoryTasks) -> None:
        self.client = client
        self.store = store
        self.queues: dict[str, MemoryQueue] = {}
        self.begun: list[tuple[str, Outgoing]] = []
        self.stopped: list[tuple[str, str]] = []

    @property
    def queue(self) -> MemoryQueue:
        return self.queues[task_queue(APP, TYPE)]

    @property
    def sent(self) -> list[tuple[str, str]]:
        """Trace and body of each message in the queue."""
        default = Envelope(app=APP, task_id="-", task_type=TYPE)
        read = [decode_task(message.body, default) for message in self.queue.messages.values()]
        return [(message.envelope.task_id, message.body.data.decode()) for message in read]

    async def post(self, asked: Any, path: str = PATH) -> tuple[int, dict[str, Any]]:
        """Ask with JSON, or the bytes given."""
        data = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        return await self.ask("POST", path, data=data)

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of an answer, which must be one that is described."""
        async with self.client.request(method, URL(path, encoded=True), **more) as response:
            said = await response.json(content_type=None)
            described(method, path, response.status, response.content_type, said)
            return response.status, said

    async def begin(self, task_id: str) -> int:
        (task,) = await self.store.start([StartAttempt(task_id, TYPE, "m", "node-1", 3, 30.0)])
        return task.epoch

    async def end(self, task_id: str, state: State, detail: str = "") -> None:
        await self.store.end([EndAttempt(task_id, await self.begin(task_id), state, b'"3 pages"', detail)])


def described(method: str, path: str, status: int, kind: str, said: Any) -> None:
    """An answer is one that the description has for the request."""
    place = PATH if path.partition("?")[0] == PATH else f"{PATH}/{{trace}}"
    place += "/cancel" if path.partition("?")[0].endswith("/cancel") else ""
    answer = DOCUMENT["paths"][place][method.lower()]["responses"][str(status)]
    schema = answer["content"][kind]["schema"]["$ref"].rpartition("/")[2]
    for name in DOCUMENT["components"]["schemas"][schema]["required"]:
        assert name in said
    if schema == "Problem":
        assert said["status"] == status


@asynccontextmanager
async def serving(secret: str | None = None) -> AsyncIterator[Rig]:
    clock = SystemClock()
    store = MemoryTasks(clock)
    queues: dict[str, MemoryQueue] = {task_queue(APP, TYPE): MemoryQueue(clock)}
    begun: list[tuple[str, Outgoing]] = []
    stopped: list[tuple[str, str]] = []

    def run_here(task_type: str, message: Outgoing) -> None:
        begun.append((task_type, message))

    def stop_here(task_id: str, why: str) -> bool:
        stopped.append((task_id, why))
        return True

    served = TaskApi(
        [TYPE],
        Producer(APP, queues.__getitem__, store, clock, Log()),
        run_here=run_here,
        stop_here=stop_here,
        max_body_bytes=LIMIT_BYTES,
        secret=secret,
    )
    application = web.Application()
    application.add_routes(served.routes())
    async with TestClient(TestServer(application)) as client:
        rig = Rig(client, store)
        rig.queues, rig.begun, rig.stopped = queues, begun, stopped
        yield rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as made:
        yield made


async def test_a_task_is_begun_here_and_stands_in_its_queue_too(rig: Rig) -> None:
    status, said = await rig.post({"task_type": TYPE, "body": {"customer": "acme"}, "group": "acme"})
    assert status == 202
    assert rig.sent == [(said["trace_id"], '{"customer":"acme"}')]
    ((task_type, message),) = rig.begun
    assert (task_type, message.key) == (TYPE, said["trace_id"])
    (stored,) = rig.queue.messages.values()
    assert (stored.body, stored.attributes) == (message.body, message.attributes)
    assert message.delay_s > 0, "no other node is faster"
    status, task = await rig.ask("GET", f"{PATH}/{said['trace_id']}")
    assert (status, task["state"], task["group"], task["attempts"]) == (200, "queued", "acme", 0)


async def test_what_follows_a_task_goes_with_it(rig: Rig) -> None:
    then = {"task_type": TYPE, "body": 2, "delay_s": 1.5, "tries": 2}
    asked = {"task_type": TYPE, "body": 1, "then": [then], "on_failure": [{"task_type": TYPE}]}
    assert (await rig.post(asked))[0] == 202
    ((_, message),) = rig.begun
    task = decode_task(message.body, Envelope(app=APP, task_id="-", task_type=TYPE))
    assert [(each.on_failure, each.task.body.data, each.delay_s) for each in task.follow_ups] == [
        (False, b"2", 1.5),
        (True, b"null", 0.0),
    ]
    assert task.follow_ups[0].task.envelope.tries == 2


async def test_a_follow_up_of_no_known_type_is_refused(rig: Rig) -> None:
    asked = {"task_type": TYPE, "then": [{"task_type": TYPE, "then": [{"task_type": "misspelt"}]}]}
    status, said = await rig.post(asked)
    assert (status, "'misspelt'" in said["detail"]) == (404, True)
    assert not rig.begun


@pytest.mark.parametrize("task_id", ["t 1/ä", "a%41b", "a%2Fb", "a+b?c#d"])
async def test_where_a_task_is_asked_for_is_told(rig: Rig, task_id: str) -> None:
    async with rig.client.post(PATH, json={"task_type": TYPE, "trace_id": task_id}) as response:
        place = response.headers["Location"]
    assert (await rig.ask("GET", place))[1]["trace_id"] == task_id


async def test_what_a_task_returned_is_told(rig: Rig) -> None:
    await rig.end("t", State.SUCCEEDED)
    _, task = await rig.ask("GET", f"{PATH}/t")
    assert (task["state"], task["value"], task["node"], task["progress"]) == (
        "succeed",
        "3 pages",
        "node-1",
        1,
    )


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"no json",
        b"[]",
        b'{"task_type": 3}',
        b'{"task_type": "report.publish", "spelling": 1}',
        b'{"task_type": "report.publish", "delay_s": -1}',
        b'{"task_type": "report.publish", "delay_s": 1e999}',
        b'{"task_type": "report.publish", "at": "2026-12-24T18:00:00"}',
        b'{"task_type": "report.publish", "at": "2026-12-24"}',
        b'{"task_type": "report.publish", "at": 1766595600}',
        b'{"task_type": "report.publish", "at": "2026-12-24T18:00:00Z", "delay_s": 1}',
        b'{"task_type": "report.publish", "then": [{"task_type": "a", "at": "2026-12-24T18:00:00Z"}]}',
        b'{"task_type": "report.publish", "priority": 2147483648}',
        b'{"task_type": "report.publish", "timeout_s": 0}',
        b'{"task_type": "report.publish", "tries": 0}',
        b'{"task_type": "report.publish", "then": {"task_type": "report.publish"}}',
        b'{"task_type": "report.publish", "then": [{"task_type": "report.publish", "tries": 0}]}',
        b'{"task_type": "report.publish", "on_failure": [{"body": 1}]}',
        b'{"task_type": "report.publish", "then": [%s]}'
        % b",".join([b'{"task_type": "report.publish"}'] * 17),
        b'{"task_type": "report.publish", "trace_id": "a\\u0007b"}',
        b'{"task_type": "report.publish", "group": "%s"}' % (b"x" * 600),
        b'{"task_type": "report.publish", "body": %s}' % (b"[" * 4000 + b"]" * 4000),
        b'{"task_type": "report.publish", "body": "\xff"}',
        b'{"task_type": "report.publish", "body": "\\ud800"}',
    ],
)
async def test_what_can_t_be_understood_is_refused(rig: Rig, asked: bytes) -> None:
    assert (await rig.post(asked))[0] == 400
    assert not rig.sent
    assert not rig.store.standing


async def test_what_is_too_large_is_refused(rig: Rig) -> None:
    assert (await rig.post(b"x" * (LIMIT_BYTES + 1)))[0] == 413
    rig.queue.max_bytes = 1000
    assert (await rig.post({"task_type": TYPE, "body": "x" * 1000}))[0] == 413
    assert not rig.store.standing, "nobody waits for it"


async def test_a_body_that_comes_too_slowly_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BODY_S", 0.05)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert (await rig.ask("POST", PATH, data=body()))[0] == 408


async def test_what_is_to_wait_is_not_begun(rig: Rig) -> None:
    assert (await rig.post({"task_type": TYPE, "delay_s": 60}))[0] == 202
    assert (len(rig.sent), rig.begun) == (1, [])


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-8))])
async def test_what_is_to_begin_at_a_time_waits_for_it(rig: Rig, zone: tzinfo) -> None:
    at = datetime.now(zone) + timedelta(minutes=10)
    assert (await rig.post({"task_type": TYPE, "at": at.isoformat()}))[0] == 202
    assert rig.begun == []
    (waiting,) = rig.queue.messages.values()
    assert 590 < waiting.visible_at - waiting.sent_at <= 600


async def test_what_was_to_begin_at_a_time_that_has_passed_is_begun_here(rig: Rig) -> None:
    assert (await rig.post({"task_type": TYPE, "at": "2020-02-29T12:00:00Z"}))[0] == 202
    assert len(rig.begun) == 1


async def test_a_time_beyond_what_the_queue_can_wait_is_left_to_the_store(rig: Rig) -> None:
    rig.queue.delay_max_s = 900.0
    assert (await rig.post({"task_type": TYPE, "trace_id": "t", "at": "2126-11-22T20:00:00+01:00"}))[0] == 202
    assert (rig.begun, rig.sent) == ([], [])
    _, task = await rig.ask("GET", f"{PATH}/t")
    assert task["paused_until"] == pytest.approx(
        datetime.fromisoformat("2126-11-22T20:00:00+01:00").timestamp(), abs=60.0
    )


async def test_what_is_not_known_is_not_found(rig: Rig) -> None:
    assert (await rig.post({"task_type": "no.such"}))[0] == 404
    status, said = await rig.post({"trace_id": "unheard"})
    assert (status, said["detail"]) == (404, "no task 'unheard' is known, or not any more")
    status, said = await rig.post({})
    assert (status, said["detail"].startswith("field 'task_type' is ''")) == (404, True)
    assert (await rig.ask("GET", f"{PATH}/unheard"))[0] == 404
    assert (await rig.ask("POST", f"{PATH}/unheard/cancel"))[0] == 404
    assert (await rig.ask("GET", f"{PATH}/%FF"))[0] == 400


async def test_a_running_task_is_not_run_again(rig: Rig) -> None:
    await rig.begin("t")
    status, said = await rig.post({"task_type": TYPE, "trace_id": "t"})
    assert (status, "node-1" in said["detail"]) == (409, True)
    assert (await rig.post({"trace_id": "t"}))[0] == 409
    assert not rig.sent


async def test_what_has_succeeded_does_not_run_again_when_it_is_asked_for_again(rig: Rig) -> None:
    asked = {"task_type": TYPE, "trace_id": "t", "body": 7}
    await rig.post(asked)
    await rig.end("t", State.SUCCEEDED)
    standing = rig.store.standing["t"]
    for again in (asked, {"trace_id": "t"}):
        async with rig.client.post(PATH, json=again) as response:
            said = await response.json()
            described("POST", PATH, response.status, response.content_type, said)
            assert (response.status, response.headers["X-Duplicate"]) == (200, "true")
        assert (said["trace_id"], said["state"], said["value"]) == ("t", "succeed", "3 pages")
    assert rig.store.standing["t"] is standing
    assert (len(rig.sent), len(rig.begun)) == (1, 1)


async def test_what_succeeds_while_it_is_asked_for_again_does_not_run_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "t"})
    get = rig.store.get

    async def as_before(task_id: str) -> Task | None:
        monkeypatch.setattr(rig.store, "get", get)
        before = await get(task_id)
        await rig.end(task_id, State.SUCCEEDED)
        return before

    monkeypatch.setattr(rig.store, "get", as_before)
    status, said = await rig.post({"task_type": TYPE, "trace_id": "t"})
    assert (status, said["state"]) == (200, "succeed")
    assert rig.store.standing["t"].state is State.SUCCEEDED
    assert (len(rig.sent), len(rig.begun)) == (1, 1)


async def test_a_task_that_waits_for_its_next_try_keeps_count_when_it_is_asked_for_again(rig: Rig) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "t"})
    await rig.store.give_back([ReturnAttempt("t", await rig.begin("t"), spent=True)])
    assert (await rig.post({"task_type": TYPE, "trace_id": "t"}))[0] == 202
    assert rig.store.standing["t"].attempts == 1


async def test_an_ended_task_runs_anew_with_its_dead_letter_s_body(rig: Rig) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "t", "body": 7})
    ((_, message),) = rig.begun
    await rig.end("t", State.FAILED, "no such table")
    await rig.queue.bury([DeadLetter(f"{TYPE}/t", message.body, "failed", key="t")])
    rig.queue.messages.clear()
    assert (await rig.post({"trace_id": "t", "delay_s": -1}))[0] == 400
    assert (await rig.post({"trace_id": "t"}))[0] == 202
    assert rig.sent == [("t", "7")]
    assert [message.key for _, message in rig.begun[1:]] == ["t"]
    assert not await rig.queue.dead_letters(1)
    task = rig.store.standing["t"]
    assert (task.state, task.attempts) == (State.QUEUED, 0)


async def test_a_dead_letter_s_task_may_wait_too(rig: Rig) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "t", "body": 7})
    ((_, message),) = rig.begun
    await rig.end("t", State.FAILED, "no such table")
    await rig.queue.bury([DeadLetter(f"{TYPE}/t", message.body, "failed", key="t")])
    rig.queue.messages.clear()
    at = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    assert (await rig.post({"trace_id": "t", "at": at}))[0] == 202
    assert len(rig.begun) == 1, "no node begins it"
    (waiting,) = rig.queue.messages.values()
    assert waiting.visible_at - waiting.sent_at >= 59


async def test_a_dead_letter_s_task_waits_no_longer_than_its_queue_can(rig: Rig) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "t"})
    await rig.end("t", State.FAILED)
    rig.queue.delay_max_s = 900.0
    status, said = await rig.post({"trace_id": "t", "at": "2126-11-22T20:00:00+01:00"})
    assert (status, "on this queue it is 0 to 900 s" in said["detail"]) == (400, True)


async def test_an_ended_task_whose_body_nobody_has_needs_a_new_one(rig: Rig) -> None:
    await rig.end("t", State.FAILED, "no such table")
    status, said = await rig.post({"trace_id": "t"})
    assert (status, "send it with its body" in said["detail"]) == (409, True)
    assert (await rig.post({"trace_id": "t", "task_type": TYPE, "body": 8}))[0] == 202
    assert rig.sent == [("t", "8")]
    assert rig.store.standing["t"].state is State.QUEUED


async def test_a_batch_is_not_run_anew_but_tells_which_of_its_tasks_failed(rig: Rig) -> None:
    await rig.store.count([CountMember("b", 2, place, failed=place == 1) for place in (0, 1)])
    status, said = await rig.post({"trace_id": "b"})
    assert (status, "'b' is a batch; retry its failed tasks: b-1" in said["detail"]) == (
        409,
        True,
    )


async def test_what_waits_is_cancelled_at_once_and_what_runs_is_told(rig: Rig) -> None:
    await rig.post({"task_type": TYPE, "trace_id": "waits"})
    status, task = await rig.ask("POST", f"{PATH}/waits/cancel?reason=ordered+twice")
    assert (status, task["state"], task["detail"]) == (202, "failed", "cancelled: ordered twice")
    assert (await rig.ask("POST", f"{PATH}/waits/cancel"))[0] == 409
    await rig.begin("runs")
    status, task = await rig.ask("POST", f"{PATH}/runs/cancel")
    assert (status, task["state"]) == (202, "running")
    assert rig.stopped[-1] == ("runs", "over HTTP")
    assert rig.store.standing["runs"].cancel == "over HTTP"


async def test_a_node_with_a_secret_asks_for_it() -> None:
    async with serving(SECRET) as rig:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": SECRET}):
            assert (await rig.ask("GET", f"{PATH}/t", headers=headers))[0] == 401
            assert (await rig.ask("POST", PATH, headers=headers))[0] == 401
            assert (await rig.ask("POST", f"{PATH}/t/cancel", headers=headers))[0] == 401
        known = {"Authorization": f"Bearer {SECRET}"}
        assert (await rig.ask("GET", f"{PATH}/t", headers=known))[0] == 404


async def test_a_store_that_is_away_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(task_id: str) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(rig.store, "get", away)
    assert (await rig.ask("GET", f"{PATH}/t"))[0] == 503


async def test_the_api_of_tasks_serves_its_description(rig: Rig) -> None:
    async with rig.client.get("/v1/openapi.json") as response:
        assert await response.json() == DOCUMENT


# --- anything that is HTTP


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def kept(runner: asyncio.Runner) -> Iterator[Rig]:
    context = serving()
    rig = runner.run(context.__aenter__())
    runner.run(rig.ask("GET", f"{PATH}/nothing"))  # by the connection that is kept
    yield rig
    runner.run(context.__aexit__(None, None, None))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "task_type": st.just(TYPE) | st.text(max_size=9),
        "body": JSON,
        "trace_id": st.sampled_from(["runs", "ended", "waits"]) | st.text(max_size=9),
        "group": st.text(max_size=9),
        "priority": st.integers(),
        "delay_s": st.floats() | st.integers(),
        "at": st.datetimes(timezones=st.timezones() | st.none()).map(datetime.isoformat)
        | st.text(max_size=9),
        "timeout_s": st.floats() | st.integers(),
        "tries": st.integers(),
        "then": JSON | st.lists(st.fixed_dictionaries({"task_type": st.just(TYPE)}), max_size=2),
    },
)
BODIES = st.one_of(
    ASKED.map(lambda made: json.dumps(made).encode()),
    JSON.map(lambda made: json.dumps(made).encode()),
    st.binary(max_size=50),
)
TRACES = st.sampled_from(["runs", "ended", "waits"]) | st.text(st.sampled_from("ab%2F.0éĀ~"), min_size=1)


async def prepared(rig: Rig) -> None:
    rig.store.standing.clear()
    await rig.begin("runs")
    await rig.end("ended", State.FAILED)
    await rig.post({"task_type": TYPE, "trace_id": "waits"})


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES)
def test_whatever_is_posted_is_answered_as_described(runner: asyncio.Runner, kept: Rig, body: bytes) -> None:
    runner.run(prepared(kept))
    before = dict(kept.store.standing), len(kept.queue.messages)
    status, _ = runner.run(kept.post(body))
    event(f"{status}")
    assert status < 500
    if status != 202:
        assert (dict(kept.store.standing), len(kept.queue.messages)) == before


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task_id=TRACES, reason=st.text(max_size=9))
def test_whatever_is_asked_for_is_answered_as_described(
    runner: asyncio.Runner, kept: Rig, task_id: str, reason: str
) -> None:
    runner.run(prepared(kept))
    quoted = str(URL.build(path=f"/{task_id}"))[1:]
    query = str(URL.build(query={"reason": reason}))
    for method, path in (("GET", f"{PATH}/{quoted}"), ("POST", f"{PATH}/{quoted}/cancel{query}")):
        if "/" not in quoted and quoted not in (".", ".."):
            assert runner.run(kept.ask(method, path))[0] < 500
