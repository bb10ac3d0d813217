"""How messages are archived: every body comes back as it was, and no two objects have one name."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import App, Context
from holdfast.assembly.checks import check_app
from holdfast.common.held import Held, Receipt
from holdfast.common.message import CommitPlace, Place
from holdfast.config.sources import load
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.services.memory.objects import MemoryObjects
from holdfast.streams.archive import (
    SEGMENT_CHARS_MAX,
    ArchivedMessage,
    ObjectName,
    archived,
    folder,
    lines_of,
    object_name,
    read_line,
    segment,
)
from holdfast.wiring.services import Services

COMMIT = CommitPlace(3, 14, 1_793_000_000.0)
PLACE = Place(0, 7)
BODIES = [
    b"",
    b"{}",
    b'{"n": 1.0, "n": 2}',
    b'{"pretty":\n 1}',
    b' {"n": 1}\r\n',
    b"\xff\x00",
    b'"\xff"',
    b"not json",
    b"NaN",
    '"\u2028 \U0001f4f7"'.encode(),
]
names = st.text(st.characters(codec="utf-8", min_codepoint=32), min_size=1, max_size=300)


def as_archived(body: bytes, place: Place = PLACE) -> ArchivedMessage:
    held = Held(place, body, {"id": "a"}, [Receipt("r", math.inf)], covered_as="done")
    return archived("cam 1", held, COMMIT, 12.5)


@pytest.mark.parametrize("body", BODIES)
def test_a_body_comes_back_as_it_was(body: bytes) -> None:
    line = lines_of([as_archived(body)])
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    again = read_line(line, "there")
    assert again.content == body
    assert again == as_archived(body)


@given(st.binary())
def test_any_body_comes_back_as_it_was(body: bytes) -> None:
    assert read_line(lines_of([as_archived(body)]), "there").content == body


def test_json_can_be_read_in_the_archive() -> None:
    assert b'"body":{"n": 1}' in lines_of([as_archived(b'{"n": 1}')])


def test_places_are_kept_whatever_their_size() -> None:
    for place in (Place(10**19, 10**38), Place(0, 0, "message 1")):
        assert read_line(lines_of([as_archived(b"1", place)]), "there").place == place


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"key":"a"}', b"\xff", lines_of([as_archived(b"x")]).replace(b'"eA', b'"\\u0000')],
)
def test_a_line_that_can_not_be_read_is_named(line: bytes) -> None:
    with pytest.raises(InvalidMessage, match="objects/1 line 7 can't be read"):
        read_line(line, "objects/1 line 7")


@given(names, names)
async def test_names_of_objects_are_told_from_their_urls(stream: str, key: str) -> None:
    objects = MemoryObjects()
    for again in (False, True):
        name = object_name(stream, key, COMMIT, 5, again=again)
        assert name.startswith(f"{folder(stream, key)}/2026-10-26T")
        found = ObjectName.of(await objects.put(name, b""))
        assert found is not None
        assert (found.epoch, found.number, found.again) == (3, 5, again)


@pytest.mark.slow
@given(names)
def test_a_text_is_a_segment_that_every_store_takes(text: str) -> None:
    made = segment(text)
    assert 0 < len(made) <= SEGMENT_CHARS_MAX
    assert made.isascii()
    assert "/" not in made
    assert not made.startswith(".")


@given(names, names)
def test_different_texts_are_different_segments(one: str, other: str) -> None:
    assert (segment(one) == segment(other)) == (one == other)


def test_objects_of_keys_that_differ_in_case_have_different_names() -> None:
    one, other = (object_name("s", key, COMMIT, 1, again=False) for key in ("Cam", "cam"))
    assert one.lower() != other.lower()


@pytest.mark.parametrize(
    "url",
    ["", "file:///a/b", "s3://b/s/k/2026-10-26T01/notes.txt", "s3://b/s/k/h/a-b-c.jsonl", "s3://b/1-2.jsonl"],
)
def test_what_is_no_object_of_an_archive_is_left_out(url: str) -> None:
    assert ObjectName.of(url) is None


@pytest.mark.parametrize(
    "url, said",
    [
        (
            "gopher://host",
            "stream 's': archive is 'gopher://host': nothing serves that; use a URL such as",
        ),
        ("redis://host", "stream 's': archive is 'redis://host': nothing serves that"),
        ("s3:bucket", "stream 's': archive is 's3:bucket': use one such as 's3://"),
        ("s3://me:secret@bucket", r"stream 's': archive is 's3://me:\*+@bucket': it holds a password"),
        ("file:a?b", r"stream 's': archive is 'file:a\?.*': it names no path"),
    ],
)
def test_an_archive_that_nothing_serves_is_refused_at_the_start(url: str, said: str, tmp_path: Path) -> None:
    app = App("site")
    app.stream("s", archive=url)(handle)
    with pytest.raises(ConfigError, match=said):
        check_app(Services(load({"url": f"sqlite:///{tmp_path / 'a.db'}"})), app)


def test_an_archive_whose_library_is_missing_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("site")
    app.stream("s", archive="s3://bucket")(handle)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r"stream 's': archive needs the library .*holdfast-streams\[s3\]"):
        check_app(Services(load({"url": f"sqlite:///{tmp_path / 'a.db'}"})), app)


def test_an_archive_that_is_no_url_is_refused_where_it_is_declared() -> None:
    wrong: list[Any] = ["frames", 7]
    for archive in wrong:
        with pytest.raises(ConfigError, match="stream 's': archive is"):
            App("site").stream("s", archive=archive)(handle)


def handle(message: dict[str, Any], context: Context) -> None: ...
