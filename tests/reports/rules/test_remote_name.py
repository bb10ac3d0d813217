"""Names of files at a customer's server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidMessage
from holdfast.reports.rules.remote_name import check, temporary

BAD = {
    "": "empty",
    "/etc/passwd": "absolute",
    "../x": "'..'",
    "a/../../x": "'..'",
    "a/./x": "'.'",
    "a//x": "empty",
    "a/": "empty",
    "a\\..\\x": "backslash",
    "a\r\nDELE b": "control",
    "a\nb": "control",
    "a\0b": "control",
    "a\x1b[2Jb": "control",
    "a\x7fb": "control",
    "a\x85b": "control",
    "a\u2028b": "separator",
    "a\ud800b": "surrogate",
    "x" * 300: "255 bytes",
    "ü" * 128: "255 bytes",
    "/".join(["x" * 200] * 6): "1024 bytes",
}


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_bad_names_are_refused_and_shown_safely(name: str) -> None:
    with pytest.raises(InvalidMessage, match=BAD[name]) as caught:
        check(name)
    assert caught.value.field == "name"
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name", ["a.csv", "2026/11/a b.csv", "käse/☃.xlsx", "..a", "a..", "-rf", "~", "x" * 255]
)
def test_a_valid_remote_name_is_kept_as_it_is(name: str) -> None:
    assert check(name) == name


def test_a_temporary_name_is_cut_to_what_fits() -> None:
    assert temporary("a/report.csv", "1f") == "a/.report.csv.1f.part"
    assert temporary("ü" * 127, "1f") == "." + "ü" * 123 + ".1f.part"
    assert temporary("x" * 255, "1f") == "." + "x" * 246 + ".1f.part"


@given(st.text(max_size=300))
def test_a_temporary_name_is_hidden_beside_its_file(name: str) -> None:
    try:
        check(name)
    except InvalidMessage:
        return
    folder, _, last = name.rpartition("/")
    try:
        made = temporary(name, "0a1b")
    except InvalidMessage:
        assert len(name.encode()) > 1000
        return
    assert made.rpartition("/")[0] == folder
    assert made.rpartition("/")[2].startswith("." + last[:50])
    assert made.endswith(".0a1b.part")
    assert made != temporary(name, "ffff")
