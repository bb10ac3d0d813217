"""Handlers inside a slot: whatever they do, the worker answers."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.acts import Acts, Send
from holdfast.common.user_code import DETAIL_CHARS_MAX
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, StateRejected, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork, RunResult
from holdfast.slots.sends import EFFECT_BYTES_MAX
from holdfast.slots.thread import drive
from holdfast.streams.worker import StreamWorker, load
from tests.cluster.fakes import settle_down


class FakeHost:
    """Time that a test moves; what was told."""

    def __init__(self) -> None:
        self.time = 0.0
        self.notes: list[str] = []
        self.begun: list[tuple[str, str, int]] = []
        self.errors: list[BaseException] = []
        self.told: list[tuple[str, list[str]]] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def progress(self, stream: str, key: str, note: str = "") -> None:
        self.notes.append(note)

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        self.begun.append((stream, key, work.seq))

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)

    def report_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        self.told.append((loading, list(loaded)))


class FakeObjects:
    closed = False

    async def get(self, url: str) -> bytes:
        if url == "missing":
            raise FileNotFoundError(url)
        return url.encode()

    async def put(self, name: str, data: bytes) -> str:
        return name

    def url(self, name: str) -> str:
        return name

    def urls(self, under: str) -> AsyncIterator[str]:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True


def working(
    target: Any, message: Any = bytes, objects: FakeObjects | None = None
) -> tuple[StreamWorker, FakeHost]:
    app, host = App("test"), FakeHost()
    app.stream("s", message=message)(target)
    return StreamWorker(app.streams, objects, host), host


def opened(target: Any, **settings: Any) -> tuple[StreamWorker, FakeHost]:
    worker, host = working(target, **settings)
    drive(worker.open("s", "k", None, 0))
    return worker, host


def run(worker: StreamWorker, *bodies: bytes, limit: int = 99, after_s: float = 9.0) -> RunResult:
    work = [MessageWork(7, seq, body, attempt=2) for seq, body in enumerate(bodies)]
    return drive(worker.run("s", "k", work, limit, after_s))


class Log(StreamHandler[bytes]):
    """Keeps every body; does what ``deeds`` says of one."""

    version = 3
    deeds: ClassVar[dict[bytes, Callable[[], Any]]] = {}

    def open(self, context: Context, state: bytes | None) -> None:
        self.log = (state or b"").split()

    def process(self, message: bytes, context: Context) -> Any:
        self.log.append(message)
        return self.deeds[message]() if message in self.deeds else len(self.log)

    def snapshot(self) -> bytes:
        return b" ".join(self.log)

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        return b"v%d " % version + state


def raising(error: BaseException) -> Callable[[], None]:
    def deed() -> None:
        raise error

    return deed


def test_messages_are_handled_in_order_then_kept() -> None:
    worker, host = opened(Log)
    assert run(worker, b"a", b"b") == RunResult([b"1", b"2"], b"a b", 3)
    assert run(worker) == RunResult([], b"a b", 3), "no messages: only a snapshot"
    assert host.begun == [("s", "k", 0), ("s", "k", 1)]


def test_a_run_ends_after_its_limit_or_time() -> None:
    class Slow(Log):
        def process(self, message: bytes, context: Context) -> Any:
            host.time += 1.0
            return super().process(message, context)

    worker, host = opened(Slow)
    assert len(run(worker, *[b"x"] * 9, limit=4).results) == 4
    assert len(run(worker, *[b"x"] * 9, after_s=2.5).results) == 3
    assert len(run(worker, *[b"x"] * 9, after_s=0.0).results) == 1, "one at least, or nothing ever advances"


def test_a_handler_learns_its_key_run_seq_and_attempt() -> None:
    seen = []

    def look(message: bytes, context: Context) -> None:
        seen.append((context.key, context.run, context.seq, context.attempt))
        context.progress("half")

    worker, host = opened(look)
    run(worker, b"", b"")
    assert seen == [("k", 7, 0, 2), ("k", 7, 1, 2)]
    assert host.notes == ["half", "half"]


def test_a_function_as_a_handler_keeps_no_state() -> None:
    worker, _ = opened(lambda message, context: message.upper())
    assert run(worker, b"a") == RunResult([b"A"], None, 0)


@pytest.mark.parametrize(
    "error,text",
    [
        (ValueError("bad \udc80"), r"ValueError: bad \udc80"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (
            BaseExceptionGroup("two", [KeyError("a"), SystemExit(1)]),
            "BaseExceptionGroup: two (2 sub-exceptions)",
        ),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
    ],
)
def test_whatever_is_raised_fails_one_message(
    error: BaseException, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "deeds", {b"boom": raising(error)})
    worker, host = opened(Log)
    ran = run(worker, b"a", b"boom", b"c")
    assert (ran.results, ran.state, ran.permanent, ran.error) == ([b"1"], None, False, text)
    assert "Traceback (most recent call last)" in ran.detail
    assert "in deed" in ran.detail
    assert "in run" not in ran.detail, "it begins where user code does"
    assert len(host.errors) == 1
    assert "not open" in run(worker, b"a").error
    drive(worker.open("s", "k", b"a", 3))
    assert run(worker, b"c").state == b"a c"


@pytest.mark.parametrize("before", [0, 970, 985, 995])
def test_no_error_tells_a_secret_wherever_it_is_cut(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * before + " redis://user:hunter2hunter2hunter2@host, token='hunter2'"
    monkeypatch.setattr(Log, "deeds", {b"leak": raising(ValueError(text))})
    worker, _ = opened(Log)
    ran = run(worker, b"leak")
    assert "hunt" not in ran.error
    assert "hunt" not in ran.detail
    assert "redis://user:***@host" in ran.detail


def test_an_error_that_cannot_be_told_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    monkeypatch.setattr(Log, "deeds", {b"mute": raising(Mute()), b"long": raising(ValueError("x" * 10**6))})
    worker, _ = opened(Log)
    assert "Mute" in run(worker, b"mute").error
    drive(worker.open("s", "k", None, 0))
    ran = run(worker, b"long")
    assert len(ran.error) <= 1000
    assert len(ran.detail) <= DETAIL_CHARS_MAX


def test_a_result_that_json_can_t_hold_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "deeds", {b"junk": object})
    worker, _ = opened(Log)
    assert "of type object" in run(worker, b"junk").error


@pytest.mark.parametrize("junk", [None, "text", bytearray(b"x"), {"a": 1}])
def test_a_snapshot_that_is_not_bytes_fails_the_message(junk: Any) -> None:
    class Junk(Log):
        def snapshot(self) -> bytes:
            state: bytes = junk
            return state

    worker, _ = opened(Junk)
    ran = run(worker, b"a", b"b")
    assert ran.results == [b"1"], "the last message is the one to blame"
    assert ran.state is None
    assert f"Junk.snapshot() must return bytes, not {type(junk).__name__}" in ran.error


@dataclasses.dataclass
class Point:
    x: int


def test_a_message_that_does_not_fit_fails_for_good() -> None:
    worker, _ = opened(lambda message, context: message.x, message=Point)
    ran = run(worker, b'{"x":1}', b'{"x":"one"}')
    assert (ran.results, ran.permanent) == ([b"1"], True)
    assert "isn't of type Point" in ran.error


def test_a_handler_may_call_a_message_invalid_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    deeds = {b"a": raising(InvalidMessage("no frame")), b"b": raising(HandlerFailed("no", permanent=True))}
    monkeypatch.setattr(Log, "deeds", deeds)
    for body in deeds:
        worker, _ = opened(Log)
        assert run(worker, body).permanent


def test_what_is_asked_for_outside_of_messages_is_not_committed() -> None:
    contexts: list[Context] = []

    class Eager(Log):
        def open(self, context: Context, state: bytes | None) -> None:
            super().open(context, state)
            contexts.append(context)
            context.send("target", "open")
            context.wake("t", after_s=1)

        def process(self, message: bytes, context: Context) -> Any:
            context.send("target", message)
            return super().process(message, context)

        def wake(self, name: str, body: Any, context: Context) -> Any:
            return name

    app = App("test")
    app.stream("s", message=bytes)(Eager)
    worker = StreamWorker(app.streams, None, FakeHost(), targets=["target"])
    drive(worker.open("s", "k", None, 0))
    assert run(worker, b"a").acts == [Acts((Send("target", "k", b"a"),))]
    thread = Thread(target=contexts[0].send, args=("target", "between"))
    thread.start()
    thread.join()
    assert run(worker, b"b").acts == [Acts((Send("target", "k", b"b"),))]


def test_a_message_whose_result_can_not_be_sent_is_the_one_that_failed() -> None:
    app = App("test")
    app.stream("s", message=bytes, results_to="other")(lambda message, context: "x" * len(message))
    worker = StreamWorker(app.streams, None, FakeHost(), targets=["other"])
    drive(worker.open("s", "k", None, 0))
    ran = run(worker, b"fine", b"x" * EFFECT_BYTES_MAX, b"fine")
    assert len(ran.results) == 1
    assert "too large" in ran.error


# --- state


def test_state_is_loaded_migrated_or_rejected() -> None:
    worker, _ = working(Log)
    states = {(b"a", 3): b"a x", (b"a", 2): b"v2 a x", (b"a", 0): b"v0 a x", (None, 0): b"x", (None, 9): b"x"}
    for (state, version), expected in states.items():
        drive(worker.open("s", "k", state, version))
        assert run(worker, b"x").state == expected
    with pytest.raises(StateRejected, match="version 4, newer than version 3 of Log"):
        drive(worker.open("s", "k", b"a", 4))


def test_state_of_an_old_version_needs_a_migration() -> None:
    class New(Log):
        migrate = StreamHandler.migrate

    worker, _ = working(New)
    with pytest.raises(StateRejected, match=r"could not migrate state from version 1 .* no migrate\(\)"):
        drive(worker.open("s", "k", b"a", 1))


class Picky(Log):
    error: BaseException = ValueError("not mine")

    def open(self, context: Context, state: bytes | None) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1), KeyError("x")])
def test_state_that_does_not_load_is_rejected(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picky, "error", error)
    worker, host = working(Picky)
    with pytest.raises(StateRejected, match="Picky could not load its state for s/k"):
        drive(worker.open("s", "k", b"a", 3))
    with pytest.raises(HandlerFailed, match="Picky could not start for s/k") as failure:
        drive(worker.open("s", "k", None, 0))
    assert "in open" in failure.value.detail
    assert host.errors == [error, error]


@pytest.mark.parametrize("error", [MemoryError(), Unavailable("busy"), HandlerFailed("later")])
def test_what_passes_is_not_held_against_the_state(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picky, "error", error)
    worker, _ = working(Picky)
    with pytest.raises(HandlerFailed):
        drive(worker.open("s", "k", b"a", 3))


def test_an_unknown_stream_is_said_to_be() -> None:
    worker, _ = working(Log)
    with pytest.raises(HandlerFailed, match=r"no stream 'other'; it has \['s'\]"):
        drive(worker.open("other", "k", None, 0))


# --- closing


def test_handlers_are_closed_once_and_may_fail_at_it() -> None:
    closed = []

    class Closing(Log):
        def close(self) -> None:
            closed.append(b" ".join(self.log))
            raise SystemExit

    worker, host = opened(Closing, objects=(objects := FakeObjects()))
    run(worker, b"a")
    drive(worker.open("s", "k", None, 0))
    drive(worker.open("s", "other", None, 0))
    drive(worker.close("s", "k"))
    drive(worker.close("s", "k"))
    drive(worker.stop())
    assert closed == [b"a", b"", b""]
    assert len(host.errors) == 3
    assert objects.closed


def test_a_failed_handler_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Log, "deeds", {b"boom": raising(ValueError())})
    monkeypatch.setattr(Log, "close", lambda self: closed.append(self.log))
    worker, _ = opened(Log)
    run(worker, b"boom")
    assert closed == [[b"boom"]]


# --- models and objects


loads: list[str] = []
models: list[Any] = []


def load_model(name: str = "plain") -> list[str]:
    loads.append(name)
    return [name]


class Seeing(Log):
    """Its model is what ``load`` gives."""

    load: ClassVar[Callable[["Seeing"], Callable[[], Any]]]

    def open(self, context: Context, state: bytes | None) -> None:
        self.model = context.model(type(self).load(self))
        models.append(self.model)


@pytest.mark.parametrize(
    "load,loaded",
    [
        (lambda self: load_model, ["plain"]),
        (lambda self: lambda: load_model("lambda"), ["lambda"]),
        (lambda self: functools.partial(load_model, "partial"), ["partial"]),
        (lambda self: functools.partial(load_model, name="named"), ["named"]),
    ],
)
def test_a_model_is_loaded_once_a_slot(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[Seeing], Callable[[], Any]], loaded: list[str]
) -> None:
    loads.clear()
    models.clear()
    monkeypatch.setattr(Seeing, "load", load, raising=False)
    worker, _ = opened(Seeing)
    drive(worker.open("s", "other", None, 0))
    first, second = models
    assert first is second
    assert loads == loaded


def test_partials_with_other_arguments_load_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(handler: Seeing) -> Callable[[], Any]:
        return functools.partial(load_model, str(len(loads)))

    loads.clear()
    monkeypatch.setattr(Seeing, "load", load, raising=False)
    worker, _ = opened(Seeing)
    drive(worker.open("s", "other", None, 0))
    assert loads == ["0", "1"]


@pytest.mark.parametrize("load", [lambda self: lambda: self, lambda self: self.snapshot])
def test_a_model_of_one_stream_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[Seeing], Callable[[], Any]]
) -> None:
    monkeypatch.setattr(Seeing, "load", load, raising=False)
    with pytest.raises(HandlerFailed, match=r"functools\.partial"):
        opened(Seeing)


def test_a_model_that_does_not_load_is_no_fault_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seeing, "load", lambda self: functools.partial(int, "x"), raising=False)
    worker, _ = working(Seeing)
    with pytest.raises(HandlerFailed, match="model 'int' did not load: ValueError: invalid literal"):
        drive(worker.open("s", "k", b"a", 3))


@pytest.mark.slow
def test_objects_are_fetched_by_both_kinds_of_handlers() -> None:
    async def fetch(message: bytes, context: Context) -> bytes:
        await asyncio.sleep(0)
        return await context.fetch_async(message.decode())

    for handler in (fetch, lambda message, context: context.fetch(message.decode())):
        worker, _ = opened(handler, objects=FakeObjects())
        ran = run(worker, b"url", b"missing")
        assert ran.results == [b"url"]
        assert ran.error == "FileNotFoundError: missing"
    worker, _ = opened(lambda message, context: context.fetch("url"))
    assert "no object store is configured" in run(worker, b"x").error


# --- async handlers


class Async(Log):
    async def open(self, context: Context, state: bytes | None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().open(context, state)

    async def process(self, message: bytes, context: Context) -> Any:
        await asyncio.sleep(0)
        if message == b"cancel":
            raise asyncio.CancelledError
        if message == b"fetch":
            return context.fetch("url")
        return super().process(message, context)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)


def test_an_async_handler_is_run_in_a_loop() -> None:
    worker, _ = opened(Async)
    assert run(worker, b"a", b"b") == RunResult([b"1", b"2"], b"a b", 3)
    drive(worker.stop())


@pytest.mark.slow
def test_a_handler_that_cancels_itself_has_failed() -> None:
    worker, _ = opened(Async)
    assert run(worker, b"cancel").error == "asyncio.exceptions.CancelledError"


def test_a_sync_handler_may_run_a_loop_of_its_own() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    worker, _ = opened(lambda message, context: asyncio.run(answer()))
    assert run(worker, b"x").results == [b"42"]


async def test_in_a_running_loop_the_worker_is_part_of_it() -> None:
    worker, _ = working(Async)
    await worker.open("s", "k", None, 0)
    ran = await worker.run("s", "k", [MessageWork(0, 1, b"a"), MessageWork(0, 2, b"cancel")], 9, 9.0)
    assert (ran.results, ran.error) == ([b"1"], "asyncio.exceptions.CancelledError")


class Story(Log):
    """An async handler that waits for ``go`` on each message, then does what ``deeds`` says."""

    go: ClassVar[asyncio.Event]
    story: ClassVar[list[str]]

    def open(self, context: Context, state: bytes | None) -> None:
        super().open(context, state)
        self.story.append(f"open {state!r}")

    async def process(self, message: bytes, context: Context) -> Any:
        self.story.append(message.decode())
        await self.go.wait()
        return super().process(message, context)

    def close(self) -> None:
        self.story.append("close")


def story(monkeypatch: pytest.MonkeyPatch, deeds: dict[bytes, Callable[[], Any]]) -> list[str]:
    monkeypatch.setattr(Story, "go", asyncio.Event(), raising=False)
    monkeypatch.setattr(Story, "story", [], raising=False)
    monkeypatch.setattr(Story, "deeds", deeds)
    return Story.story


def begin_run(worker: StreamWorker, *bodies: bytes, key: str = "k") -> asyncio.Task[RunResult]:
    work = [MessageWork(0, seq, body) for seq, body in enumerate(bodies)]
    return asyncio.create_task(worker.run("s", key, work, 99, 9.0))


async def test_a_run_that_fails_late_leaves_the_next_opening_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = story(monkeypatch, {b"late": raising(ValueError("late"))})
    worker, _ = working(Story)
    await worker.open("s", "k", None, 0)
    late = begin_run(worker, b"late")
    await settle_down()
    opens = asyncio.create_task(worker.open("s", "k", b"v2", 3))
    after = begin_run(worker, b"next")
    await settle_down()
    assert not opens.done(), "it waits for what is at work for its key"
    Story.go.set()
    assert "late" in (await late).error
    await opens
    assert (await after).state == b"v2 next"
    assert told == ["open None", "late", "close", "open b'v2'", "next"]


@pytest.mark.parametrize("call", ["open", "close"])
async def test_what_is_over_handles_no_further_message(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    told = story(monkeypatch, {})
    worker, _ = working(Story)
    await worker.open("s", "k", None, 0)
    at_work, waits = begin_run(worker, b"a", b"b"), begin_run(worker, b"c")
    await settle_down()
    ends = asyncio.create_task(worker.open("s", "k", b"v2", 3) if call == "open" else worker.close("s", "k"))
    await settle_down()
    Story.go.set()
    for stale in (await at_work, await waits):
        assert (stale.results, stale.state) == ([], None)
        assert stale.error
    await ends
    assert told == ["open None", "a", "close", *(["open b'v2'"] if call == "open" else [])]


async def test_calls_of_other_keys_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    told = story(monkeypatch, {})
    worker, _ = working(Story)
    runs = []
    for key in "ab":
        await worker.open("s", key, None, 0)
        runs.append(begin_run(worker, key.encode(), key=key))
    await settle_down()
    assert told[-2:] == ["a", "b"]
    Story.go.set()
    assert [ran.results for ran in await asyncio.gather(*runs)] == [[b"1"], [b"1"]]
    assert worker.lanes == {}


async def test_the_end_of_the_task_is_no_failure_of_the_handler() -> None:
    began = asyncio.Event()

    async def hang(message: bytes, context: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    worker, host = working(hang)
    await worker.open("s", "k", None, 0)
    task = asyncio.create_task(worker.run("s", "k", [MessageWork(0, 1, b"x")], 9, 9.0))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.errors == []


async def test_an_async_handler_must_not_block_on_a_fetch() -> None:
    class Slow(FakeObjects):
        async def get(self, url: str) -> bytes:
            await asyncio.sleep(0)
            return b""

    worker, _ = working(Async, objects=Slow())
    await worker.open("s", "k", None, 0)
    ran = await worker.run("s", "k", [MessageWork(0, 1, b"fetch")], 9, 9.0)
    assert "use the async form" in ran.error


async def test_calls_of_the_object_store_are_told_with_the_next_answer() -> None:
    meter = Meter()

    class Metered(FakeObjects):
        async def get(self, url: str) -> bytes:
            meter.count("s3", "GetObject")
            return b""

    app = App("test")

    @app.stream("s", message=bytes)
    def fetch(message: bytes, context: Context) -> None:
        context.fetch("a")
        context.fetch("b")
        if message == b"boom":
            raise ValueError

    worker = StreamWorker(app.streams, Metered(), FakeHost(), meter)
    await worker.open("s", "k", None, 0)
    assert (await worker.run("s", "k", [MessageWork(0, 0, b"")], 9, 9.0)).calls == [("s3", "GetObject", 2)]
    failed = await worker.run("s", "k", [MessageWork(0, 1, b"boom")], 9, 9.0)
    assert failed.error
    assert failed.calls == [("s3", "GetObject", 2)]
    assert (await worker.run("s", "k", [], 9, 9.0)).calls == []


# --- loading


def test_an_app_is_loaded_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("an_app")
    app = App("an")
    app.stream("s", message=bytes)(Log)
    urls: list[str] = []
    store = SimpleNamespace(slot_objects=lambda url, meter: urls.append(url))
    vars(module).update(app=app, other="text", store=store)
    monkeypatch.setitem(__import__("sys").modules, "an_app", module)
    drive(load(FakeHost(), "an_app:app").open("s", "k", None, 0))
    load(FakeHost(), "an_app:app", "an_app:store", "file:///x")
    assert urls == ["file:///x"]
    for path, text in {
        "an_app": "module:name",
        "an_app:": "module:name",
        "an_app:nothing": "an_app has no 'nothing'",
        "an_app:other": "isn't a holdfast.App",
        "no_such_app:app": "ModuleNotFoundError",
    }.items():
        with pytest.raises(ConfigError, match=text):
            load(FakeHost(), path)
