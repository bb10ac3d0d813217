"""Texts of others on a terminal: what it would obey is seen, and does nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli import output
from holdfast.ports.queue import DeadLetter
from holdfast.rules.tasks.task import State
from holdfast.wiring.services import Services
from tests.cli.test_tasks import APP, ended, send
from tests.command_line import Arrange, Holdfast

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\r\x9b31m\u202egnp.exe\x7f"
OBEYED = "\x1b\x07\r\x9b\u202e\x7f"


async def bury(services: Services) -> None:
    await services.queue("detect").bury(
        [
            DeadLetter(
                f"detect/{HOSTILE}:0:1",
                HOSTILE.encode(),
                f"failed: {HOSTILE}",
                {"x": HOSTILE},
                f"Traceback\n\t{HOSTILE}",
                "detect",
                HOSTILE,
                0,
                "1",
            )
        ]
    )


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize(
    "command",
    [("dlq", "ls", "detect"), ("dlq", "show", f"detect/{HOSTILE}:0:1"), ("dlq", "show", f"{HOSTILE}/1")],
)
def test_dead_letters_show_what_a_terminal_would_obey(
    holdfast: Holdfast, arrange: Arrange[Any], command: tuple[str, ...], more: tuple[str, ...]
) -> None:
    arrange(bury)
    shown = holdfast(*command, *more)
    assert not {*OBEYED} & {*(shown.out + shown.err)}
    if more and shown.code == 0:
        assert json.loads(shown.out)["reason"] == f"failed: {HOSTILE}"
    else:
        assert r"\x1b]0;pwned\x07" in shown.out + shown.err


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("command", [("ls", APP), ("show", APP, "bad"), ("show", APP, f"no{HOSTILE}")])
def test_tasks_show_what_a_terminal_would_obey(
    holdfast: Holdfast, arrange: Arrange[Any], command: tuple[str, ...]
) -> None:
    arrange(ended(send(holdfast, "--trace-id", "bad"), State.FAILED, HOSTILE))
    shown = holdfast("tasks", *command)
    assert not {*OBEYED} & {*(shown.out + shown.err)}
    assert r"\x1b]0;pwned\x07" in shown.out + shown.err


def test_what_a_command_draws_by_itself_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    output.console().print(Text(f"one {HOSTILE}"))
    output.error_console().print(Text(f"two {HOSTILE}"))
    said = capsys.readouterr()
    assert not {*OBEYED} & {*(said.out + said.err)}
    assert r"\x1b[2J" in said.out
    assert r"\x1b[2J" in said.err


def test_tabs_and_ends_of_lines_stay_and_what_no_terminal_takes_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.say("a\tb\nc \ud800 \N{ZERO WIDTH JOINER}é")
    assert capsys.readouterr().out == "a\tb\nc \\ud800 \N{ZERO WIDTH JOINER}é\n"
