"""The kit for handlers of tasks."""

import asyncio
from typing import Any

import pytest
from google.protobuf import duration_pb2

from holdfast import App
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, TooLarge
from holdfast.rules.tasks.task import State
from holdfast.tasks.body import Body
from holdfast.tasks.handler import Cancelled, Job, Retry
from holdfast.tasks.outcome import Outcome
from holdfast.testing import SentEffect, TaskTest


def publish(body: dict[str, Any], job: Job) -> str:
    for page in range(body["pages"]):
        job.progress((page + 1) / body["pages"], "page", rows=page)
        job.log.info("published", page=page)
    return f"{body['pages']} pages of {job.task_id}"


def test_a_handler_runs_and_says_how_far_it_is() -> None:
    test = TaskTest(publish, task_id="t1")
    assert test.run({"pages": 2}) == "2 pages of t1"
    assert [(step.fraction, step.note, step.numbers) for step in test.steps] == [
        (0.5, "page", {"rows": 0.0}),
        (1.0, "page", {"rows": 1.0}),
    ]
    assert test.lines == [("info", "published", {"page": 0}), ("info", "published", {"page": 1})]
    assert test.run({"pages": 0}) == "0 pages of t1"
    assert test.steps == []


@pytest.mark.parametrize(
    "kind,sent,got",
    [
        (str, "text", "text"),
        (bytes, "text", 4),
        (dict, {"a": 1}, {"a": 1}),
        (duration_pb2.Duration, duration_pb2.Duration(seconds=5), 5),
        (dict, Body(b'{"b": 2}'), {"b": 2}),
    ],
)
def test_a_task_test_takes_bodies_in_any_form(kind: Any, sent: Any, got: Any) -> None:
    def handle(body: Any, job: Job) -> Any:
        known: dict[Any, Any] = {bytes: len, duration_pb2.Duration: lambda body: body.seconds}
        return known[kind](body) if kind in known else body

    assert TaskTest(handle, body=kind).run(sent) == got


def test_errors_are_raised_as_they_are() -> None:
    error = ValueError("as told")

    def fail(body: Any, job: Job) -> None:
        raise error

    with pytest.raises(ValueError, match="as told") as raised:
        TaskTest(fail).run({})
    assert raised.value is error
    with pytest.raises(InvalidMessage):
        TaskTest(fail).run("no json")
    with pytest.raises(HandlerFailed, match="can't be stored as JSON"):
        TaskTest(lambda body, job: object).run({})


class Tidy:
    """Keeps what happened to it."""

    events: list[str]

    def run(self, body: Any, job: Job) -> None:
        self.events = body.setdefault("events", [])
        job.on_terminate(lambda: self.events.append("hook"))
        try:
            for _ in range(10):
                job.check()
                job.progress()
        except Cancelled:
            self.events.append(f"cancelled: {job.cancelled}")
            raise

    def terminate(self, job: Job) -> None:
        self.events.append("terminate")


def test_a_handler_can_be_told_to_end() -> None:
    test = TaskTest(Tidy, cancel_at=3)
    with pytest.raises(Cancelled, match="the test says so"):
        test.run({})
    assert len(test.steps) == 3


def test_hooks_run_once_the_newest_first() -> None:
    events: list[str] = []

    def handle(body: Any, job: Job) -> None:
        job.on_terminate(lambda: events.append("first"))
        job.on_terminate(lambda: 1 / 0)
        job.on_terminate(lambda: events.append("last"))
        job.progress()

    test = TaskTest(handle, cancel_at=1)
    with pytest.raises(Cancelled):
        test.run({})
    assert events == ["last", "first"]
    assert [(level, event) for level, event, _ in test.lines] == [("error", "terminate hook failed")]


def test_an_attempt_can_exceed_its_timeout() -> None:
    left: list[float] = []

    def handle(body: Any, job: Job) -> None:
        left.append(job.deadline_s)
        try:
            job.progress()
        finally:
            left.append(job.deadline_s)

    with pytest.raises(TimeoutError, match="timeout_s = 7"):
        TaskTest(handle, timeout_s=7, over_time_at=1).run({})
    assert left == [7, 0]


@pytest.mark.slow
def test_async_handlers_run_and_leave_nothing_behind() -> None:
    left: list[asyncio.Task[None]] = []

    async def handle(body: dict[str, Any], job: Job) -> int:
        left.append(asyncio.ensure_future(asyncio.sleep(60)))
        await asyncio.sleep(0)
        job.progress()
        return 1

    assert TaskTest(handle).run({}) == 1
    with pytest.raises(Cancelled):
        TaskTest(handle, cancel_at=1).run({})
    assert all(task.cancelled() for task in left)


