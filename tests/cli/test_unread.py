"""Commands whose output nobody reads any more, as after ``| head``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import cli
from holdfast.cli import exits
from holdfast.rules.tasks.task import State
from tests.cli import test_backup, test_transfer
from tests.cli.test_backup import filled
from tests.cli.test_commands import commit
from tests.cli.test_tasks import APP, TYPE, bodies, ended, send
from tests.command_line import Arrange, Holdfast, Outcome

__all__ = ["filled"]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command whose standard output, or ``errors`` too, is a pipe that nobody reads."""

    def run(*arguments: str, errors: bool = False) -> Outcome:
        capsys.readouterr()
        reading, writing = os.pipe()
        os.close(reading)
        with (
            os.fdopen(writing, "w") as out,
            os.fdopen(os.dup(writing), "w") as err,
            monkeypatch.context() as patched,
        ):
            patched.setattr(sys, "stdout", out)
            if errors:
                patched.setattr(sys, "stderr", err)
            code = cli.run(arguments)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("errors", [False, True], ids=["", "and errors"])
def test_a_restore_goes_on_to_its_end(
    holdfast: Holdfast, unread: Any, more: tuple[str, ...], errors: bool
) -> None:
    test_backup.make(holdfast)
    done = test_backup.bring(lambda *arguments: unread(*arguments, errors=errors), *more)
    assert done.code == exits.OK, done.err
    assert errors or "3 keys and 8 results restored" in done.err
    checkpoints, results = test_backup.on(test_backup.TARGET, test_backup.everything)
    assert (len(checkpoints), len(results)) == (3, 8)


def test_all_tasks_that_are_named_are_sent_again(
    holdfast: Holdfast, unread: Any, arrange: Arrange[Any]
) -> None:
    for number in "78":
        send(holdfast, number, "--trace-id", f"t{number}")
        arrange(ended(f"t{number}", State.FAILED))
    assert unread("tasks", "retry", APP, "t7", "t8", "unheard").code == exits.FAILED
    assert arrange(bodies) == ["7", "8"]


def test_a_task_that_is_waited_for_and_fails_sets_the_exit_code(unread: Any, arrange: Arrange[Any]) -> None:
    arrange(ended("bad", State.FAILED, "no such table"))
    assert unread("tasks", "send", APP, TYPE, "--trace-id", "bad", "--wait").code == exits.FAILED


@pytest.mark.usefixtures("transferred")
def test_a_transfer_that_differs_says_so(unread: Any) -> None:
    same = test_transfer.transfer(unread, "--check")
    assert same.code == exits.OK, same.err

    async def add(held: Any) -> None:
        await test_transfer.committed(held, "steps/other", 1)

    test_transfer.on(test_transfer.TARGET, add)
    differs = test_transfer.transfer(unread, "--check")
    assert (differs.code, "steps/other" in differs.err) == (exits.FAILED, True)


@pytest.fixture
def transferred(holdfast: Holdfast) -> None:
    async def fill(held: Any) -> None:
        await test_transfer.committed(held, "steps/a", 1)

    test_transfer.on(test_transfer.SOURCE, fill)
    assert test_transfer.transfer(holdfast).code == exits.OK


def test_doctor_tells_by_its_exit_code_what_is_wrong(unread: Any) -> None:
    assert unread("doctor", "--set", "port=x").code == exits.USAGE


@pytest.mark.parametrize("command", [("status",), ("results",), ("results", "--follow")], ids=" ".join)
def test_what_only_reads_ends_at_once_and_well(
    unread: Any, arrange: Arrange[Any], command: tuple[str, ...]
) -> None:
    arrange(commit)
    done = unread(*command)
    assert (done.code, done.err) == (exits.OK, "")


@pytest.mark.parametrize("command", [("tasks", "ls"), ("doctor",), ()], ids=["tasks ls", "doctor", "all"])
def test_a_page_of_help_that_nobody_reads_is_no_failure(unread: Any, command: tuple[str, ...]) -> None:
    assert unread(*command, "--help").code == exits.OK
