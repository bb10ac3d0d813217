"""Commands name the event that answers them."""

from typing import get_args

from holdfast.rules.streams import commands
from holdfast.rules.streams.owner import Owner


def test_every_answer_that_a_command_names_is_an_event_of_the_owner() -> None:
    for command in get_args(commands.Command):
        text = command.__doc__ or ""
        _, _, answers = text.partition("Answer: ")
        for name in answers.partition(".")[0].split("``")[1::2]:
            assert callable(getattr(Owner, name)), f"{command.__name__} is answered by {name}"
