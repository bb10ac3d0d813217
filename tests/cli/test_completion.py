"""``holdfast completion``, in each shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.ports.coordinator import Load, Member
from holdfast.wiring.services import Services
from tests.cli.test_node import PATIENCE_S

SERVERS = Path(__file__).parent.parent.parent / ".cache/servers"
CHECKS = {"bash": "-n", "zsh": "-n", "fish": "--no-execute"}


def shell_program(shell: str) -> str:
    """Where a shell is, which the set-up has got if the system has none."""
    return shutil.which(shell) or str(SERVERS / shell / shell)


@pytest.fixture
def script(request: pytest.FixtureRequest, place: Path, holdfast: Any) -> Path:
    """The script for a shell, in a file."""
    made = holdfast("completion", request.param)
    assert made.code == 0
    (place / "script").write_text(made.out)
    return place / "script"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, shell", [(shell, shell) for shell in CHECKS], indirect=["script"], ids=[*CHECKS]
)
def test_the_script_can_be_read_by_its_shell(script: Path, shell: str) -> None:
    assert "holdfast" in script.read_text()
    read = subprocess.run(
        [shell_program(shell), CHECKS[shell], str(script)],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (read.returncode, read.stderr) == (0, b"")


PRESS = {
    "bash": 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _holdfast; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete --do-complete "$argv"',
}
"""How each shell is made to print what it offers where Tab is pressed at the end of its arguments."""


def completed(script: Path, *words: str, shell: str = "bash") -> list[str]:
    """What a shell offers where Tab is pressed at the end of these words."""
    program = script.parent / "bin"
    program.mkdir(exist_ok=True)
    (program / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (program / "holdfast").chmod(0o755)
    name = ["bash"] if shell == "bash" else []  # bash takes the first argument for its own name
    offered = subprocess.run(
        [shell_program(shell), "-c", f"source {script}; {PRESS[shell]}", *name, *words],
        env=os.environ | {"PATH": f"{program}:{os.environ['PATH']}", "HOME": str(script.parent)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout
    return [line.split("\t")[0] for line in offered.splitlines() if line]  # fish says what each is


async def nodes(services: Services) -> None:
    for name, streams in {"lab-1": ("detect", "count"), "lab-2": ("detect",)}.items():
        await services.coordinator().join(Member(name, name, "http://x", Load(serves=streams)), 60)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_options_and_names_of_streams_and_nodes(script: Path, arrange: Any) -> None:
    assert completed(script, "holdfast", "st") == ["status", "streams"]
    assert {"send", "retry"} <= {*completed(script, "holdfast", "tasks", "")}
    assert "ingest" in completed(script, "holdfast", "in"), "of products too"
    assert completed(script, "holdfast", "results", "--fol") == ["--follow"]
    assert completed(script, "holdfast", "results", "--stream", "") == []
    arrange(nodes)
    assert completed(script, "holdfast", "results", "--stream", "") == ["count", "detect"]
    assert completed(script, "holdfast", "send", "d") == ["detect"]
    assert completed(script, "holdfast", "move", "detect/cam-1", "--to", "lab-") == ["lab-1", "lab-2"]


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_options_and_names_of_streams_and_nodes(script: Path, arrange: Any) -> None:
    assert completed(script, "holdfast", "st", shell="fish") == ["status", "streams"]
    assert {"send", "retry"} <= {*completed(script, "holdfast", "tasks", "", shell="fish")}
    assert completed(script, "holdfast", "results", "--fol", shell="fish") == ["--follow"]
    arrange(nodes)
    assert completed(script, "holdfast", "send", "d", shell="fish") == ["detect"]


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_a_service_that_is_away_completes_nothing_and_says_nothing(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://127.0.0.1:1")
    assert completed(script, "holdfast", "results", "--stream", "") == []
