"""Lengths of time, counts, and foreign texts."""

import json

import pytest

from holdfast.common.text import counted, duration, storable, visible, visible_json


@pytest.mark.parametrize(
    "obeyed, shown",
    [("\x1b", r"\x1b"), ("\r", r"\r"), ("\x9b", r"\x9b"), ("\u202e", r"\u202e"), ("\ud800", r"\ud800")],
)
def test_what_a_terminal_would_obey_is_shown_as_its_escape(obeyed: str, shown: str) -> None:
    assert visible(f"one {obeyed}two") == f"one {shown}two"


def test_text_with_nothing_to_obey_stands_as_it_is() -> None:
    plain = "one\ttwo\nthree é \N{ZERO WIDTH JOINER}"
    assert visible(plain) == visible_json(plain) == plain


def test_json_without_what_a_terminal_would_obey_stands_for_the_same_value() -> None:
    value = {"x": "\x1b[2J \x7f \x9b \u202e"}
    told = visible_json(json.dumps(value, ensure_ascii=False))
    assert told == r'{"x": "\u001b[2J \u007f \u009b \u202e"}'
    assert json.loads(told) == value


@pytest.mark.parametrize(
    "text,stored",
    [("", ""), ("Grüße, 世界 🚪\n\0", "Grüße, 世界 🚪\n\0"), ("caf\udce9.csv", "caf\\udce9.csv")],
)
def test_only_what_utf_8_has_no_form_for_is_escaped(text: str, stored: str) -> None:
    assert storable(text) == stored


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1.0, "0 s"),
        (95.4, "95 s"),
        (120.0, "2 min"),
        (3 * 3600.0, "3 h"),
        (5 * 86400.0, "5 d"),
        (3155759976.0, "100 years"),
        (1e12, "31,688 years"),
    ],
)
def test_a_length_of_time_is_told_in_a_unit_of_which_it_has_two(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_thing_is_told_without_a_plural() -> None:
    assert [counted(count, "opening") for count in (0, 1, 2)] == ["0 openings", "1 opening", "2 openings"]
