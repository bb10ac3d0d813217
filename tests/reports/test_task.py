"""``report.publish``: orders read, formatted and delivered, recorded in the audit, resumed and cancelled."""

import asyncio
import contextlib
import datetime as dt
import functools
import hashlib
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from holdfast.app.app import App
from holdfast.common.rate import Rate
from holdfast.config.sources import load
from holdfast.errors import ConfigError, Fenced, InvalidMessage, LoginRefused, Unavailable
from holdfast.reports import publish, publish_reports
from holdfast.reports.assembly import report_publisher
from holdfast.reports.audit import Audit, AuditedAttempt, Row
from holdfast.reports.deliver import deliver_file
from holdfast.reports.deliver_credentials import Credentials
from holdfast.reports.deliver_pool import PoolLimits
from holdfast.reports.faults import UnreadableSource
from holdfast.reports.order import from_plain
from holdfast.reports.publish import Published
from holdfast.rules.tasks.task import State
from holdfast.tasks.body import Body
from holdfast.tasks.handler import Cancelled
from holdfast.tasks.spec import TaskSpec
from holdfast.testing import TaskTest
from holdfast.wiring.services import Services
from simulator.servers import FtpServer, RedisServer
from tests.reports.making import protobuf_of, stored

DAY = dt.date(2024, 2, 29)
NAME = "sales-2024-02-29.csv"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the folder ``in`` of a customer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path


def made_app(**settings: Any) -> App:
    app = App("reports")
    publish_reports(app, **settings)
    return app


def order(folder: Path, rows: int = 3, **fields: Any) -> dict[str, Any]:
    source = stored(folder, {"n": list(range(rows)), "t": [f"row {n}" for n in range(rows)]})
    delivery = {"destination": f"file:{folder}/in", **fields.pop("delivery", {})}
    return {
        "customer": "acme",
        "report": "sales",
        "tables": [{"sources": [source]}],
        "name": "{report}-{date}.csv",
        "date": str(DAY),
        "delivery": delivery,
        **fields,
    }


async def rows(**config: Any) -> list[Row]:
    async with Services(load(config)) as services:
        return await Audit(services.registry(), services.clock).day(DAY)


def audit() -> list[Row]:
    return asyncio.run(rows())


@pytest.mark.slow
def test_an_order_is_delivered_and_audited(folders: Path) -> None:
    test = TaskTest(made_app(), task_id="first", epoch=3)
    body = order(folders, delivery={"companions": ["sha256", "ok"]})
    published = test.run(body)
    data = (folders / "in" / NAME).read_bytes()
    assert data == b"n,t\n0,row 0\n1,row 1\n2,row 2\n"
    digest = hashlib.sha256(data).hexdigest()
    file = {"name": NAME, "size": len(data), "rows": 3, "sha256": digest, "duplicated": False}
    assert published == {"files": [file], "duplicated": False}
    assert test.steps[-1].fraction == 1.0
    assert test.steps[-1].numbers.items() >= {"bytes": len(data), "rows": 3}.items()
    assert {"rate", "left_s"} <= test.steps[-1].numbers.keys()
    (row,) = audit()
    assert (row.trace, row.app, row.epoch, row.attempts) == ("first", "reports", 3, 1)
    assert (row.state, row.name, row.size, row.rows, row.sha256) == (
        State.SUCCEEDED,
        NAME,
        len(data),
        3,
        digest,
    )
    assert row.destination == f"file:{folders}/in"
    assert 0 < row.ordered_at <= row.started_at <= row.ended_at


@pytest.mark.slow
def test_the_same_task_again_finds_its_file(folders: Path) -> None:
    app, body = made_app(), order(folders)
    first = TaskTest(app, epoch=1).run(body)
    written = (folders / "in" / NAME).stat().st_mtime_ns
    again = TaskTest(app, epoch=2, attempt=2).run(body)
    assert again["duplicated"]
    assert again["files"] == [first["files"][0] | {"duplicated": True}]
    assert (folders / "in" / NAME).stat().st_mtime_ns == written
    (row,) = audit()
    assert (row.state, row.attempts) == (State.SUCCEEDED, 2)


