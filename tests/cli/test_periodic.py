"""``holdfast periodic``: the schedule of an app, from the command line."""

from holdfast.cli import exits
from tests.command_line import Holdfast

APP, TYPE = "reports", "report.publish"


def test_a_task_is_put_in_the_schedule_changed_and_removed(holdfast: Holdfast) -> None:
    done = holdfast("periodic", "set", APP, "nightly", "30 2 * * *", TYPE, '{"pages": 3}', "--tries", "2")
    assert (done.code, done.out) == (exits.OK, "nightly: is sent at 30 2 * * * (UTC)\n")
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
    assert holdfast("periodic", "rm", APP, "nightly").out == "nightly: is sent no more\n"
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
