"""What is changed of this process' Python."""

import sys
from collections.abc import Iterator

import pytest

from holdfast.system.interpreter import SWITCH_S, QuickSwitches


@pytest.fixture(autouse=True)
def as_python_has_it() -> Iterator[None]:
    was = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(was)


def test_threads_take_turns_quickly_while_anything_holds_that_and_then_as_before() -> None:
    switches = QuickSwitches()
    switches.hold()
    switches.hold()
    switches.release()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    switches.release()
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize("own", [SWITCH_S / 2, 0.02])
def test_what_the_program_has_set_stays(own: float) -> None:
    switches = QuickSwitches()
    switches.hold()
    sys.setswitchinterval(own)
    switches.release()
    assert sys.getswitchinterval() == pytest.approx(own, rel=0.05)


def test_a_program_that_is_quicker_already_is_not_slowed_down() -> None:
    sys.setswitchinterval(SWITCH_S / 2)
    switches = QuickSwitches()
    switches.hold()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S / 2, rel=0.05)
    switches.release()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S / 2, rel=0.05)
