"""Models: loaded once a slot, kept while a stream uses them, unloaded where others need the room."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import App, Context, StreamHandler
from holdfast.errors import ConfigError, HandlerFailed
from holdfast.ports.slots import MessageWork, RunResult
from holdfast.slots.thread import drive
from holdfast.streams.models import Models, ModelSpec
from holdfast.streams.worker import StreamWorker
from holdfast.testing import StreamTest
from tests.streams.test_worker import FakeHost


class Shelf:
    """Models that are known by their sizes, and what became of them."""

    def __init__(self, memory_mb: int = 0, **sizes: int) -> None:
        self.loads: list[str] = []
        self.told: list[tuple[str, list[str]]] = []
        specs = {
            name: ModelSpec(name=name, load=functools.partial(self.load, name), memory_mb=size)
            for name, size in sizes.items()
        }
        self.models: Models[Any] = Models(specs, self.tell, memory_mb)

    def load(self, name: str) -> object:
        self.loads.append(name)
        return [name]

    def tell(self, user: Any, loading: str, loaded: Sequence[str]) -> None:
        self.told.append((loading, list(loaded)))


def test_a_model_is_loaded_once_and_told_of_before_and_after() -> None:
    shelf = Shelf(people=100)
    first = shelf.models.get("people", "cam-1")
    assert shelf.models.get("people", "cam-2") is first
    assert shelf.loads == ["people"]
    assert shelf.told == [("people", []), ("", ["people"])]


def test_without_a_limit_nothing_is_unloaded() -> None:
    shelf = Shelf(a=10_000, b=10_000)
    shelf.models.get("a", 1)
    shelf.models.leave(1)
    shelf.models.get("b", 2)
    assert shelf.models.names == ["a", "b"]


@pytest.mark.slow
def test_room_is_made_by_unloading_what_was_used_least_lately() -> None:
    shelf = Shelf(300, a=100, b=100, c=100, d=150)
    for user, name in enumerate("abc"):
        shelf.models.get(name, user)
    shelf.models.get("a", 9)
    for user in (0, 1, 2, 9):
        shelf.models.leave(user)
    shelf.models.get("a", 9)
    shelf.models.leave(9)
    shelf.told.clear()
    shelf.models.get("d", 3)
    assert shelf.models.names == ["a", "d"], "b and c were used longest ago"
    assert shelf.told == [("d", ["a"]), ("", ["a", "d"])], "told without those unloaded"


@pytest.mark.slow
def test_a_model_in_use_stays_and_goes_when_its_last_stream_leaves() -> None:
    shelf = Shelf(100, a=80, b=80)
    shelf.models.get("a", 1)
    shelf.models.get("a", 2)
    shelf.models.get("b", 3)
    assert shelf.models.names == ["a", "b"], "both are needed"
    shelf.models.leave(1)
    assert shelf.models.names == ["a", "b"]
    shelf.models.leave(2)
    assert shelf.models.names == ["b"]
    assert shelf.told[-1] == ("", ["b"])


@pytest.mark.slow
def test_a_model_that_costs_nothing_is_never_in_the_way() -> None:
    shelf = Shelf(100, free=0, a=100, b=100)
    shelf.models.get("free", 1)
    shelf.models.get("a", 1)
    shelf.models.leave(1)
    shelf.models.get("b", 1)
    assert shelf.models.names == ["b", "free"]


def test_one_that_does_not_load_is_not_kept() -> None:
    shelf = Shelf()
    models: Models[Any] = Models({"bad": ModelSpec(name="bad", load=functools.partial(int, "x"))}, shelf.tell)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            models.get("bad", 1)
    assert shelf.told == [("bad", []), ("", [])] * 2


def test_a_name_that_is_not_declared_says_which_are() -> None:
    with pytest.raises(HandlerFailed, match=r"declares no model 'peple' \(App.model\); it has cars, people"):
        Shelf(people=1, cars=1).models.get("peple", 1)


SIZES = {"a": 40, "b": 60, "c": 100, "d": 0}


@pytest.mark.slow
@settings(max_examples=30)  # each unloading collects garbage
@given(st.lists(st.tuples(st.sampled_from(["get", "leave"]), st.sampled_from("abcd"), st.integers(1, 3))))
def test_whatever_happens_what_is_used_is_there_and_the_rest_fits(deeds: list[tuple[str, str, int]]) -> None:
    shelf = Shelf(120, **SIZES)
    used: set[tuple[str, int]] = set()
    for deed, name, user in deeds:
        if deed == "get":
            assert shelf.models.get(name, user) == [name]
            used.add((name, user))
        else:
            shelf.models.leave(user)
            used = {pair for pair in used if pair[1] != user}
        needed = {name for name, _ in used}
        assert needed <= set(shelf.models.names)
        spare = sum(SIZES[name] for name in shelf.models.names if name not in needed)
        assert spare == 0 or spare + sum(SIZES[name] for name in needed) <= 120
        assert shelf.told[-1:] in ([], [("", shelf.models.names)])


# --- in an app


loads: list[str] = []


def load_people() -> str:
    loads.append("people")
    return "weights"


app = App("watching")
app.model("people", load_people, memory_mb=64)


@app.stream("frames", message=bytes, models="people")
class Watching(StreamHandler[bytes]):
    """Asks for its model with the first message only."""

    def process(self, message: bytes, context: Context) -> Any:
        return context.model("people")


def working(memory_mb: int = 0) -> tuple[StreamWorker, FakeHost]:
    loads.clear()
    host = FakeHost()
    return StreamWorker(app.streams, None, host, models=app.models, model_memory_mb=memory_mb), host


def run(worker: StreamWorker, key: str) -> RunResult:
    return drive(worker.run("frames", key, [MessageWork(0, 0, b"x")], 9, 9.0))


def test_declared_models_are_loaded_before_the_handler_opens() -> None:
    worker, host = working()
    drive(worker.open("frames", "k", None, 0))
    assert loads == ["people"]
    assert host.told == [("people", []), ("", ["people"])]
    drive(worker.open("frames", "other", None, 0))
    assert [run(worker, key).results for key in ("k", "other")] == [[b'"weights"']] * 2
    assert loads == ["people"]


@pytest.mark.slow
def test_a_stream_that_closes_leaves_its_models() -> None:
    worker, host = working(memory_mb=32)
    drive(worker.open("frames", "k", None, 0))
    drive(worker.open("frames", "k", None, 0))  # as after a failure
    assert loads == ["people"]
    drive(worker.close("frames", "k"))
    assert host.told[-1] == ("", [])


def test_a_model_that_does_not_load_is_named() -> None:
    failing = App("failing")
    failing.model("people", functools.partial(open, "/no/such/file"))
    failing.stream("frames", message=bytes, models=("people",))(Watching)
    worker = StreamWorker(failing.streams, None, FakeHost(), models=failing.models)
    with pytest.raises(HandlerFailed, match="model 'people' did not load: FileNotFoundError"):
        drive(worker.open("frames", "k", b"state", 1))


def test_tests_of_handlers_load_models_or_are_given_them() -> None:
    loads.clear()
    declared = StreamTest(app, message=bytes)
    given = StreamTest(Watching, models={"people": "a fake"})
    assert (given.send(b"x"), loads) == (["a fake"], [])
    assert StreamTest(app, models={"people": "another"}) is not declared


@pytest.mark.parametrize(
    "settings,text",
    [
        ({"name": ""}, "printable"),
        ({"load": 3}, "load is 3; it must be a function"),
        ({"memory_mb": -1}, "memory_mb is -1; it must be a whole number at least 0"),
        ({"memory_mb": 1.5}, "memory_mb is 1.5; it must be a whole number"),
        ({"memory_mb": True}, "memory_mb is True; it must be a whole number"),
        ({"name": "people"}, "declared twice"),
    ],
)
def test_a_declaration_that_can_t_be(settings: dict[str, Any], text: str) -> None:
    declared = App("a")
    declared.model("people", list)
    given: dict[str, Any] = {"name": "cars", "load": list} | settings
    with pytest.raises(ConfigError, match=text):
        declared.model(given.pop("name"), given.pop("load"), **given)


def test_a_stream_names_models_that_are_declared() -> None:
    with pytest.raises(ConfigError, match=r"declare it above with a\.model\('peple'"):
        App("a").stream("s", message=bytes, models="peple")(Watching)
