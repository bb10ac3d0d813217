"""Commands that read, while the service that they read from is away for a while."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.cli import patience
from holdfast.common.retry import Backoff
from holdfast.errors import Unavailable
from holdfast.operate import nodes
from holdfast.ports.coordinator import Member
from holdfast.services.sqlite.coordinator import SqliteCoordinator
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.state import SqliteState
from holdfast.services.sqlite.tasks import SqliteTasks
from tests.cli.test_commands import bury, commit
from tests.cli.test_tasks import APP, TYPE, ended

FAILURES = 8


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES", Backoff(0.001, 0.002))


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a call of a service fail so often, first or from the second on."""

    def away(service: type, name: str, *, first: bool = True, failures: float = FAILURES) -> None:
        call: Callable[..., Awaitable[Any]] = getattr(service, name)
        left = [failures]
        answered = [not first]

        async def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
            if answered[0] and left[0] > 0 and not first:
                answered[0] = False
                return await call(self, *args, **kwargs)
            if left[0] > 0:
                left[0] -= 1
                raise Unavailable("redis://ann:hunter2@db: connection refused")
            return await call(self, *args, **kwargs)

        monkeypatch.setattr(service, name, fail)

    return away


def test_results_are_followed_through_an_outage(holdfast: Any, arrange: Any, away: Any) -> None:
    arrange(commit)
    every = holdfast("results").lines
    away(SqliteState, "results", first=False)
    outcome = holdfast("results", "--follow", "--limit", "3")
    assert (outcome.code, outcome.lines) == (0, every)
    away(SqliteState, "results")
    outcome = holdfast("results", "--follow", "--limit", "3")
    assert (outcome.code, outcome.lines) == (0, every)
    assert outcome.err.count("no answer yet") == outcome.err.count("there is an answer again") == 1
    assert "hunter2" not in outcome.err


@pytest.mark.parametrize("first", [True, False], ids=["from the start", "later"])
def test_tasks_are_watched_through_an_outage(holdfast: Any, arrange: Any, away: Any, first: bool) -> None:
    arrange(ended("fine"))
    arrange(ended("well"))
    away(SqliteTasks, "get", first=first)
    outcome = holdfast("tasks", "watch", APP, "fine", "well")
    assert (outcome.code, "fine" in outcome.out, "well" in outcome.out) == (0, True, True)
    told = outcome.out + outcome.err
    assert told.count("no answer yet") == told.count("there is an answer again") == 1
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "command, service, call",
    [
        (["results"], SqliteState, "results"),
        (["status", "--json"], SqliteState, "checkpoints"),
        (["status", "--json"], SqliteCoordinator, "members"),
        (["dlq", "ls", "--json"], SqliteState, "checkpoints"),
        (["dlq", "ls", "detect", "--json"], SqliteQueue, "dead_letters"),
        (["dlq", "show", "detect/cam-2:0:8", "--json"], SqliteQueue, "dead_letters"),
        (["dlq", "purge", "--stream", "detect", "--all", "--yes", "--json"], SqliteQueue, "dead_letters"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_outage_delays_what_is_read(
    holdfast: Any, arrange: Any, away: Any, command: list[str], service: type, call: str, first: bool
) -> None:
    arrange(commit)
    arrange(bury)
    away(service, call, first=first)
    outcome = holdfast(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.lines
    assert "hunter2" not in outcome.err


def test_an_outage_ends_no_wait_for_a_task(holdfast: Any, arrange: Any, away: Any) -> None:
    arrange(ended("fine"))
    away(SqliteTasks, "get")
    outcome = holdfast("tasks", "send", APP, TYPE, "--trace-id", "fine", "--wait")
    assert (outcome.code, "fine: succeed" in outcome.out) == (0, True), outcome.err
    assert outcome.err.startswith("fine: sent\n"), "whoever ends the wait knows what to look for"


@pytest.mark.usefixtures("database")
def test_an_outage_ends_no_wait_for_a_node_that_leaves(
    holdfast: Any, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(*_: Any) -> Member:
        return Member("m", "node-1", "http://127.0.0.1:1")

    monkeypatch.setattr(nodes, "drain", drain)
    away(SqliteCoordinator, "members")
    outcome = holdfast("drain", "node-1")
    assert (outcome.code, "node-1 has left" in outcome.out) == (0, True), outcome.err


def test_an_outage_without_end_is_told(
    holdfast: Any, arrange: Any, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange(commit)
    monkeypatch.setattr(patience, "PATIENCE_S", 0.05)
    away(SqliteState, "results", failures=float("inf"))
    outcome = holdfast("results")
    assert outcome.code == 3
    assert "connection refused" in outcome.err