@pytest.mark.slow
def test_an_attempt_that_was_replaced_changes_nothing(folders: Path) -> None:
    app, body = made_app(), order(folders)
    TaskTest(app, epoch=2, attempt=2).run(body)
    (before,) = audit()
    with pytest.raises(Fenced, match="attempt 2"):
        TaskTest(app, epoch=1).run(body)
    assert audit() == [before]


@pytest.mark.slow
def test_a_report_ordered_by_protobuf_is_made(folders: Path) -> None:
    message = protobuf_of(from_plain(order(folders)))
    assert not TaskTest(made_app()).run(message)["duplicated"]
    assert (folders / "in" / NAME).exists()


@pytest.mark.slow
def test_another_protobuf_message_is_no_order() -> None:
    from google.protobuf.struct_pb2 import Struct

    with pytest.raises(InvalidMessage, match=r"google\.protobuf\.Struct"):
        TaskTest(made_app()).run(Struct())


async def refused(trace: str) -> Row:
    """The row of an order that can't be understood, whatever day it is of."""
    async with Services(load()) as services:
        documents = await services.registry().list("reports/days/")
    (row,) = [row for each in documents if (row := msgspec.json.decode(each.body, type=Row)).trace == trace]
    return row


@pytest.mark.slow
@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"customer": {}, "delivery": [], "date": 3}'])
def test_an_unreadable_order_is_audited_too(folders: Path, body: str) -> None:
    app = made_app()
    assert app.tasks["report.publish"].group_of(Body(body.encode())) == ""
    with pytest.raises(InvalidMessage):
        TaskTest(app, task_id="night").run(body)
    row = asyncio.run(refused("night"))
    assert (row.state, row.app, row.attempts, row.customer) == (State.FAILED, "reports", 1, "")
    assert row.error.startswith("InvalidMessage: ")
    assert row.ended_at >= row.ordered_at > 0


@pytest.mark.slow
def test_the_fields_of_a_wrong_order_are_kept_without_secrets(folders: Path) -> None:
    body = order(folders, tables=[], delivery={"destination": f"ftp://ann:{'pa55' * 50}@host/in"})
    app = made_app()
    assert app.tasks["report.publish"].group_of(Body(msgspec.json.encode(body))) == "acme"
    with pytest.raises(InvalidMessage, match="tables"):
        TaskTest(app).run(body)
    (row,) = audit()
    assert (row.customer, row.report, row.destination) == ("acme", "sales", "ftp://ann:***@host/in")
    body = order(folders, customer="a\nb" * 1000, date="some day")
    with pytest.raises(InvalidMessage, match="customer"):
        TaskTest(app, task_id="other").run(body)
    assert asyncio.run(refused("other")).customer == ""


@pytest.mark.slow
def test_a_workbook_over_several_files_has_a_row_for_each(folders: Path) -> None:
    form = {"type": "xlsx", "rows_per_sheet": 3, "overflow": "files"}
    body = order(folders, rows=5, format=form, name="sales.xlsx")
    app = made_app()
    published = TaskTest(app, epoch=1).run(body)
    names = ["sales.xlsx", "sales-2.xlsx", "sales-3.xlsx"]
    assert [(file["name"], file["rows"]) for file in published["files"]] == list(
        zip(names, [2, 2, 1], strict=True)
    )
    assert [(row.number, row.name, row.rows) for row in audit()] == list(
        zip([1, 2, 3], names, [2, 2, 1], strict=True)
    )
    assert TaskTest(app, epoch=2).run(body) == {
        "files": [file | {"duplicated": True} for file in published["files"]],
        "duplicated": True,
    }


@pytest.mark.slow
def test_an_empty_result_may_be_no_file(folders: Path) -> None:
    published = TaskTest(made_app()).run(order(folders, rows=0, empty="nothing"))
    assert published == {"files": [], "duplicated": False}
    assert list((folders / "in").iterdir()) == []
    (row,) = audit()
    assert (row.state, row.size) == (State.SUCCEEDED, 0)