def test_an_app_s_task_is_found_by_name() -> None:
    app = App("a")
    app.task("one", body=str, tries=4)(lambda body, job: [body, job.app, job.type, job.attempt, job.tries])
    assert TaskTest(app, attempt=2).run("x") == ["x", "a", "one", 2, 4]
    app.task("two")(publish)
    with pytest.raises(ConfigError, match=r"app 'a' has no task ''; name one of \['one', 'two'\]"):
        TaskTest(app)
    assert TaskTest(app, "two").run({"pages": 1}) == "1 pages of test"


@pytest.mark.slow
async def test_it_works_where_a_loop_runs_as_in_notebooks() -> None:
    async def double(body: dict[str, int], job: Job) -> int:
        await asyncio.sleep(0)
        job.progress(1.0)
        return 2 * body["n"]

    test = TaskTest(double)
    assert test.run({"n": 2}) == 4
    assert [step.fraction for step in test.steps] == [1.0]
    with pytest.raises(Cancelled):
        TaskTest(double, cancel_at=1).run({"n": 2})


def test_a_pause_that_a_handler_asks_for_is_told_with_its_length_and_reason() -> None:
    def handle(body: dict[str, Any], job: Job) -> None:
        assert job.pauses == 0
        raise Retry(after_s=30, reason="the file has not come")

    with pytest.raises(Retry, match=r"after 30 s: the file has not come") as asked:
        TaskTest(handle).run({})
    assert (asked.value.after_s, asked.value.reason) == (30.0, "the file has not come")


@pytest.mark.parametrize("after_s", [0, -1, 86_401, float("nan"), float("inf"), True, "5"])
def test_a_pause_that_can_not_be_is_refused_where_it_is_asked_for(after_s: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"Retry: after_s is .*; it must be a number above 0, at most 86,400"
    ):
        Retry(after_s=after_s)


def test_a_follow_up_is_given_the_outcome_before_it() -> None:
    def handle(body: dict[str, Any], job: Job) -> Any:
        return job.after and [job.after.task_id, job.after.value]

    assert TaskTest(handle).run({}) is None
    before = Outcome(task_id="t-1", state=State.SUCCEEDED, value={"pages": 3})
    assert TaskTest(handle, after=before).run({}) == ["t-1", {"pages": 3}]


def test_what_a_handler_sends_is_shown() -> None:
    def tell(body: dict[str, Any], job: Job) -> None:
        job.send("sites", {"seen": 1}, key="gate", delay_s=2.5)
        job.send("https://alerts.example", b"\xff")
        if body.get("fails"):
            raise ValueError("no")

    test = TaskTest(tell)
    with pytest.raises(ValueError, match="no"):
        test.run({"fails": True})
    assert test.sent == []
    test.run({})
    assert test.sent == [
        SentEffect("sites", {"seen": 1}, "gate", 2.5),
        SentEffect("https://alerts.example", b"\xff", ""),
    ]


@pytest.mark.parametrize(
    "target,body,options,error,says",
    [
        (
            "nowhere",
            1,
            {},
            ConfigError,
            "target 'nowhere' is not declared; name one of .'task:tell', 'tell'.",
        ),
        ("odd://x", 1, {}, ConfigError, "odd://x"),
        ("tell", "x" * (256 * 1024), {}, TooLarge, "262144"),
        ("tell", 1, {"key": "\0"}, InvalidMessage, "key"),
        ("tell", 1, {"delay_s": -1}, InvalidMessage, "field 'delay_s' is -1"),
        ("tell", 1, {"delay_s": 86_401}, InvalidMessage, "'delay_s' is 86401; it is at most 86400 seconds"),
        ("tell", float("nan"), {}, HandlerFailed, "nan|NaN"),
    ],
)
def test_a_wrong_effect_is_refused_where_it_is_sent(
    target: str, body: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    app = App("site")

    @app.task("tell")
    def tell(_: dict[str, Any], job: Job) -> None:
        job.send(target, body, **options)

    with pytest.raises(error, match=says):
        TaskTest(app).run({})


def test_one_task_sends_a_hundred_effects_and_no_more() -> None:
    def tell(body: int, job: Job) -> None:
        for n in range(body):
            job.send("sites", n)

    test = TaskTest(tell, body=int)
    test.run(100)
    assert len(test.sent) == 100
    with pytest.raises(TooLarge, match="one task sends more than 100 effects or 1048576 bytes"):
        test.run(101)
