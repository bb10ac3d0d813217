"""Names of znodes, and what is in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ports.coordinator import Load, Member
from holdfast.services.zookeeper import layout
from holdfast.services.zookeeper.records import decode_service, encode_service

ESCAPED = {
    "camera-7": "camera-7",
    "detect/camera 7": "detect%2Fcamera 7",
    "100%": "100%25",
    ".": "%2E",
    "..": "%2E%2E",
    "...": "...",
    "zookeeper": "%7Aookeeper",
    "a\0b\n\x7f": "a%00b%0A%7F",
    "käse \N{SNOWMAN}": "käse \N{SNOWMAN}",
    "\N{GRINNING FACE}": "%F0%9F%98%80",
}


@pytest.mark.parametrize("text, name", ESCAPED.items())
def test_what_is_no_name_is_escaped(text: str, name: str) -> None:
    assert layout.escape(text) == name
    assert layout.unescape(name) == text


@given(st.text(st.characters(codec=None), min_size=1))
def test_every_text_becomes_a_name_and_comes_back(text: str) -> None:
    name = layout.escape(text)
    assert layout.unescape(name) == text
    assert name not in (".", "..", "zookeeper")
    assert not any(
        c == "/" or c <= "\x1f" or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\uf8ff" for c in name
    )
    assert not any(c >= "\ufff0" for c in name)


@pytest.mark.parametrize("name", ["%ff", "50%", "a%2fb", "%41"])
def test_a_name_of_another_program_s_making_stands_for_no_key(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        layout.unescape(name)
    assert layout.keys([name, "cam-1"]) == ["cam-1"]


@pytest.mark.parametrize("name", ["notes", "c-", "c-1", "c-x000000000", "d-0000000001", "c-00000000001234"])
def test_what_lies_beside_the_changes_is_none(name: str) -> None:
    assert not layout.is_change(name)


def test_the_names_of_changes_are_known() -> None:
    assert all(layout.is_change(name) for name in ("c-0000000010", "c--2147483648", "c--000000001"))


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_texts_have_different_names(one: str, other: str) -> None:
    assert (layout.escape(one) == layout.escape(other)) == (one == other)


def test_the_number_of_a_change_wraps() -> None:
    assert layout.after("c-0000000009") == "c-0000000010"
    assert layout.after("c-2147483647") == "c--2147483648"
    assert layout.after("c--2147483648") == "c--2147483647"
    assert layout.after("c--000000001") == "c-0000000000"


def test_a_member_is_read_as_it_was_written() -> None:
    member = Member("1", "node 1", "http://10.0.0.7:8080", Load(3, slots=2, room=5, offers=("doors",)))
    data = encode_service(member, 17.5)
    service = json.loads(data)
    assert (service["host"], service["port"], service["timestamp"]) == ("10.0.0.7", 8080, 17500)
    assert (service["streams"], service["room"], service["outboxes"]) == (3, 5, ["doors"])
    assert decode_service("/services/worker-1", data) == member


def test_fields_of_another_version_do_no_harm() -> None:
    member = Member("1", "node 1", "http://10.0.0.7:8080", Load(streams=3))
    service = json.loads(encode_service(member, 17.5)) | {"color": "green"}
    del service["calls"]
    assert decode_service("/services/worker-1", json.dumps(service).encode()) == member


@pytest.mark.parametrize(
    "data, address",
    [
        (b'{"host": "10.0.0.7", "port": 8080, "timestamp": 17.5}', "http://10.0.0.7:8080"),
        (b'{"id": 3, "host": "10.0.0.7"}', ""),
        (b'{"host": ["10.0.0.7"], "port": "x"}', ""),
        (b'{"host": "fe80::7", "port": 8080}', "http://[fe80::7]:8080"),
        (b'{"host": "10.0.0.7", "port": 0}', ""),
        (b'{"host": "10.0.0.7", "port": 65536}', ""),
        (b'{"host": "10.0.0.7", "port": true}', ""),
        (b'{"host": "evil/path?", "port": 80}', ""),
        (b'{"host": "\xff", "port": 80}', ""),
        (b"[" * 100_000, ""),
        (b'["10.0.0.7", 8080]', ""),
        (b"10.0.0.7:8080", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_a_node_of_another_program_has_no_room(data: bytes, address: str) -> None:
    assert decode_service("/services/worker-7", data) == Member(
        "/services/worker-7", "worker-7", address, Load(room=0), True
    )
