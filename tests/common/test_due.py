"""Nodes ask in time for what is due, and not all at the same moment."""

import pytest

from holdfast.common import due


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_the_longest_pause_ends_before_what_was_not_yet_handed_out_is_due(random: float) -> None:
    assert due.ASK_EVERY_S <= due.pause_s(random) < due.AHEAD_S


def test_nodes_that_began_together_ask_at_different_times() -> None:
    assert due.pause_s(0.0) < due.pause_s(0.5) < due.pause_s(1.0)
