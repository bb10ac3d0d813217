"""HAProxy's maps: the commands give the intended routes, and no command is too large."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.haproxy.table import Edit, RouteMaps, map_key

KEYS = st.sampled_from([f"/process/k{n}?s" for n in range(8)])
CHANGES = st.lists(st.dictionaries(KEYS, st.sampled_from(["s1", "s2", None])), max_size=30)


class Maps:
    """HAProxy's two maps, as the commands leave them."""

    def __init__(self) -> None:
        self.routes: dict[str, str] = {}
        self.recent: dict[str, str] = {}

    def obey(self, edit: Edit, table: RouteMaps) -> None:
        if edit.rewrite:
            self.routes, self.recent = dict(table.routes()), {}
            return
        assert not edit.new.keys() & self.routes.keys(), "a key would be there twice"
        assert not edit.recent.keys() & self.recent.keys(), "a key would be there twice"
        assert edit.changed.keys() <= self.recent.keys(), "only what is there can be set"
        self.routes |= edit.new
        self.recent |= edit.recent | edit.changed

    def get(self, key: str) -> str | None:
        server = self.recent.get(key) or self.routes.get(key)
        return None if server == "-" else server


@pytest.mark.slow
@given(CHANGES, st.integers(0, 6))
def test_maps_hold_what_was_last_set_after_any_changes(
    steps: list[dict[str, str | None]], recent_max: int
) -> None:
    table, maps = RouteMaps(recent_max), Maps()
    meant: dict[str, str] = {}
    for changes in steps:
        maps.obey(table.update(changes), table)
        for key, server in changes.items():
            if server is None:
                meant.pop(key, None)
            else:
                meant[key] = server
        assert len(table) == len(meant)
        assert len(maps.recent) <= recent_max
        for key in maps.routes.keys() | meant.keys():
            assert maps.get(key) == table.get(key) == meant.get(key)


def test_an_unchanged_route_is_not_sent_again() -> None:
    table = RouteMaps()
    assert table.update({"/process/a?s": "s1", "/process/b?s": None}).new == {"/process/a?s": "s1"}
    assert table.update({"/process/a?s": "s1"}) == Edit()


def test_a_new_route_is_an_addition_and_a_change_an_entry_before_the_old_one() -> None:
    table = RouteMaps()
    assert table.update({"a": "s1"}) == Edit(new={"a": "s1"})
    assert table.update({"a": "s2"}) == Edit(recent={"a": "s2"})
    assert table.update({"a": None}) == Edit(changed={"a": "-"})
    table.fold()
    assert list(table.routes()) == []


def test_keys_are_paths_as_clients_write_them() -> None:
    assert map_key("frames/cam-1") == map_key("frames/cam-1", "others") == "/process/cam-1?stream=frames"
    assert map_key("frames/cam-1", "frames") == "/process/cam-1"
    assert map_key("frames/site:3@x") == "/process/site:3@x?stream=frames"
    assert map_key("frames/a/b c?é%") == "/process/a%2Fb%20c%3F%C3%A9%25?stream=frames"
    assert map_key("frames/a;b") == "/process/a%3Bb?stream=frames"
    assert map_key("frames/..") is None
    assert map_key("od&d/a") is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_key_gives_its_stream_back_and_breaks_no_line(text: str) -> None:
    key = map_key(f"frames/{text}")
    if key is None:
        assert text in (".", "..")
        return
    assert key.isascii()
    assert not set(key) & set(" \n\r\t;\\#\"'")
    path, stream = key.split("?")
    assert (unquote(path.removeprefix("/process/")), stream) == (text, "stream=frames")
