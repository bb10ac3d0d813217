"""What a terminal would obey in foreign texts is escaped; all else stands."""

import json

import pytest

from holdfast.common.visible import visible, visible_json


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
