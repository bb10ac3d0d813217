"""What types of tasks are declared as, and what handlers get for bodies."""

import dataclasses
import math
from typing import Any

import msgspec
import pydantic
import pytest
from google.protobuf import duration_pb2, struct_pb2, wrappers_pb2

from holdfast import App
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.rules.tasks.task import Task
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.handler import Job
from holdfast.tasks.spec import TaskSpec


def handle(body: Any, job: Job) -> None:
    pass


def declared(**settings: Any) -> TaskSpec:
    app = App("a")
    app.task("t", **settings)(handle)
    return app.tasks["t"]


@dataclasses.dataclass
class Order:
    number: int
    customer: str = ""


@dataclasses.dataclass
class Known:
    """A type whose own code raises for a number that it doesn't know."""

    number: int

    def __post_init__(self) -> None:
        self.name = {1: "one"}[self.number]


class Struct(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    number: int


def test_declared_settings_of_a_task_take_effect() -> None:
    spec = declared(timeout_s=5, tries=2, backoff=Backoff(1, 2), permanent=KeyError, weight=2)
    assert (spec.name, spec.handler, spec.permanent) == ("t", handle, (KeyError,))
    assert (spec.share.weight, spec.visibility_s, spec.takes_text) == (2, 15, False)
    assert declared(hold="lease", lease_s=7).visibility_s == 7
    assert declared(body=str).takes_text
    attempt = spec.attempt(Body(b"x", "n"), Task("trace", "t", attempts=2, epoch=9), 3.0)
    assert (attempt.task_id, attempt.type, attempt.body, attempt.body_name) == ("trace", "t", b"x", "n")
    assert (attempt.attempt, attempt.tries, attempt.epoch, attempt.timeout_s) == (2, 2, 9, 3.0)
    assert (attempt.lease_s, attempt.stall_s) == (15, 0)


def test_a_lease_is_for_what_advances() -> None:
    assert declared(hold="lease", lease_s=7).stalls_s == 7
    assert declared(hold="lease", lease_s=7, stall_s=20).stalls_s == 20
    assert declared().stalls_s == 0


@pytest.mark.parametrize(
    "settings,complaint",
    [
        ({"timeout_s": 0}, "task 't': timeout_s is 0; it must be a number above 0"),
        ({"stall_s": -1}, "task 't': stall_s is -1; it must be a number above 0"),
        ({"tries": 0}, "task 't': tries is 0; it must be a whole number at least 1"),
        ({"memory_mb": -1}, "task 't': memory_mb is -1; it must be a whole number at least 0"),
        ({"hold": "for ever"}, "task 't': hold is 'for ever'; it must be one of lease, timeout"),
        ({"permanent": "KeyError"}, r"permanent is \('KeyError',\); it must be a tuple .each item a class"),
        ({"permanent": str}, "it is a tuple of exception types"),
        ({"timeout_s": math.inf}, "timeout_s is inf; it must be a number above 0, at most 1,000,000,000"),
        ({"margin_s": math.nan}, "margin_s is nan; it must be a number"),
        ({"timeout_s": None}, "timeout_s is None; it must be a number"),
        ({"lease_s": True}, "lease_s is True; it must be a number"),
        ({"priority": "high"}, "priority is 'high'; it must be a whole number"),
        ({"priority": 2**31}, "priority is 2147483648; it must be a whole number"),
        ({"tries": 1.5}, "tries is 1.5; it must be a whole number"),
        ({"tries": True}, "tries is True; it must be a whole number"),
        ({"backoff": 5}, "backoff is 5; it must be a Backoff"),
        ({"backoff": Backoff(1, math.inf)}, "backoff.max_s is inf; it must be a number"),
        ({"weight": math.inf}, "weight is inf; it must be a number"),
        ({"group_rate": math.nan}, "group_rate is nan; it must be a number"),
        ({"group_limit": 1.5}, "group_limit is 1.5; it must be a whole number"),
        ({"memory_mb": "512"}, "memory_mb is '512'; it must be a whole number"),
        ({"resumable": 1}, "resumable is 1; it must be True or False"),
        ({"group": 7}, "task 't': group is 7; it must be a text or a function"),
    ],
)
def test_what_can_t_be_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        declared(**settings)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 81, "käse"])
def test_names_with_odd_characters_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be 1 to 80 letters, digits, '\.', '-' and '_'"):
        App("a").task(name)(handle)


