"""On which node something happened to a stream, as far as a console has seen."""

from __future__ import annotations

from holdfast.console.life import SeenOpening, StreamEvents, node_at

OPENINGS = [SeenOpening("s/a", "node-b", 20.0, 30.0), SeenOpening("s/a", "node-a", 5.0, 15.0)]


def test_the_node_is_the_one_whose_opening_stood_then() -> None:
    assert [node_at(OPENINGS, at) for at in (5.0, 15.0, 25.0)] == ["node-a", "node-a", "node-b"]


def test_no_node_is_guessed_between_two_openings_or_before_the_first() -> None:
    assert [node_at(OPENINGS, at) for at in (0.0, 4.9, 17.0, 30.1)] == ["", "", "", ""]


def test_no_node_is_guessed_where_clocks_let_two_have_the_stream() -> None:
    more = [*OPENINGS, SeenOpening("s/a", "node-b", 12.0, 18.0)]
    assert [node_at(more, at) for at in (11.0, 13.0, 17.0)] == ["node-a", "", "node-b"]


def test_openings_of_other_streams_are_left_out() -> None:
    seen = StreamEvents()
    seen.stood(SeenOpening("s/other", "node-c", 0.0, 100.0))
    for opening in reversed(OPENINGS):
        seen.stood(opening)
    assert seen.openings("s/a") == OPENINGS
