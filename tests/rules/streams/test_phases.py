"""The table of phases."""

from holdfast.rules.streams.phases import NEXT_PHASES, OPENED, OwnerPhase


def test_every_phase_has_its_line_and_only_the_last_has_no_way_out() -> None:
    assert list(NEXT_PHASES) == list(OwnerPhase)
    assert [phase for phase, after in NEXT_PHASES.items() if not after] == [OwnerPhase.DROPPED]


def test_an_owner_may_be_dropped_or_fenced_in_each_phase_before() -> None:
    ends = {OwnerPhase.CLAIMED, OwnerPhase.DROPPED}
    assert all(ends <= after for phase, after in NEXT_PHASES.items() if phase is not OwnerPhase.DROPPED)


def test_a_stream_is_open_only_after_an_opening() -> None:
    before = {phase for phase, after in NEXT_PHASES.items() if OwnerPhase.OWNER in after}
    assert before == {OwnerPhase.OPENING, OwnerPhase.TRANSFERRING}
    assert OPENED == (OwnerPhase.OWNER, OwnerPhase.MOVING)
