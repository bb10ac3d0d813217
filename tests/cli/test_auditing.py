"""What commands change is in the audit log that the console shows."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli import exits
from holdfast.cli.auditing import who
from holdfast.common.acts import Effect, effect_id
from holdfast.console.audit import AuditEntry, AuditLog
from holdfast.errors import Unavailable
from holdfast.rules.streams.ledger import Commit
from holdfast.services.sqlite.registry import SqliteRegistry
from holdfast.wiring.services import Services
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


@pytest.mark.parametrize(
    "act",
    [
        ("pause",),
        ("resume",),
        ("skip", "--through", "9"),
        ("reset", "--yes"),
        ("drop-effects", "--all", "--yes"),
    ],
    ids=lambda act: act[0],
)
def test_what_is_noted_as_failed_for_a_wrong_setting_has_not_been_done(
    holdfast: Holdfast, arrange: Arrange[Any], act: tuple[str, ...]
) -> None:
    effect = Effect(1, 0, effect_id(KEY, 1, 1, 0), "alerts", "", b"{}", "0:1", 5.0)

    async def park(services: Services) -> None:
        await opened(services)
        parked = Commit(KEY, 1, 1, "acts", None, effects=(effect,), parked="" if act[0] == "pause" else "x")
        await services.state().commit(parked)

    arrange(park)
    before = arrange(lambda services: services.state().peek(KEY))
    absent = [
        part
        for name in ("cert", "key", "ca")
        for part in ("--set", f"peer_tls_{name}=/nonexistent/{name}.pem")
    ]
    refused = holdfast("streams", act[0], KEY, *act[1:], *absent)
    assert (refused.code, "peer_tls_ca" in refused.err) == (exits.USAGE, True)
    assert arrange(entries)[0].outcome == "failed"
    assert arrange(lambda services: services.state().peek(KEY)) == before


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
    assert "the audit log could not be written: the registry is away" in done.err
    assert arrange(entries) == []
    assert arrange(lambda services: services.state().peek(KEY)).parked == "paused"


@pytest.mark.parametrize(
    "command",
    [
        ("drain", "node-a"),
        ("move", KEY, "--to", "node-a"),
        ("streams", "pause", KEY),
        ("streams", "reset", KEY, "--yes"),
        ("tasks", "cancel", "reports", "monday"),
    ],
    ids=" ".join,
)
def test_what_fails_is_not_said_to_be_done(holdfast: Holdfast, command: tuple[str, ...]) -> None:
    """There is no database, so neither the change nor the note can be made."""
    failed = holdfast(*command)
    assert (failed.code, "doesn't exist" in failed.err) == (exits.USAGE, True)
    assert "done" not in failed.err
    assert len(failed.err.splitlines()) == 1