def test_a_task_is_declared_once_and_of_something_to_run() -> None:
    app = App("a")
    app.task("t")(handle)
    with pytest.raises(ConfigError, match="task 't' is declared twice in app 'a'"):
        app.task("t")(handle)
    with pytest.raises(ConfigError, match="neither a function nor a class with a method run"):
        app.task("other")(Order)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="handler is a object; it must be a function or a class"):
        app.task("other")(object())  # type: ignore[call-overload]


LONG = duration_pb2.Duration(seconds=90)


@pytest.mark.parametrize(
    "kind,sent,read",
    [
        (dict, {"a": [1]}, {"a": [1]}),
        (Order, {"number": 1}, Order(1)),
        (Struct, {"number": 1}, Struct(1)),
        (Model, {"number": 1}, Model(number=1)),
        (str, "käse", "käse"),
        (bytes, "käse", "käse".encode()),
        (bytes, wrappers_pb2.BytesValue(value=b"\xff"), b"\xff"),
        (bytes, LONG, LONG.SerializeToString()),
        (duration_pb2.Duration, LONG, LONG),
        (duration_pb2.Duration, '"90s"', LONG),
        (dict, struct_pb2.Struct(fields={"a": struct_pb2.Value(bool_value=True)}), {"a": True}),
        (list[float], struct_pb2.ListValue(values=[struct_pb2.Value(number_value=1)]), [1]),
    ],
)
def test_bodies_are_read_as_the_declared_type(kind: Any, sent: Any, read: Any) -> None:
    assert declared(body=kind).read(body_of(sent)) == read


@pytest.mark.parametrize(
    "kind,sent,complaint",
    [
        (Order, {"number": "many"}, "number"),
        (Order, "no json", "not JSON"),
        (dict, LONG, r"of type google.protobuf.Duration, which the handler can't read"),
        (str, Body(b"\xff"), "isn't text in UTF-8"),
        (
            duration_pb2.Duration,
            struct_pb2.Struct(),
            "type google.protobuf.Struct; the handler takes google.pro",
        ),
        (duration_pb2.Duration, {"no": 1}, "isn't google.protobuf.Duration in JSON"),
        (
            duration_pb2.Duration,
            Body(b"\xff", "google.protobuf.Duration"),
            "the body isn't of type google.protobuf.Dur",
        ),
        (dict, Body(b"\xff", "google.protobuf.Struct"), "the body isn't of type google.protobuf.Struct"),
        (dict, struct_pb2.Value(number_value=math.nan), "can't be read as JSON: .*NaN"),
        (Known, {"number": 7}, r"the message isn't of type Known: it raised KeyError\(7\)"),
    ],
)
def test_bodies_that_do_not_fit_say_why(kind: Any, sent: Any, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        declared(body=kind).read(sent if isinstance(sent, Body) else body_of(sent))


def test_the_group_of_a_task_is_read_from_its_body() -> None:
    body = body_of({"customer": "c1", "number": 7, "deep": {"er": "c2"}, "none": None})
    assert declared().group_of(body) == ""
    assert declared(group="customer").group_of(body) == "c1"
    assert declared(group="deep.er").group_of(body) == "c2"
    assert declared(group="none").group_of(body) == ""
    assert declared(group=lambda body: body["number"]).group_of(body) == "7"
    assert declared(body=Order, group="customer").group_of(body) == "c1"
    assert declared(body=duration_pb2.Duration, group="seconds").group_of(body_of(LONG)) == "90"
    for group in ("missing", lambda body: 1 / 0):
        with pytest.raises(InvalidMessage, match="task 't' can't read the group from the body"):
            declared(group=group).group_of(body)
    for kind, sent in (
        (Known, body_of({"number": 7})),
        (dict, body_of(struct_pb2.Value(number_value=math.nan))),
    ):
        with pytest.raises(InvalidMessage, match=r"KeyError|NaN"):
            declared(body=kind, group="number").group_of(sent)


def test_a_body_at_which_its_own_reader_raises_has_no_group_and_is_refused() -> None:
    class Own:
        @staticmethod
        def read_body(data: bytes, name: str) -> None:
            raise SystemExit(name)

    with pytest.raises(InvalidMessage, match=r"can't read the group from the body: SystemExit\('n'\)"):
        declared(body=Own, group="number").group_of(Body(b"", "n"))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_lacks_does_not_become_null_in_a_body(number: float) -> None:
    with pytest.raises(InvalidMessage, match="it holds NaN or an infinity, which JSON doesn't have"):
        body_of({"pages": [number]})


def test_a_body_that_nests_too_deeply_is_refused_where_it_is_sent() -> None:
    body: Any = None
    for _ in range(5000):
        body = [body]
    with pytest.raises(InvalidMessage, match="it nests deeper than"):
        body_of(body)
