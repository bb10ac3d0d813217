"""The commands and the clock of an owner."""

from typing import get_args

from holdfast.rules.streams import commands
from holdfast.rules.streams.commands import Agenda
from holdfast.rules.streams.owner import OwnerMachine


def test_every_answer_that_a_command_names_is_an_event_of_the_owner() -> None:
    for command in get_args(commands.Command):
        text = command.__doc__ or ""
        _, _, answers = text.partition("Answer: ")
        for name in answers.partition(".")[0].split("``")[1::2]:
            assert callable(getattr(OwnerMachine, name)), f"{command.__name__} is answered by {name}"


def test_the_owner_is_called_at_the_earliest_time() -> None:
    agenda = Agenda()
    for at in (5.0, 7.0, 3.0):
        agenda.wake(at)
    assert agenda.wake_at == 3.0
