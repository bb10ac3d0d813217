"""The kit that tests a handler without a queue."""

import asyncio
import dataclasses
import doctest
import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    App,
    ConfigError,
    Context,
    HandlerFailed,
    InvalidMessage,
    Job,
    StateRejected,
    StreamHandler,
)
from holdfast.errors import OperationRefused, TooLarge
from holdfast.testing import SentEffect, SetTimer, StreamTest, stream_test


@dataclasses.dataclass
class Step:
    by: int


class StructStep(msgspec.Struct):
    by: int


class ModelStep(pydantic.BaseModel):
    by: int


class Sum(StreamHandler[Step]):
    """A running sum, from version 2 on with a mark."""

    version = 2

    def open(self, context: Context, state: bytes | None) -> None:
        self.sum = int((state or b"=0").removeprefix(b"="))

    def process(self, message: Step, context: Context) -> Any:
        context.progress(f"by {message.by}")
        if message.by < 0:
            raise ValueError("not backwards")
        self.sum += message.by
        return {"sum": self.sum}

    def snapshot(self) -> bytes:
        return b"=%d" % self.sum

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        return b"=" + state


class Forgetful(Sum):
    """Leaves something out of its snapshot."""

    def open(self, context: Context, state: bytes | None) -> None:
        super().open(context, state)
        self.calls = 0

    def process(self, message: Step, context: Context) -> Any:
        self.calls += 1
        return self.calls


def sums(results: list[Any]) -> list[int]:
    return [result["sum"] for result in results]


def test_a_stream_test_takes_messages_in_many_forms() -> None:
    test = StreamTest(Sum)
    steps = [{"by": 1}, Step(1), StructStep(1), ModelStep(by=1), b'{"by": 1}']
    assert sums(test.send(*steps)) == [1, 2, 3, 4, 5]
    assert test.state == b"=5"
    assert test.results == [{"sum": n} for n in range(1, 6)]
    assert test.notes == ["by 1"] * 5


def test_a_restart_continues_from_the_snapshot() -> None:
    test = StreamTest(Sum)
    test.restart()
    test.send(Step(2))
    test.restart()
    assert sums(test.send(Step(3))) == [5]


def test_restarts_show_what_a_snapshot_lacks() -> None:
    steps = [Step(n) for n in range(6)]
    for handler, same in ((Sum, True), (Forgetful, False)):
        whole, broken = StreamTest(handler), StreamTest(handler, restart_every=2)
        assert (whole.send(*steps) == broken.send(*steps)) is same


def test_what_a_handler_raises_is_raised() -> None:
    test = StreamTest(Sum)
    with pytest.raises(ValueError, match="not backwards"):
        test.send(Step(1), Step(-1), Step(9))
    assert test.results == [{"sum": 1}]
    assert sums(test.send(Step(1))) == [2], "it goes on from the last snapshot"


def test_a_body_that_does_not_fit_is_invalid() -> None:
    with pytest.raises(InvalidMessage, match="isn't of type Step") as failure:
        StreamTest(Sum).send({"by": "one"})
    assert failure.value.field == "by"


def test_a_test_can_begin_with_a_snapshot() -> None:
    assert sums(StreamTest(Sum, state=b"=41").send(Step(1))) == [42]
    assert sums(StreamTest(Sum, state=b"41", version=1).send(Step(1))) == [42]
    with pytest.raises(StateRejected, match="newer"):
        StreamTest(Sum, state=b"=41", version=3).send(Step(1))
    with pytest.raises(StateRejected, match="could not load"):
        StreamTest(Sum, state=b"junk").send(Step(1))


@pytest.mark.slow
def test_a_function_can_fetch_given_objects() -> None:
    def look(message: bytes, context: Context) -> bytes:
        return context.fetch("cam://" + message.decode())

    test = StreamTest(look, objects={"cam://1": b"\xff\xd8"})
    assert test.send(b"1") == [b"\xff\xd8"], "what is not JSON comes back as it is"
    assert test.state is None
    with pytest.raises(FileNotFoundError):
        test.send(b"2")


@pytest.mark.slow
def test_async_handlers_can_be_tested() -> None:
    async def double(message: StructStep, context: Context) -> int:
        return 2 * message.by

    assert StreamTest(double).send({"by": 4}) == [8]


