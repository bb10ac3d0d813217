"""``holdfast periodic``: the schedule of an app, from the command line."""

from typing import Any

import pytest

from holdfast.cli import exits
from holdfast.tasks.discovery import DeclaredTimes, Directory, NodeEntry, announced
from holdfast.wiring.services import Services
from tests.command_line import Arrange, Holdfast

APP, TYPE = "reports", "report.publish"


@pytest.mark.slow
def test_a_task_is_put_in_the_schedule_changed_and_removed(holdfast: Holdfast) -> None:
    done = holdfast("periodic", "set", APP, "nightly", "30 2 * * *", TYPE, '{"pages": 3}', "--tries", "2")
    assert (done.code, done.out) == (exits.OK, "nightly: sent at 30 2 * * * (UTC)\n")
    (entry,) = holdfast("periodic", "ls", APP, "--json").lines
    assert (entry["name"], entry["cron"], entry["body"], entry["tries"]) == (
        "nightly",
        "30 2 * * *",
        {"pages": 3},
        2,
    )
    assert entry["since"] > 0
    holdfast("periodic", "set", APP, "nightly", "0 3 * * *", TYPE, "--zone", "Europe/Berlin")
    (entry,) = holdfast("periodic", "ls", APP, "--json").lines
    assert (entry["cron"], entry["zone"], entry["body"]) == ("0 3 * * *", "Europe/Berlin", None)
    assert "nightly" in holdfast("periodic", "ls", APP).out
    assert holdfast("periodic", "rm", APP, "nightly").out == "nightly: removed from the schedule\n"
    assert holdfast("periodic", "ls", APP, "--json").lines == []


def test_what_can_not_be_in_a_schedule_is_refused(holdfast: Holdfast) -> None:
    for wrong, said in (
        (("61 * * * *", TYPE), "cron '61"),
        (("0 * * * *", TYPE, "{pages"), "the body can't be read"),
        (("0 * * * *", TYPE, "--tries", "0"), "tries"),
        (("0 * * * *", TYPE, "--zone", "Moon"), "zone 'Moon'"),
    ):
        done = holdfast("periodic", "set", APP, "nightly", *wrong)
        assert (done.code, said in done.err) == (exits.USAGE, True), done.err
    assert "the schedule of app 'reports' has no 'nightly'" in holdfast("periodic", "rm", APP, "nightly").err


def test_what_code_declares_is_listed_beside_the_schedule(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    nightly = NodeEntry(
        "n", "http://n", (TYPE,), ("nightly",), {"nightly": DeclaredTimes("30 2 * * *", "UTC")}
    )

    async def announce(services: Services) -> None:
        directory = Directory(services.registry(), APP, services.clock)
        await directory.change(lambda listing: announced(listing, "m", nightly, ("m",), {}))

    arrange(announce)
    holdfast("periodic", "set", APP, "weekly", "0 6 * * 1", TYPE)
    first, second = holdfast("periodic", "ls", APP, "--json").lines
    assert first == {"name": "nightly", "cron": "30 2 * * *", "zone": "UTC", "declared": True}
    assert second["name"] == "weekly"
    assert "(declared)" in holdfast("periodic", "ls", APP).out
