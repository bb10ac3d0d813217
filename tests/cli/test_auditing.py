"""What commands change is in the audit log that the console shows."""

from __future__ import annotations

from typing import Any

from holdfast.cli import exits
from holdfast.cli.auditing import who
from holdfast.console.audit import AuditEntry, AuditLog
from holdfast.errors import Unavailable
from holdfast.services.sqlite.registry import SqliteRegistry
from holdfast.wiring import Services
from tests.command_line import Arrange, Holdfast

KEY = "detect/cam-1"


async def opened(services: Services) -> None:
    """There is a stream."""
    await services.state().open(KEY, 0, "member")


async def entries(services: Services) -> list[AuditEntry]:
    """The entries, the newest first."""
    return await AuditLog(services.registry(), services.clock, None).entries()


def test_a_change_is_noted_with_who_what_and_outcome(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arrange(opened)
    assert holdfast("streams", "pause", KEY).code == exits.OK
    assert holdfast("streams", "skip", KEY).code == exits.FAILED
    assert holdfast("limits", "set", "reports", "--global", "4").code == exits.OK
    limits, skip, pause = arrange(entries)
    assert (pause.who, pause.action, pause.subject, pause.outcome) == (who(), "pause", KEY, "done")
    assert who().endswith("(command line)")
    assert (skip.action, skip.outcome) == ("skip", "failed")
    assert "--through" in skip.text
    assert (limits.action, limits.subject, limits.details) == ("set limits", "reports", {"global": "4"})


def test_what_only_reads_is_not_noted(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arrange(opened)
    for command in (("status",), ("why", KEY), ("streams", "effects", KEY), ("dlq", "ls"), ("limits", "ls")):
        assert holdfast(*command).code == exits.OK
    assert arrange(entries) == []


def test_an_operator_may_act_while_nothing_can_be_noted(
    holdfast: Holdfast, arrange: Arrange[Any], monkeypatch: Any
) -> None:
    arrange(opened)

    async def away(*given: Any) -> None:
        raise Unavailable("the registry is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteRegistry, "put", away)
        done = holdfast("streams", "pause", KEY)
    assert done.code == exits.OK
    assert "not in the audit log: the registry is away" in done.err
    assert arrange(entries) == []
    assert arrange(lambda services: services.state().peek(KEY)).parked == "paused"