def test_without_annotations_the_first_message_tells_its_type() -> None:
    def name(message, context):  # type: ignore[no-untyped-def]
        return type(message).__name__

    assert StreamTest(name).send({"by": 1}) == ["dict"]
    assert StreamTest(name).send(Step(1)) == ["Step"]
    assert StreamTest(name, message=ModelStep).send({"by": 1}) == ["ModelStep"]

    class Here(msgspec.Struct):
        by: int

    def local(message: "Here", context: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
        return type(message).__name__

    assert StreamTest(local).send(Here(1)) == ["Here"]


def test_seqs_and_timestamps_of_messages_count_up() -> None:
    def place(message: dict[str, Any], context: Context) -> list[Any]:
        return [context.key, context.run, context.seq, context.attempt]

    assert StreamTest(place, key="k").send({}, {}) == [["k", 0, 0, 1], ["k", 0, 1, 1]]


def test_a_stream_of_an_app_has_keys_and_places_of_its_own() -> None:
    app = App("test")

    @app.stream("frames", key="video", seq="frame", run="run", message=dict)
    class Count(StreamHandler[dict[str, Any]]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.count = int(state or 0)

        def process(self, message: dict[str, Any], context: Context) -> Any:
            self.count += 1
            return [context.key, context.run, context.seq, self.count]

        def snapshot(self) -> bytes:
            return str(self.count).encode()

    test = StreamTest(app, "frames", restart_every=1)
    frames = [("a", 4), ("b", 7), ("a", 5)]
    assert test.send(*({"video": video, "frame": n, "run": 1} for video, n in frames)) == [
        ["a", 1, 4, 1],
        ["b", 1, 7, 1],
        ["a", 1, 5, 2],
    ]
    assert test.state == b"2"
    with pytest.raises(InvalidMessage, match="'frame' is missing"):
        test.send({"video": "a", "run": 1})
    assert StreamTest(app).send({"video": "a", "frame": 4, "run": 1}), "the only one needs no name"
    with pytest.raises(ConfigError, match=r"no stream 'other'; name one of \['frames'\]"):
        StreamTest(app, "other")


class Loading(Sum):
    loads = 0

    def open(self, context: Context, state: bytes | None) -> None:
        super().open(context, state)
        context.model(load_model)


def load_model() -> int:
    Loading.loads += 1
    return Loading.loads


def test_a_restart_loads_models_anew() -> None:
    test = StreamTest(Loading)
    test.send(Step(1), Step(1))
    test.restart()
    assert Loading.loads == 2


def test_a_handler_that_cannot_start_says_why() -> None:
    class Failing(Sum):
        def open(self, context: Context, state: bytes | None) -> None:
            raise OSError("no licence")

    class Modelless(Sum):
        def open(self, context: Context, state: bytes | None) -> None:
            context.model(functools.partial(int, "x"))

    with pytest.raises(OSError, match="no licence"):
        StreamTest(Failing).send(Step(1))
    with pytest.raises(HandlerFailed, match="did not load"):
        StreamTest(Modelless).send(Step(1))


def test_the_example_of_the_docstring_works() -> None:
    assert doctest.testmod(stream_test).failed == 0


@pytest.mark.slow
async def test_it_works_where_a_loop_runs_as_in_notebooks() -> None:
    class Doubling(StreamHandler[dict[str, int]]):
        async def process(self, message: dict[str, int], context: Context) -> int:
            await asyncio.sleep(0)
            return 2 * message["n"]

    test = StreamTest(Doubling)
    assert test.send({"n": 1}, {"n": 2}) == [2, 4]
    test.restart()
    assert test.send({"n": 3}) == [6]


@pytest.mark.slow
async def test_a_frame_is_fetched_where_a_loop_runs() -> None:
    def size(message: dict[str, str], context: Context) -> int:
        return len(context.fetch(message["url"]))

    assert StreamTest(size, objects={"a": b"123"}).send({"url": "a"}) == [3]


# --- effects and timers


class Camera(StreamHandler[dict[str, Any]]):
    """Alerts once nothing came for 30 s, and every 10 s from then on."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.alerts = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        context.send("sites", {"seen": message["frame"]}, key="gate", delay_s=message.get("delay_s", 0))
        context.wake("silent", after_s=30, body={"frame": message["frame"]})
        if message["frame"] < 0:
            raise ValueError("not backwards")
        if message.get("off"):
            context.unwake("silent")

    async def wake(self, name: str, body: Any, context: Context) -> Any:
        if self.alerts == 2:
            context.send("sites", "never")
            raise ValueError("enough")
        self.alerts += 1
        context.wake(name, after_s=10, body=body)
        context.send("https://alerts.example", b"\xff\xd8")
        return [name, body["frame"], self.alerts]

    def snapshot(self) -> bytes:
        return b"%d" % self.alerts


def test_what_is_sent_and_set_is_shown() -> None:
    test = StreamTest(Camera, key="cam-1")
    test.wall_s = 1000.0
    test.send({"frame": 1, "delay_s": 2.5})
    assert test.sent == [SentEffect("sites", {"seen": 1}, "gate", 2.5)]
    assert test.timers == {"silent": SetTimer(1030.0, {"frame": 1})}
    test.send({"frame": 2, "off": True})
    assert test.timers == {}


@pytest.mark.slow
@pytest.mark.parametrize("restart_every", [0, 1])
def test_time_that_passes_runs_the_timers_that_come_due(restart_every: int) -> None:
    test = StreamTest(Camera, restart_every=restart_every)
    test.send({"frame": 1})
    assert test.advance(29.5) == []
    assert test.advance(12) == [["silent", 1, 1], ["silent", 1, 2]], "at 30 s and at 40 s"
    assert test.wall_s == 41.5
    assert test.timers == {"silent": SetTimer(50.0, {"frame": 1})}
    assert test.sent[1:] == [SentEffect("https://alerts.example", b"\xff\xd8", "test")] * 2
    assert test.results == [None, ["silent", 1, 1], ["silent", 1, 2]]
    assert test.state == b"2"


@pytest.mark.slow
def test_a_restarted_stream_test_keeps_its_timers() -> None:
    test = StreamTest(Camera)
    test.send({"frame": 1})
    test.restart()
    assert test.advance(30) == [["silent", 1, 1]]


@pytest.mark.slow
def test_what_fails_sends_nothing_and_changes_no_timer() -> None:
    test = StreamTest(Camera)
    with pytest.raises(ValueError, match="not backwards"):
        test.send({"frame": -1})
    assert (test.sent, test.timers) == ([], {})
    test.send({"frame": 1})
    with pytest.raises(ValueError, match="enough"):
        test.advance(3600)
    assert test.wall_s == 50.0, "the time at which it failed"
    assert test.timers == {"silent": SetTimer(50.0, {"frame": 1})}, "it is tried again"
    assert "never" not in [effect.body for effect in test.sent]
    assert test.state == b"2"


@pytest.mark.slow
def test_a_timer_can_be_run_at_once() -> None:
    test = StreamTest(Camera)
    test.send({"frame": 1})
    assert test.wake("silent") == ["silent", 1, 1]
    assert test.timers["silent"].at == 10.0, "the time is as it was"
    with pytest.raises(OperationRefused, match=r"'slient' of 'test' is not set; set are: \['silent'\]"):
        test.wake("slient")


def test_a_timer_that_sets_itself_to_now_lets_time_pass() -> None:
    class Eager(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> None:
            context.wake("now", at=-0.0)

        def wake(self, name: str, body: Any, context: Context) -> int:
            context.wake("now", after_s=0)
            return 1

    test = StreamTest(Eager)
    test.send({})
    assert test.advance(0) == [1]
    assert sum(test.advance(0.95)) == 9


def test_timers_of_all_keys_fire_in_order_of_time() -> None:
    app = App("test")

    @app.stream("cameras")
    class Watch(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> None:
            context.wake("late", after_s=message["s"])

        def wake(self, name: str, body: Any, context: Context) -> str:
            return context.key

    test = StreamTest(app)
    test.send({"key": "a", "s": 9}, {"key": "b", "s": 3}, {"key": "c", "s": 6})
    assert test.timers == {"late": SetTimer(6.0)}, "those of the last message's key"
    assert test.advance(10) == ["b", "c", "a"]


def test_a_stream_test_of_an_app_knows_its_targets() -> None:
    app = App("test")

    @app.stream("cameras")
    def watch(message: dict[str, Any], context: Context) -> None:
        context.send(message["to"], 1)

    @app.task("report")
    def report(body: dict[str, Any], job: Job) -> None: ...

    test = StreamTest(app)
    test.send({"key": "a", "to": "report"})
    with pytest.raises(ConfigError, match=r"target 'reprot' is not declared; name one of \['cameras'"):
        test.send({"key": "a", "to": "reprot"})
    with pytest.raises(ConfigError, match="'site' is not declared"):
        StreamTest(watch, targets=["sites"]).send({"to": "site"})


class Alarm(StreamHandler[dict[str, Any]]):
    """Sets timers, each with what a message gives for it."""

    def process(self, message: dict[str, Any], context: Context) -> None:
        for number in range(message.get("count", 0)):
            context.wake(f"t{number}", after_s=1)

    def wake(self, name: str, body: Any, context: Context) -> str:
        return name


def asking(ask: Callable[[Context], Any]) -> type[Alarm]:
    """The handler that asks for this at each message."""

    class Asks(Alarm):
        def process(self, message: dict[str, Any], context: Context) -> None:
            ask(context)

    return Asks


def test_too_many_timers_are_refused() -> None:
    test = StreamTest(Alarm)
    with pytest.raises(TooLarge, match="would have 65 timers; it can have 64"):
        test.send({"count": 65})
    assert test.timers == {}
    test.send({"count": 1})
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidMessage, match="a number, 0 or more"):
            test.advance(seconds)


def test_a_timer_that_no_wake_would_hear_of_is_refused_as_it_is_set() -> None:
    def watch(message: dict[str, int], context: Context) -> None:
        context.wake("t", after_s=600)

    test = StreamTest(watch)
    with pytest.raises(OperationRefused, match=r"watch has no wake\(\), which timers call"):
        test.send({})
    assert test.timers == {}


class OfItsOwn(str):
    """A text of another type, as libraries have them."""

    __slots__ = ()


def test_keys_targets_and_names_are_plain_texts_whatever_type_of_text_or_number_is_given() -> None:
    """No encoder would take them as they are, and the slot would end."""

    def ask(context: Context) -> None:
        context.send(OfItsOwn("sites"), 1, key=OfItsOwn("k"))
        context.send("sites", 2, key=7)  # type: ignore[arg-type]
        context.send("sites", 3, key=0)  # type: ignore[arg-type]
        context.wake(OfItsOwn("t"), after_s=1)

    test = StreamTest(asking(ask))
    test.send({})
    assert [(type(each.target), type(each.key), each.key) for each in test.sent] == [
        (str, str, "k"),
        (str, str, "7"),
        (str, str, "0"),
    ]
    assert [type(name) for name in test.timers] == [str]


@pytest.mark.parametrize(
    "target, options, says",
    [
        (5, {}, "field 'target' is 5; it must be a text"),
        (["sites"], {}, r"field 'target' is \['sites'\]; it must be a text"),
        ("\ud800", {}, "field 'target' holds text that UTF-8 can't carry"),
        ("sites", {"key": False}, "field 'key' must be a non-empty text or an integer"),
        ("sites", {"key": b"k"}, "field 'key' must be a non-empty text or an integer"),
        ("sites", {"key": "\ud800"}, "field 'key' holds text that UTF-8 can't carry"),
        ("sites", {"delay_s": "5"}, "field 'delay_s' is '5'; it is a number of seconds"),
        ("sites", {"delay_s": timedelta(seconds=1)}, "it is a number of seconds"),
        ("sites", {"delay_s": 10**400}, "it is a number of seconds"),
    ],
)
def test_an_effect_that_makes_no_sense_is_refused(target: Any, options: dict[str, Any], says: str) -> None:
    test = StreamTest(asking(lambda context: context.send(target, 1, **options)))
    with pytest.raises(InvalidMessage, match=says):
        test.send({})
    assert test.sent == []


def test_a_note_of_any_type_is_a_text() -> None:
    test = StreamTest(asking(lambda context: context.progress(5)))  # type: ignore[arg-type]
    test.send({})
    assert test.notes == ["5"]


def test_a_timer_may_have_a_name_of_64_characters_and_a_body_of_1024_bytes() -> None:
    test = StreamTest(asking(lambda context: context.wake("n" * 64, after_s=0, body="x" * 1022)))
    test.send({})
    assert [(name, timer.body) for name, timer in test.timers.items()] == [("n" * 64, "x" * 1022)]


@pytest.mark.parametrize(
    "name, asked, error, says",
    [
        ("t", {"after_s": 1, "body": "x" * 1023}, TooLarge, "its body has 1025 bytes; it can have 1024"),
        ("t", {"after_s": 1, "body": b"x"}, InvalidMessage, "must be a value that JSON can hold"),
        ("", {"after_s": 1}, InvalidMessage, "must be a printable text of 1 to 64 characters"),
        ("n" * 65, {"after_s": 1}, InvalidMessage, "must be a printable text of 1 to 64 characters"),
        ("a\n", {"after_s": 1}, InvalidMessage, "must be a printable text of 1 to 64 characters"),
        ("t", {}, InvalidMessage, "give one of at= and after_s="),
        ("t", {"at": 1.0, "after_s": 1}, InvalidMessage, "give one of at= and after_s="),
        ("t", {"at": datetime(2030, 1, 1)}, InvalidMessage, "at= has no time zone"),  # noqa: DTZ001
        ("t", {"after_s": -1}, InvalidMessage, "'after_s' is -1; it is a number of seconds, 0 or more"),
        ("t", {"after_s": 10**400}, InvalidMessage, "it is a number of seconds, 0 or more"),
        (5, {"after_s": 1}, InvalidMessage, "timer name 5 must be a printable text"),
        ("\ud800", {"after_s": 1}, InvalidMessage, "must be a printable text of 1 to 64 characters"),
    ],
)
def test_a_timer_that_makes_no_sense_is_refused(
    name: Any, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    test = StreamTest(asking(lambda context: context.wake(name, **asked)))
    with pytest.raises(error, match=says):
        test.send({})
    assert test.timers == {}


def test_one_message_sends_a_hundred_effects_and_no_more() -> None:
    def tell(message: dict[str, int], context: Context) -> None:
        for n in range(message["count"]):
            context.send("sites", n)

    test = StreamTest(tell)
    test.send({"count": 100})
    assert len(test.sent) == 100
    for count in (101, 10_000):
        with pytest.raises(TooLarge, match="one message sends more than 100 effects or 1048576 bytes"):
            test.send({"count": count})
    assert len(test.sent) == 100


# --- queries


class Asked(Sum):
    """Answers what its sum is."""

    def query(self, request: Any, context: Context) -> Any:
        if request == "spoil":
            self.sum += 1
        if request == "act":
            context.wake("later", after_s=1)
        if request == "bytes":
            return b"\xff"
        return {"sum": self.sum, "asked": request, "key": context.key}


def test_a_query_is_answered_from_the_last_snapshot() -> None:
    test = StreamTest(Asked)
    assert test.query() == {"sum": 0, "asked": None, "key": "test"}
    test.send(Step(2))
    assert test.query({"what": "sum"}) == {"sum": 2, "asked": {"what": "sum"}, "key": "test"}
    assert test.query("bytes") == b"\xff"
    assert sums(test.send(Step(1))) == [3]
    assert test.results == [{"sum": 2}, {"sum": 3}], "a query has no result"


def test_a_query_that_changes_the_state_is_found() -> None:
    test = StreamTest(Asked, state=b"=5")
    with pytest.raises(HandlerFailed, match=r"Asked.query\(\) changed the state"):
        test.query("spoil")
    assert test.query()["sum"] == 5


def test_a_query_can_ask_for_nothing() -> None:
    test = StreamTest(Asked)
    with pytest.raises(OperationRefused, match=r"it can't call context.wake\(\)"):
        test.query("act")
    assert test.timers == {}


def test_a_handler_without_query_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"Sum has no query\(\)"):
        StreamTest(Sum).query()
    with pytest.raises(StateRejected, match="could not load"):
        StreamTest(Asked, state=b"junk").query()