@pytest.mark.slow
def test_a_cancelled_attempt_leaves_nothing_at_the_destination(folders: Path) -> None:
    test = TaskTest(made_app(), cancel_at=2)
    with pytest.raises(Cancelled):
        test.run(order(folders, rows=200_000))
    assert list((folders / "in").iterdir()) == []
    (row,) = audit()
    assert (row.state, row.error) == (State.FAILED, "the attempt was cancelled")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, wrong, text",
    [
        (UnreadableSource, {"tables": [{"sources": ["missing.parquet"]}]}, "missing.parquet"),
        (ConfigError, {"delivery": {"destination": "file:/nowhere/at/all"}}, "/nowhere/at/all"),
        (ConfigError, {"delivery": {"credentials": "acme"}}, "no credential 'acme'"),
        (InvalidMessage, {"tables": [{"sources": ["t.parquet"], "columns": [{"source": "x"}]}]}, "x"),
        (InvalidMessage, {"delivery": {"options": {"fast": True}}}, "delivery.options.fast"),
        (InvalidMessage, {"delivery": {"options": {"replace": 1}}}, "delivery.options.replace"),
        (InvalidMessage, {"delivery": {"options": {"if_gone": "wait"}}}, "delivery.options.if_gone"),
        (InvalidMessage, {}, "delivery: is missing"),
        (InvalidMessage, {"nmae": 1}, "nmae"),
    ],
)
def test_an_error_that_no_retry_helps_fails_at_once(
    folders: Path, kind: type[Exception], wrong: dict[str, Any], text: str
) -> None:
    app, body = made_app(), order(folders, **wrong)
    if not wrong:
        del body["delivery"]
    with pytest.raises(kind, match=text):
        TaskTest(app).run(body)
    assert issubclass(kind, permanent(app))
    (row,) = audit()
    assert (row.state, row.customer) == (State.FAILED, "acme")
    assert text in row.error
    assert list((folders / "in").iterdir()) == []


@pytest.mark.slow
def test_a_temporary_error_waits_for_another_attempt(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "deliver_file", functools.partial(deliver_file, tries=1))
    body = order(folders, delivery={"destination": "ftp://127.0.0.1:1/in"})
    for attempt, state in ((1, State.QUEUED), (5, State.FAILED)):
        with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
            TaskTest(made_app(), attempt=attempt, epoch=attempt).run(body)
        assert not isinstance(caught.value, permanent(made_app()))
        (row,) = audit()
        assert (row.state, row.attempts) == (state, attempt)


