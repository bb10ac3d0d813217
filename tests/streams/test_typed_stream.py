"""Handlers whose annotations declare what they take: functions, and classes with a typed state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pytest

from holdfast import (
    App,
    ConfigError,
    Context,
    HandlerFailed,
    InvalidMessage,
    OperationRefused,
    Stream,
    StreamHandler,
)
from holdfast.errors import StateRejected
from holdfast.testing import StreamTest


@dataclass
class Reading:
    meter: str
    kwh: float


@dataclass
class Meter:
    kwh: float = 0.0
    readings: list[float] = field(default_factory=list)


@pytest.fixture
def app() -> App:
    return App("metering")


def readings(*kwh: float) -> list[Reading]:
    return [Reading("m0", each) for each in kwh]


def test_a_function_declares_message_and_state_by_its_annotations(app: App) -> None:
    @app.stream("readings", key="meter")
    def add(reading: Reading, meter: Meter) -> float:
        meter.kwh += reading.kwh
        return meter.kwh

    assert app.streams["readings"].message is Reading
    test = StreamTest(add, restart_every=1)
    assert test.send(*readings(1.5, 2.0)) == [1.5, 3.5]
    assert test.state == Meter(3.5)
    assert add(Reading("m1", 1.0), Meter(2.0)) == 3.0, "calling the stream calls the function"


def test_each_key_has_a_state_of_its_own(app: App) -> None:
    @app.stream("readings", key="meter", initial=lambda key: Meter(readings=[float(len(key))]))
    async def add(reading: Reading, meter: Meter, context: Context) -> str:
        meter.readings.append(reading.kwh)
        return f"{context.key}: {meter.readings}"

    test = StreamTest(app)
    sent = [Reading("m", 1), Reading("m12", 2), Reading("m", 3)]
    assert test.send(*sent) == ["m: [1.0, 1.0]", "m12: [3.0, 2.0]", "m: [1.0, 1.0, 3.0]"]


def test_a_handler_that_raises_leaves_the_state_as_it_was(app: App) -> None:
    @app.stream("readings", key="meter")
    def add(reading: Reading, meter: Meter) -> float:
        meter.kwh += reading.kwh
        if reading.kwh < 0:
            raise ValueError("negative")
        return meter.kwh

    test = StreamTest(add)
    test.send(*readings(1.0))
    with pytest.raises(ValueError, match="negative"):
        test.send(*readings(-5.0))
    assert test.send(*readings(1.0)) == [2.0]


def test_a_state_type_can_be_given_to_the_decorator(app: App) -> None:
    @app.stream("counts", state=dict)
    def count(message, state):  # type: ignore[no-untyped-def]
        state["count"] = state.get("count", 0) + 1
        return state["count"]

    test = StreamTest(app, restart_every=1)
    assert test.send({"key": "a"}, {"key": "a"}, {"key": "b"}) == [1, 2, 1]


def test_timers_and_queries_are_functions_beside_the_handler(app: App) -> None:
    @app.stream("readings", key="meter")
    def add(reading: Reading, meter: Meter, context: Context) -> None:
        meter.kwh += reading.kwh
        context.wake("silent", after_s=60, body={"limit": 2})
        context.wake("report", after_s=90)

    @add.on_timer("silent")
    def silent(meter: Meter, context: Context, body: Any) -> str:
        meter.kwh += 100
        return f"{context.key} was silent at {meter.kwh}, {body}"

    @add.on_timer("report")
    def report(meter: Meter) -> float:
        return meter.kwh

    @dataclass
    class Question:
        factor: float

    @add.on_query
    def ask(question: Question, meter: Meter) -> float:
        return meter.kwh * question.factor

    test = StreamTest(add, key="m0")
    test.send(*readings(1.0))
    assert test.query({"factor": 2.0}) == 2.0
    with pytest.raises(InvalidMessage, match="factor"):
        test.query({"factor": "x"})
    assert test.advance(90) == ["m0 was silent at 101.0, {'limit': 2}", 101.0]
    assert test.query({"factor": 1.0}) == 101.0


def test_a_timer_without_its_function_is_refused_by_name(app: App) -> None:
    @app.stream("readings")
    def add(reading: Reading, meter: Meter, context: Context) -> None:
        context.wake("other", after_s=1)

    test = StreamTest(add)
    with pytest.raises(OperationRefused, match="on_timer"):
        test.send(*readings(1.0))
    add.on_timer("silent")(lambda meter: None)
    test = StreamTest(add)
    test.send(*readings(1.0))
    with pytest.raises(OperationRefused, match=r"no on_timer\('other'\); it has \['silent'\]"):
        test.advance(1)


def test_functions_without_state_take_a_message_or_a_message_and_the_context(app: App) -> None:
    seen: list[Any] = []
    handlers: list[Callable[..., Any]] = [
        lambda message: seen.append(message["n"]),
        lambda message, ctx: seen.append((message["n"], ctx.key)),
        functools.partial(lambda more, message, context: seen.append((more, message["n"])), "x"),
    ]
    for handler in handlers:
        StreamTest(handler).send({"n": 1})
    assert seen == [1, (1, "test"), ("x", 1)]


class Total(StreamHandler[Reading]):
    state: Meter

    def process(self, message: Reading, context: Context) -> float:
        self.state.kwh += message.kwh
        return self.state.kwh


def test_a_class_keeps_the_state_that_it_annotates(app: App) -> None:
    assert app.stream("readings", key="meter", initial=lambda key: Meter(1.0))(Total) is Total
    assert app.streams["readings"].message is Reading
    test = StreamTest(app, restart_every=1)
    assert test.send(*readings(1.5, 2.0)) == [2.5, 4.5]
    assert test.state == Meter(4.5)


def test_a_class_that_keeps_its_own_bytes_goes_on_as_before(app: App) -> None:
    class Own(Total):
        def open(self, context: Context, state: bytes | None) -> None:
            self.state = Meter(float(state or 0))

        def snapshot(self) -> bytes:
            return str(self.state.kwh).encode()

    test = StreamTest(Own, restart_every=1)
    assert test.send(*readings(1.5, 2.0)) == [1.5, 3.5]
    assert test.state == b"3.5"


# -- other versions


@dataclass
class Reworked:
    total: float = 0.0


def reworked(app: App) -> Stream[Reading, Reworked, float]:
    @app.stream("readings", key="meter", version=3)
    def add(reading: Reading, meter: Reworked) -> float:
        meter.total += reading.kwh
        return meter.total

    return add


def test_state_of_earlier_versions_goes_through_each_step(app: App) -> None:
    add = reworked(app)

    @add.migrate(from_version=1)
    def parse(state: bytes) -> dict[str, Any]:
        return {"kwh": float(state)}

    @add.migrate(from_version=2)
    def rename(state: dict[str, Any]) -> dict[str, Any]:
        return {"total": state["kwh"]}

    assert StreamTest(add, state=b"1.5", version=1).send(*readings(1.0)) == [2.5]
    test = StreamTest(add, state=Meter(4.0), version=2)
    assert test.send(*readings(1.0)) == [5.0]


def test_state_that_does_not_fit_is_rejected(app: App) -> None:
    add = reworked(app)
    add.migrate(from_version=2)(lambda state: {"total": "x"})
    with pytest.raises(StateRejected, match=r"no migrate\(from_version=1\)"):
        StreamTest(add, state=b"1.5", version=1).send(*readings(1.0))
    with pytest.raises(StateRejected, match="Expected `float`, got `str`"):
        StreamTest(add, state=b"1.5", version=2).send(*readings(1.0))
    with pytest.raises(StateRejected, match="without typed state"):
        StreamTest(Total, state=b"1.5").send(*readings(1.0))


# -- what is wrong is said where it is declared


class NoDefault(msgspec.Struct):
    count: int


class Keys(TypedDict):
    count: int


@dataclass(frozen=True)
class Fixed:
    count: int = 0


def no_type(message: Reading, more: Any, context: Context) -> None: ...
def four(message: Reading, meter: Meter, context: Context, more: int) -> None: ...
def none() -> None: ...
def keyword(message: Reading, *, more: int) -> None: ...
def fixed(message: Reading, state: Fixed) -> None: ...
def number(message: Reading, state: int) -> None: ...
def no_default(message: Reading, state: NoDefault) -> None: ...
def typed_dict(message: Reading, state: Keys) -> None: ...
def unknown(message: Missing, context: Context) -> None: ...  # type: ignore[name-defined] # noqa: F821
def stateless(message: Reading, context: Context) -> None: ...


def generator(message: Reading) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "handler, options, why",
    [
        (no_type, {}, "parameter 'more' has no type; annotate it with the type of the state"),
        (four, {}, r"takes \(message, meter, context, more\); it takes \(message\), \(message, context\)"),
        (none, {}, r"takes \(\); it takes"),
        (keyword, {}, "parameter more: 'int' can't be given"),
        (generator, {}, "is a generator"),
        (fixed, {}, "state type Fixed can't hold the state of a stream: it is frozen"),
        (number, {}, "int can't hold the state of a stream: it can't be changed in place"),
        (no_default, {}, "NoDefault has no default for count; give it one, or pass initial="),
        (typed_dict, {}, "Keys has no default for count"),
        (unknown, {}, "name 'Missing' is not defined in the annotation of 'message'; define"),
        (stateless, {"state": Meter}, "takes no state, and state= is Meter"),
        (stateless, {"version": 2}, "version= is for typed state, and the handler declares none"),
        (stateless, {"initial": Meter}, "initial= is for typed state"),
        (stateless, {"message": Meter}, "message= is Meter, and 'message' is annotated with Reading"),
        (7, {}, "7 is neither a StreamHandler class nor a function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_declaration_that_is_wrong_says_what_to_write(
    app: App, handler: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        app.stream("wrong", **options)(handler)


def test_functions_beside_the_handler_are_checked_too(app: App) -> None:
    @app.stream("readings", version=2)
    def add(reading: Reading, meter: Meter) -> None: ...

    with pytest.raises(ConfigError, match=r"takes \(\); a timer of stream 'readings' takes \(state\)"):
        add.on_timer("a")(lambda: None)
    add.on_timer("b")(lambda meter: None)
    with pytest.raises(ConfigError, match=r"on_timer\('b'\) is declared twice"):
        add.on_timer("b")(lambda meter: None)

    def of_another(request: dict[str, Any], state: Reworked) -> None: ...

    with pytest.raises(ConfigError, match="its state is Reworked, and that of stream 'readings' is Meter"):
        add.on_query(of_another)
    with pytest.raises(ConfigError, match="declares version=2"):
        add.migrate(from_version=2)(lambda state: state)
    add.migrate(from_version=1)(lambda state: state)
    with pytest.raises(ConfigError, match=r"migrate\(from_version=1\) is declared twice"):
        add.migrate(from_version=1)(lambda state: state)

    @app.stream("other")
    def other(reading: Reading) -> None: ...

    with pytest.raises(ConfigError, match="keeps no state"):
        other.migrate(from_version=1)


def test_a_test_finds_state_that_would_come_back_otherwise(app: App) -> None:
    @app.stream("pairs")
    def pair(message: dict[str, Any], state: dict[str, Any]) -> None:
        state["last"] = (1, 2)

    with pytest.raises(HandlerFailed, match=r"state\['last'\] is of type tuple, and comes back as list"):
        StreamTest(pair).send({})
