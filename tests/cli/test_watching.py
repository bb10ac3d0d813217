"""Commands that show the same again and again, on a terminal and through a pipe."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.ports.coordinator import Load, Member
from holdfast.wiring.services import Services
from tests.cli.test_commands import commit
from tests.cli.test_node import PATIENCE_S

COLUMNS = 80
STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", re.MULTILINE)
LONG = "camera-entrance-north-17"


async def cluster(services: Services) -> None:
    for name in "ab":
        member = Member(f"id-{name}" * 8, f"{LONG}-{name}", "http://127.0.0.1:1", Load(handled=123456))
        await services.coordinator().join(member, 600)
    for number in range(3):
        await commit(services, key=f"detect/{LONG}-{number}")


@contextlib.contextmanager
def terminal(*arguments: str) -> Iterator[int]:
    """A command on a terminal of 80 columns; yields what reads it. Ends it as Ctrl-C does."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "holdfast", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        try:
            yield ours
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the terminal has nobody at its other end any more
                while os.read(ours, 65536):
                    pass
            assert child.wait(PATIENCE_S) == 130
        finally:
            child.kill()
            os.close(ours)


def read_until(fd: int, pattern: str, count: int) -> str:
    text = ""
    while len(re.findall(pattern, text)) < count:
        text += os.read(fd, 65536).decode(errors="replace")
    return text


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("status", "--watch"), ("top",)], ids=" ".join)
def test_on_a_terminal_of_80_columns_it_is_drawn_in_place_and_no_line_is_broken(
    arrange: Any, arguments: tuple[str, ...]
) -> None:
    arrange(cluster)
    with terminal(*arguments) as shown:
        text = read_until(shown, "UTC", 3)
    assert "\x1b[?1049h" in text, "the screen before comes back at the end"
    last = text.split("\x1b[H")[-2]
    lines = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", line).rstrip() for line in last.splitlines()]
    assert max(map(len, lines)) <= COLUMNS
    assert [line for line in lines if line.startswith(f"{LONG}-a")]
    if arguments[0] == "status":
        assert len([line for line in lines if line.startswith("detect ") and f"{LONG}-0" in line]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("status", "--watch"), ("top",)], ids=" ".join)
def test_through_a_pipe_it_is_one_block_after_the_other_without_escapes(
    arrange: Any, arguments: tuple[str, ...]
) -> None:
    arrange(cluster)
    command = [sys.executable, "-m", "holdfast", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            text = read_until(child.stdout.fileno(), "UTC", 3)
        finally:
            child.kill()
    assert "\x1b" not in text
    assert "\r" not in text
    first, second = STAMP.split(text)[1:3]
    assert first.count("Nodes: 2") == second.count("Nodes: 2") == 1
    assert first.endswith("\n\n")
