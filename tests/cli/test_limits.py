"""``holdfast limits``."""

import asyncio
from typing import Any

import pytest

from holdfast import App
from holdfast.cli import exits
from holdfast.config.settings import Config
from holdfast.errors import Unavailable
from holdfast.operate import tasks
from holdfast.operate.tasks import TaskRunner, tasks_warning
from holdfast.rules.tasks import concurrency as rules
from holdfast.rules.tasks.concurrency import ConcurrencyLimits
from holdfast.tasks.concurrency import document_name
from holdfast.tasks.documents import change
from holdfast.testing import node_for_tests
from holdfast.wiring.services import Services
from tests.command_line import Holdfast
from tests.nodes.cluster import until


def line(**changes: object) -> dict[str, object]:
    return {
        "app": "reports",
        "global": 0,
        "node": 0,
        "strict": True,
        "granted": 0,
        "wanted": 0,
        "nodes": 0,
        "rates": {},
    } | changes


@pytest.mark.slow
def test_limits_are_set_and_listed(holdfast: Holdfast) -> None:
    assert holdfast("limits", "ls", "--json").lines == []
    done = holdfast("limits", "set", "reports", "--global", "40", "--node", "8", "--json")
    assert (done.code, done.lines) == (exits.OK, [line(**{"global": 40}, node=8)])
    assert holdfast("limits", "set", "reports", "--node", "0", "--json").lines == [line(**{"global": 40})]
    holdfast("limits", "set", "invoices", "--global", "3")
    assert [row["app"] for row in holdfast("limits", "ls", "--json").lines] == ["invoices", "reports"]
    assert holdfast("limits", "ls", "reports", "--json").lines == [line(**{"global": 40})]
    loose = holdfast("limits", "set", "reports", "--no-strict", "--json").lines
    assert loose == [line(**{"global": 40}, strict=False)]
    shown = holdfast("limits", "ls").out
    assert "reports" in shown
    assert "40" in shown
    assert "none" in shown


def test_changed_limits_keep_the_grants_of_nodes(holdfast: Holdfast, arrange: Any) -> None:
    holdfast("limits", "set", "reports", "--global", "4")

    async def take(services: Services) -> None:
        await change(
            services.registry(),
            services.clock,
            document_name("reports"),
            ConcurrencyLimits,
            lambda limits: rules.share(limits, "m", 9, 0, lapsed=(), beat=1, lease_s=30.0).limits,
        )

    arrange(take)
    wanted = line(**{"global": 2}, granted=4, wanted=4, nodes=1)
    assert holdfast("limits", "set", "reports", "--global", "2", "--json").lines == [wanted]
    assert holdfast("limits", "ls", "--json").lines == [wanted]


@pytest.mark.slow
def test_rates_are_set_and_taken_back(holdfast: Holdfast) -> None:
    rates = ("--rate", "report.publish=2.5", "--rate", "mail.send=0")
    done = holdfast("limits", "set", "reports", *rates, "--global", "4", "--json").lines
    assert done == [line(**{"global": 4}, rates={"mail.send": 0.0, "report.publish": 2.5})]
    assert "mail.send=0" in holdfast("limits", "ls").out
    back = holdfast("limits", "set", "reports", "--rate", "mail.send=declared", "--json").lines
    assert back == [line(**{"global": 4}, rates={"report.publish": 2.5})]
    for wrong in ("report.publish", "report.publish=-1", "=3", "report.publish=nan", "report.publish=10/s"):
        refused = holdfast("limits", "set", "reports", "--rate", wrong)
        assert (refused.code, "must be TYPE=NUMBER" in refused.err) == (exits.USAGE, True)


async def is_told(services: Services) -> bool:
    return not await tasks_warning(services, "reports")


async def test_limits_of_what_no_node_runs_are_warned_of(holdfast: Holdfast) -> None:
    done = await asyncio.to_thread(holdfast, "limits", "set", "reprots", "--global", "4")
    assert (done.code, done.err) == (exits.OK, "no node runs tasks of app 'reprots' now\n")
    app = App("reports")
    app.task("publish")(lambda body, job: None)
    with node_for_tests(app) as node:
        async with Services(Config(url=node.url)) as services:
            await until(lambda: is_told(services), "the node has told the registry what it runs")
            assert await tasks_warning(services, "reports", ["publish"]) == ""
            told = await tasks_warning(services, "reports", ["publish", "pblish"])
    assert told == "no node runs tasks of type pblish; nodes of reports run publish"


@pytest.mark.parametrize(
    "command",
    [
        ("limits", "set", "reports", "--global", "4"),
        ("periodic", "set", "reports", "nightly", "30 2 * * *", "publish"),
    ],
    ids=lambda command: command[0],
)
def test_what_was_set_is_told_though_nobody_can_tell_who_runs_it(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    async def away(*_: Any) -> list[TaskRunner]:
        raise Unavailable("the registry does not answer")

    monkeypatch.setattr(tasks, "runners", away)
    done = holdfast(*command)
    assert (done.code, done.err, "reports" in done.out or "nightly" in done.out) == (exits.OK, "", True)


def test_what_makes_no_limit_is_refused(holdfast: Holdfast) -> None:
    assert holdfast("limits", "set", "reports").code == exits.USAGE
    refused = holdfast("limits", "set", "reports", "--global", "-3")
    assert (refused.code, "--global is -3" in refused.err) == (exits.USAGE, True)
    assert holdfast("limits", "ls", "--json").lines == []
