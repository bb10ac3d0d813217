"""Typed state: which types can hold it, and that it comes back as it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pytest

from holdfast.errors import ConfigError, HandlerFailed
from holdfast.streams.typed.state_codec import StateCodec, decode_plain, is_typed


@dataclass
class Box:
    x: float
    seen: set[str] = field(default_factory=set)


@dataclass
class Track:
    boxes: list[Box] = field(default_factory=list)
    by_id: dict[int, Box] = field(default_factory=dict)
    last: Box | None = None
    plain: dict[str, Any] = field(default_factory=dict)


class Counter(msgspec.Struct):
    names: set[int] = set()
    at: datetime | None = None


class Position(pydantic.BaseModel):
    ship: str = ""
    seen: set[str] = set()


class Totals(TypedDict):
    count: int


@dataclass
class Filter:
    mean: npt.NDArray[np.float64]
    raw: Any = None


def round_trip(codec: StateCodec, state: Any) -> Any:
    codec.check(state)
    data = codec.encode(state)
    assert is_typed(data)
    restored = codec.decode(data)
    assert codec.encode(restored) == data
    return restored


@pytest.mark.parametrize(
    "kind, state",
    [
        (Track, Track([Box(1.5, {"b", "a"})], {7: Box(0.1)}, Box(2.0), {"z": 1, "a": [None, b"x", "é"]})),
        (Counter, Counter({3, 1, 2}, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))),
        (Position, Position(ship="x", seen={"b", "a"})),
        (Totals, {"count": 3}),
        (dict, {"b": 1, "a": {"c": 2.5}}),
        (dict[str, int], {"b": 1, "a": 2**63 - 1}),
        (list[Box], [Box(float("nan")), Box(float("-inf"))]),
        (set[str], {"b", "a"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_state_comes_back_as_it_was(kind: Any, state: Any) -> None:
    restored = round_trip(StateCodec(kind), state)
    assert repr(restored) == repr(state) or restored == state


def test_equal_states_have_equal_bytes_whatever_the_order_of_their_sets() -> None:
    codec = StateCodec(Track)
    names = [f"name {number}" for number in range(50)]
    states = [Track([Box(1.0, set(order))]) for order in (names, names[::-1])]
    assert len({codec.encode(state) for state in states}) == 1


def test_dicts_keep_their_order() -> None:
    restored = round_trip(StateCodec(dict), {"b": 1, "a": 2})
    assert list(restored) == ["b", "a"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([], dtype="datetime64[ns]"),
        np.array(3.5),
        np.array([("a", 1)], dtype=[("name", "U4"), ("count", "u1")]),
        np.array([np.nan, -0.0]),
    ],
    ids=["bytes swapped", "Fortran", "empty", "scalar", "record", "nan"],
)
def test_arrays_come_back_bit_for_bit(array: npt.NDArray[Any]) -> None:
    codec = StateCodec(Filter)
    restored = codec.decode(codec.encode(Filter(np.zeros(2), array))).raw
    assert (restored.dtype, restored.shape) == (array.dtype, array.shape)
    assert restored.tobytes("A") == array.tobytes("A")
    assert restored.flags.f_contiguous == array.flags.f_contiguous
    assert restored.flags.writeable


def test_numbers_of_numpy_become_numbers() -> None:
    codec = StateCodec(dict)
    state = {"mean": np.float64(0.1), "count": np.int32(7)}
    codec.check(state)
    assert codec.decode(codec.encode(state)) == {"mean": 0.1, "count": 7}


@pytest.mark.parametrize(
    "state, where",
    [
        ({"a": (1, 2)}, r"state\['a'\] is of type tuple, and comes back as list"),
        ({"a": [datetime(2026, 1, 1)]}, r"state\['a'\]\[0\] is of type datetime, and comes back as str"),  # noqa: DTZ001
        ({"a": {1, 2}}, "is of type set"),
    ],
    ids=["tuple", "datetime", "set"],
)
def test_a_place_without_a_type_takes_only_values_that_come_back(state: Any, where: str) -> None:
    with pytest.raises(HandlerFailed, match=where):
        StateCodec(dict).check(state)


def test_a_type_whose_own_code_changes_it_at_each_load_is_found() -> None:
    @dataclass
    class Grows:
        count: int = 0

        def __post_init__(self) -> None:
            self.count += 1

    with pytest.raises(HandlerFailed, match=r"state\.count is 1, and comes back as 2"):
        StateCodec(Grows).check(Grows())


class Hidden(pydantic.BaseModel):
    name: str = pydantic.Field(default="", exclude=True)
    _cache: int = pydantic.PrivateAttr(default=0)


class Frozen(pydantic.BaseModel, frozen=True):
    count: int = 0


@dataclass(frozen=True)
class Fixed:
    count: int = 0


@pytest.mark.parametrize(
    "kind, why",
    [
        (int, "state type int can't hold the state of a stream: it can't be changed in place"),
        (tuple[int, int], "can't be changed in place"),
        (np.ndarray, "can't be changed in place"),
        (Fixed, "it is frozen"),
        (Frozen, "it is frozen"),
        (Hidden, "its dumps leave out name, _cache"),
        (dict[str, object], None),
        (list[complex], None),
    ],
    ids=str,
)
def test_types_that_cannot_hold_state_are_refused(kind: Any, why: str | None) -> None:
    if why is None:
        StateCodec(kind)  # msgspec decides by the value
        return
    with pytest.raises(ConfigError, match=why):
        StateCodec(kind)


@pytest.mark.parametrize(
    "state, why",
    [
        ({"a": object()}, "it holds an object of type object"),
        ({"a": np.array([object()])}, "array of objects"),
        ({"a": np.arange(10)[::2]}, "isn't contiguous"),
        ([1], "the state is of type list, and the handler declares dict"),
        ({"a": 2**70}, "can't be encoded"),
    ],
    ids=["object", "array of objects", "slice", "other type", "large number"],
)
def test_values_that_cannot_be_stored_are_named(state: Any, why: str) -> None:
    with pytest.raises(HandlerFailed, match=why):
        StateCodec(dict).encode(state)


def test_bytes_of_another_writer_are_told_apart() -> None:
    for data in (b"", b"7", b'{"count": 7}', msgspec.msgpack.encode({"count": 7})):
        assert not is_typed(data)
        with pytest.raises(ValueError, match="without typed state"):
            StateCodec(dict).decode(data)
    with pytest.raises(ValueError, match="Expected `int`"):
        StateCodec(Totals).decode(StateCodec(dict).encode({"count": "7"}))


def test_fields_with_defaults_are_read_from_older_state() -> None:
    @dataclass
    class Older:
        count: int = 0
        gone: str = ""

    @dataclass
    class Newer:
        count: int = 0
        more: float = 1.5

    assert StateCodec(Newer).decode(StateCodec(Older).encode(Older(7, "x"))) == Newer(7, 1.5)
    assert decode_plain(StateCodec(Older).encode(Older(7, "x"))) == {"count": 7, "gone": "x"}
