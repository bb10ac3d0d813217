"""``holdfast node --nodes`` as real processes."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from holdfast.cli.children import Launcher
from holdfast.config.settings import Config
from holdfast.errors import Unavailable
from tests.cli.test_node import APP, Process, results, send


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., Process]]:
    """Start nodes of the app ``counting``."""
    (place / "counting.py").write_text(APP)
    started: list[Process] = []

    def run(*arguments: str) -> Process:
        started.append(Process("counting:app", "--name", "lab", *arguments, as_users_do=True))
        return started[-1]

    yield run
    for process in started:
        process.child.kill()
        process.join()


def nodes(process: Process) -> list[psutil.Process]:
    """The node processes of a supervisor."""
    return psutil.Process(process.child.pid).children()


def test_a_python_that_can_t_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "python"
    closed.touch(0o600)
    launcher = Launcher([], Config())
    monkeypatch.setattr(sys, "executable", str(closed))
    with pytest.raises(Unavailable, match=f"{closed}: .*enter all folders on its path"):
        uvloop.run(launcher.node("lab"))  # its errors name no path
    closed.unlink()
    with pytest.raises(Unavailable, match=f"{closed}: .*install Holdfast again"):
        uvloop.run(launcher.node("lab"))
    launcher.close()


@pytest.mark.slow
def test_a_killed_node_is_evicted_and_started_again(
    holdfast: Any, arrange: Any, start: Callable[..., Process]
) -> None:
    process = start("--nodes", "2", "--slots", "1")
    names = {process.wait_for("node runs", number)["node"] for number in range(2)}
    assert sorted(name.rpartition("-")[0] for name in names) == ["lab-1", "lab-2"]
    (status,) = holdfast("status", "--json").lines
    assert {node["name"] for node in status["nodes"]} == names
    arrange(send)
    assert results(holdfast) == list(range(1, 51))
    victim = nodes(process)[0]
    victim.kill()
    died = process.wait_for("node died")
    assert died["cause"] == "SIGKILL"
    assert died["pid"] == victim.pid
    third = process.wait_for("node runs", 2)["node"]
    assert third not in names
    assert third.rpartition("-")[0] == died["node"].rpartition("-")[0]
    (status,) = holdfast("status", "--json").lines
    assert {node["name"] for node in status["nodes"]} == {third, *names} - {died["node"]}
    assert process.end() == 0
    (status,) = holdfast("status", "--json").lines
    assert status["nodes"] == []


@pytest.mark.nightly
def test_nodes_end_with_their_supervisor_however_that_ends(start: Callable[..., Process]) -> None:
    process = start("--nodes", "2", "--slots", "1")
    for number in range(2):
        process.wait_for("node runs", number)
    children = psutil.Process(process.child.pid).children(recursive=True)
    assert len(children) >= 6
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, 20)
    assert alive == []


@pytest.mark.nightly
def test_what_is_typed_at_the_terminal_reaches_nodes_through_the_supervisor(
    start: Callable[..., Process],
) -> None:
    process = start("--nodes", "2", "--slots", "1")
    for number in range(2):
        process.wait_for("node runs", number)
    assert {os.getpgid(node.pid) for node in nodes(process)} == {node.pid for node in nodes(process)}
    assert process.end(signal.SIGINT) == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--nodes", "2", "--set", "visibility_s=50"], "gap_timeout_s"),
        (["--nodes", "2", "--port", "8300"], "nodes can't share a port"),
        (["--nodes", "2", "--set", "metrics_port=8300"], "leave metrics_port at 0"),
        (["--nodes", "0"], "run at least 1 node"),
    ],
)
def test_nodes_that_can_not_start_say_why_and_are_not_tried_again(
    start: Callable[..., Process], arguments: list[str], said: str
) -> None:
    process = start(*arguments)
    assert process.join() == 2
    assert said in "\n".join(entry["event"] for entry in process.events)
