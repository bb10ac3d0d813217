"""A message's life, place and the checks on what a stream reads from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.message import (
    KEY_BYTES_MAX,
    NEXT,
    RUN_DIGITS,
    SEQ_DIGITS,
    TIMER_RUN,
    Life,
    Place,
    check_key,
    check_number,
    check_text,
    fixed,
    is_timer_name,
)
from holdfast.errors import InvalidMessage

ENDS = {Life.DELETED, Life.GIVEN_BACK}


def reachable(*starts: Life) -> set[Life]:
    found = set(starts)
    edge = list(starts)
    while edge:
        new = NEXT[edge.pop()] - found
        found |= new
        edge.extend(new)
    return found


def test_every_life_is_reached_from_a_delivery() -> None:
    assert reachable(Life.RECEIVED) == set(Life) == set(NEXT)


@pytest.mark.parametrize("life", Life)
def test_every_life_of_a_message_can_reach_an_end(life: Life) -> None:
    assert (NEXT[life] == frozenset()) == (life in ENDS)
    assert reachable(life) & ENDS, "a message that can't end is lost"


@pytest.mark.parametrize("life", [life for life in Life if life not in {Life.COMMITTED, Life.BURIED}])
def test_nothing_is_deleted_but_what_is_committed_or_buried(life: Life) -> None:
    assert Life.DELETED not in NEXT[life]


@pytest.mark.parametrize("life", [life for life in Life if life not in {Life.COMMITTED, Life.RECEIVED}])
def test_nothing_is_buried_but_what_is_committed_or_has_no_key(life: Life) -> None:
    assert Life.BURIED not in NEXT[life]


def test_a_message_in_a_batch_is_given_back_only_through_a_new_judgement() -> None:
    assert Life.RECEIVED in NEXT[Life.APPENDED]
    assert Life.GIVEN_BACK not in NEXT[Life.APPENDED]
    assert Life.COMMITTED not in NEXT[Life.RUNNING]


numbers = st.integers(0, 10**SEQ_DIGITS - 1)


@given(numbers, numbers)
def test_fixed_width_text_sorts_as_the_numbers_do(one: int, other: int) -> None:
    assert (fixed(one) < fixed(other)) == (one < other)
    assert len(fixed(one)) == SEQ_DIGITS
    assert (Place(1, one) < Place(1, other)) == (one < other)


def test_places_compare_by_run_first() -> None:
    assert Place(0, 9) < Place(1, 0)
    assert len({Place(0, 1), Place(0, 1)}) == 1


def test_the_name_of_a_place_holds_its_run_and_its_seq_or_id() -> None:
    assert Place(3, 7).name == "3:" + "0" * (SEQ_DIGITS - 1) + "7"
    assert Place(0, 0, "abc").name == "0:abc"


@pytest.mark.parametrize("place, timer", [(Place(TIMER_RUN, 0, "a:b:1.2"), "a:b"), (Place(2, 0, "a:b"), "")])
def test_only_the_place_of_a_timer_names_one(place: Place, timer: str) -> None:
    assert place.timer == timer
    assert is_timer_name(place.name) is bool(timer)


@pytest.mark.parametrize(
    "key, usable", [("cam/1", "cam/1"), ("ü 1", "ü 1"), (0, "0"), (-7, "-7"), ("k" * KEY_BYTES_MAX,) * 2]
)
def test_a_usable_key_is_taken_as_text(key: object, usable: str) -> None:
    assert check_key(key, "video") == usable


@pytest.mark.parametrize(
    "key, why",
    [
        ("", "non-empty"),
        (None, "non-empty"),
        (True, "non-empty"),
        (1.0, "non-empty"),
        (b"raw", "non-empty"),
        pytest.param(10**5000, "512 bits at most", id="vast"),
        ("k" * (KEY_BYTES_MAX + 1), "513 bytes"),
        ("ü" * KEY_BYTES_MAX, "1024 bytes"),
        ("a\nb", "not printable"),
        ("a\0", "not printable"),
        ("\ud800", "surrogate"),
    ],
)
def test_an_unusable_key_is_refused_by_the_name_of_its_field(key: object, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why) as caught:
        check_key(key, "video")
    assert caught.value.field == "video"
    assert "'video'" in str(caught.value)


@pytest.mark.parametrize(
    "value, digits, usable",
    [
        (0, SEQ_DIGITS, 0),
        (10**SEQ_DIGITS - 1, SEQ_DIGITS, 10**SEQ_DIGITS - 1),
        ("0042", SEQ_DIGITS, 42),
        ("0" * 60 + "7", RUN_DIGITS, 7),
        ("000", RUN_DIGITS, 0),
    ],
)
def test_a_usable_number_is_read_as_an_integer(value: object, digits: int, usable: int) -> None:
    assert check_number(value, "frame", digits) == usable


@pytest.mark.parametrize(
    "value, why",
    [
        (None, "must be an integer"),
        (True, "must be an integer"),
        (1.5, "must be an integer"),
        ("", "must be an integer"),
        ("-1", "must be an integer"),
        ("٣", "must be an integer"),
        (-1, "must not be negative"),
        pytest.param(-(10**5000), "must not be negative", id="vast-negative"),
        (10**RUN_DIGITS, "over 20 digits"),
        pytest.param(10**5000, "over 20 digits", id="vast"),
        pytest.param("9" * 5000, "over 20 digits", id="vast-text"),
    ],
)
def test_an_unusable_number_is_refused_by_the_name_of_its_field(value: object, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why) as caught:
        check_number(value, "frame", RUN_DIGITS)
    assert caught.value.field == "frame"


@pytest.mark.parametrize(
    "place",
    [
        Place(0, 0),
        Place(3, 10**SEQ_DIGITS - 1),
        Place(2, 0, "a:b"),
        Place(0, 0, "7"),
        Place(TIMER_RUN, 0, "silent:1.2"),
    ],
)
def test_a_place_is_known_by_its_name(place: Place) -> None:
    assert Place.named(place.name) == place


@pytest.mark.parametrize("value", [None, 7, b"one", ["one"]])
def test_what_is_no_text_is_refused_by_the_name_of_its_field(value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"field 'reason' is .*; it must be a text") as refused:
        check_text(value, "reason")
    assert refused.value.field == "reason"
