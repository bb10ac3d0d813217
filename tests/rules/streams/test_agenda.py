"""What an owner is to do next."""

from holdfast.rules.streams.agenda import Agenda
from holdfast.rules.streams.commands import Settle
from tests.rules.streams.parts import held


def test_the_owner_is_called_at_the_earliest_time() -> None:
    agenda = Agenda()
    for at in (5.0, 7.0, 3.0):
        agenda.wake(at)
    assert agenda.wake_at == 3.0


def test_each_settlement_is_counted_until_it_is_answered() -> None:
    agenda, message = Agenda(), held(0)
    agenda.settle((), (message,))
    agenda.settle((), (message,), duplicate=True)
    assert agenda.commands == [Settle((), (message,)), Settle((), (message,), duplicate=True)]
    assert agenda.settling == 2
