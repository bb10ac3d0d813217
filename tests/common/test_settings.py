"""Settings that are declared in code, checked by the annotations that they are written with."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from holdfast.common.retry import Backoff
from holdfast.common.settings import (
    Count,
    Fraction,
    Int32,
    Limit,
    Milliseconds,
    Positive,
    RateLimit,
    Seconds,
    Text,
    check_setting,
    check_settings,
    fault,
    faults,
)
from holdfast.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "n"
    timeout_s: Seconds = 1.0
    idle_s: Seconds | None = None
    tries: Count = 1
    backoff: Backoff = Backoff()
    kind: Literal["dense", "absent"] = "dense"
    group: str | Callable[[Any], str] = ""
    anything: Any = None


class Odd(msgspec.Struct):
    """Of types that msgspec can't check."""

    when: "complex | str | Callable[[], None]" = 1j


def test_what_may_be_anything_is_not_looked_into() -> None:
    check_settings("it", Settings(anything=Odd()))
    check_settings("it", Settings(anything=Backoff(first_s=-1)))


def test_settings_of_every_declared_type_are_accepted() -> None:
    check_settings("it", Settings())
    check_settings("it", Settings(timeout_s=1, idle_s=1e9, group=str, kind="absent", anything=math.nan))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0, -1, True, "1", None, 1e9 + 1, 10**400])
def test_a_time_is_a_number_above_0_and_finite(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"it: timeout_s is .*; it must be a number above 0, at most 1,0"):
        check_settings("it", Settings(timeout_s=value))


@pytest.mark.parametrize("value", [0, 1.5, 1.0, True, "3", None, 2**31, math.inf])
def test_a_count_is_a_whole_number_from_1(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"tries is .*; it must be a whole number at least 1, at most 2,147,483,647"
    ):
        check_settings("it", Settings(tries=value))


@pytest.mark.parametrize(
    "given, text",
    [
        ({"name": 5}, "name is 5; it must be a text"),
        ({"idle_s": 0}, "idle_s is 0; it must be a number above 0, at most 1,000,000,000 or None"),
        ({"kind": "odd"}, "kind is 'odd'; it must be one of absent, dense"),
        ({"group": object()}, "group is a object; it must be a text or a function"),
        ({"group": 5}, "group is 5; it must be a text or a function"),
        ({"backoff": 5}, "backoff is 5; it must be a Backoff"),
        ({"backoff": {"first_s": 1.0}}, "backoff is {'first_s': 1.0}; it must be a Backoff"),
        ({"backoff": Backoff(math.inf)}, "backoff.first_s is inf; it must be a number above 0"),
        ({"backoff": Backoff(floor=2)}, "backoff.floor is 2; it must be a number at least 0, at most 1"),
    ],
)
def test_what_is_wrong_names_the_setting_and_what_it_should_be(given: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings("it", Settings(**given))
    assert str(raised.value).startswith(f"it: {text}")


def test_every_fault_is_told_to_who_asks_for_all() -> None:
    assert [name for name, _ in faults(Settings(timeout_s=0, tries=0, backoff=Backoff(0, 0)))] == [
        "timeout_s",
        "tries",
        "backoff.first_s",
        "backoff.max_s",
    ]


@pytest.mark.parametrize(
    "value, hint, text",
    [
        (["a"], tuple[str, ...], "it must be a tuple (each item a text)"),
        (("a", None), tuple[str, ...], "it must be a tuple (each item a text)"),
        (5, tuple[str | None, ...], "it must be a tuple (each item a text or None)"),
        ({"a": 0}, Mapping[str, Positive], "it must be a mapping (each value a number above 0"),
        (1, bool, "it must be True or False"),
        (5, type[Any], "it must be a class"),
        (2**31, Int32, "it must be a whole number at least -2,147,483,648, below 2,147,483,648"),
        (-1, Limit, "it must be a whole number at least 0"),
        (-0.1, RateLimit, "it must be a number at least 0"),
        (1.1, Fraction, "it must be a number at least 0, at most 1"),
        (math.nan, Milliseconds, "it must be a number above 0"),
        ("", Text, "it must be a text of at least 1 characters"),
        (
            "long",
            Annotated[str, Meta(max_length=3, pattern="^l")],
            "a text of at most 3 characters and like ^l",
        ),
        (5, int | Literal["first"], ""),
        ("last", int | Literal["first"], "it must be a whole number or one of first"),
        (5, list[int], "it must be "),
    ],
)
def test_each_kind_of_hint_is_put_in_words(value: object, hint: Any, text: str) -> None:
    assert text in fault(value, hint)
    assert bool(text) is bool(fault(value, hint))


def test_the_fault_of_a_long_value_is_cut_short() -> None:
    assert len(fault("x" * 10_000, int)) < 300


def test_a_single_setting_is_checked_as_one_of_many() -> None:
    check_setting("app", "name", "orders", str)
    with pytest.raises(ConfigError, match="app: name is 5; it must be a text"):
        check_setting("app", "name", 5, str)