@pytest.mark.slow
def test_the_audit_keeps_no_secret_of_an_error(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable(f"{'x' * 970} PUT https://h/x?X-Amz-Signature=hunter2hunter2hunter2 failed")

    monkeypatch.setattr(publish, "deliver_file", refuse)
    with pytest.raises(Unavailable):
        TaskTest(made_app()).run(order(folders))
    (row,) = audit()
    assert row.error.startswith("Unavailable: xxx")
    assert "hunt" not in row.error


def permanent(app: App) -> tuple[type[BaseException], ...]:
    spec: TaskSpec = app.tasks["report.publish"]
    return spec.permanent


@pytest.mark.slow
def test_a_destination_outside_of_its_credentials_root_is_refused_at_once(folders: Path) -> None:
    known = Credentials({"acme": {"root": f"file:{folders}/in/acme"}})
    body = order(folders, delivery={"credentials": "acme"}, tables=[{"sources": ["missing.parquet"]}])
    with pytest.raises(InvalidMessage, match=r"delivery\.destination: .*root"):
        TaskTest(made_app(credentials=known)).run(body)
    (row,) = audit()
    assert row.state is State.FAILED
    assert list((folders / "in").iterdir()) == []


@pytest.mark.slow
def test_an_app_may_say_where_it_delivers_to(folders: Path) -> None:
    app = made_app(destinations=["s3://customers", f"file:{folders}/in"])
    TaskTest(app).run(order(folders))
    for elsewhere in (f"file:{folders}", f"file:{folders}/in/../out", "s3://other"):
        with pytest.raises(InvalidMessage, match=r"delivery\.destination"):
            TaskTest(app, task_id="other").run(order(folders, delivery={"destination": elsewhere}))
    assert {row.state for row in audit()} == {State.SUCCEEDED, State.FAILED}


@pytest.mark.slow
async def test_a_refused_login_is_permanent_and_shows_no_secret(folders: Path) -> None:
    server = FtpServer()
    async with server:
        known = Credentials({"acme": {"user": server.user, "password": "hunter2"}})
        app = made_app(credentials=known)
        body = order(folders, delivery={"destination": server.url, "credentials": "acme"})
        with pytest.raises(LoginRefused) as caught:
            await asyncio.to_thread(TaskTest(app).run, body)
        assert issubclass(LoginRefused, permanent(app))
        assert "hunter2" not in str(caught.value)
        (row,) = await rows()
        assert row.state is State.FAILED
        assert "hunter2" not in msgspec.json.encode(row).decode()


@pytest.mark.slow
async def test_the_audit_is_kept_in_redis_too(folders: Path) -> None:
    async with RedisServer() as server:
        app = made_app(config=load({"tasks_url": server.url}))
        await asyncio.to_thread(TaskTest(app).run, order(folders))
        (row,) = await rows(tasks_url=server.url)
        assert row.state is State.SUCCEEDED
        async with Services(load({"tasks_url": server.url})) as services:
            kept = Audit(services.registry(), services.clock)
            assert await kept.forget(DAY) == 0
            assert await kept.forget(DAY + dt.timedelta(days=1)) == 1
            assert await services.registry().list("reports/") == []


async def test_a_report_keeps_the_time_of_its_first_attempt(folders: Path) -> None:
    async with Services(load()) as services:
        kept = Audit(services.registry(), services.clock)
        assert await kept.ordered_at("t", 10.0) == 10.0
        assert await kept.ordered_at("t", 20.0) == 10.0


def test_a_misspelt_setting_of_the_task_is_refused() -> None:
    with pytest.raises(TypeError, match="tires"):
        made_app(tires=1)


def test_libraries_of_destinations_may_be_imported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    load_module = importlib.import_module

    def note(name: str, *package: str) -> ModuleType:
        imported.append(name)
        return load_module(name, *package)

    monkeypatch.setattr(importlib, "import_module", note)
    made_app(preload=["s3", "sftp", "ftpes", "https"])
    assert {
        "botocore.client",
        "holdfast.reports.sinks.http.sink",
        *(f"holdfast.reports.sinks.{kind}.sink" for kind in ("sftp", "ftp")),
    } <= {*imported}
    with pytest.raises(ConfigError, match=r"preload: 'scp'.*sftp"):
        made_app(preload=["scp"])


def test_orders_are_grouped_by_customer(folders: Path) -> None:
    body = Body(msgspec.json.encode(order(folders)))
    assert made_app().tasks["report.publish"].group_of(body) == "acme"


@pytest.mark.slow
async def test_of_two_attempts_at_once_the_later_one_delivers(folders: Path) -> None:
    body = from_plain(order(folders, rows=300_000))
    halting = PoolLimits(bytes_rate=Rate(per_s=1.0, burst=1 << 20))
    begun = asyncio.Event()
    async with Services(load()) as services, contextlib.AsyncExitStack() as stack:

        async def attempt(epoch: int, limits: PoolLimits | None) -> Published:
            publisher = await stack.enter_async_context(
                report_publisher(services.clock, services.registry(), Credentials(), limits)
            )
            ours = AuditedAttempt(task_id="t", ordered_at=1.0, attempt=epoch, epoch=epoch)
            return await publisher.publish(body, ours, lambda _: begun.set())

        earlier = asyncio.create_task(attempt(1, halting))
        await begun.wait()
        later = await attempt(2, None)
        earlier.cancel()
        await asyncio.wait([earlier])
        assert earlier.cancelled()
        data = (folders / "in" / NAME).read_bytes()
        assert hashlib.sha256(data).hexdigest() == later.files[0].sha256
        assert [path.name for path in (folders / "in").iterdir()] == [NAME]
        (row,) = await Audit(services.registry(), services.clock).day(DAY)
        assert (row.state, row.epoch, row.rows) == (State.SUCCEEDED, 2, 300_000)
