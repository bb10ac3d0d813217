"""``holdfast reports``: published without a queue, looked at before, and as a task on a node that is hurt."""

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from holdfast.config.sources import load
from holdfast.console.audit import AuditLog
from holdfast.errors import HoldfastError, NoRoom, Unavailable
from holdfast.reports import listing
from holdfast.reports import publish as publishing
from holdfast.reports.audit import Audit, Row
from holdfast.reports.deliver import deliver_file
from holdfast.reports.deliver_plan import MARK_BYTES
from holdfast.reports.sinks.file.sink import FileUpload
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.wiring.services import Services
from simulator.proxies import TcpFaults
from simulator.servers import FtpServer
from tests.cli.test_node import PATIENCE_S, Process
from tests.command_line import Holdfast
from tests.reports.making import stored

ROWS = 3
ROW = "reports/days/2024-02-29/night/000001"
APP = """
from holdfast import App
from holdfast.reports.deliver_pool import PoolLimits
from holdfast.common.rate import Rate
from holdfast.common.retry import Backoff
from holdfast.reports import publish_reports

app = App("reports")
publish_reports(
    app,
    limits=PoolLimits(bytes_rate=Rate(per_s=2_500_000, burst=9_000_000)),
    backoff=Backoff(0.1, 0.1),
)
"""


@pytest.fixture
def source(place: Path) -> str:
    (place / "out").mkdir()
    return stored(place, {"id": range(ROWS), "t": ["a", "=b", None]}, "sales.parquet")


def test_a_file_is_published_without_a_queue(place: Path, holdfast: Holdfast, source: str) -> None:
    done = holdfast("reports", "publish", source, "./out", "--option", "delimiter=;", "--column", "id=Number")
    assert done.code == 0, done.err
    assert (place / "out/sales.csv").read_text() == "Number\n0\n1\n2\n"
    assert "sales.csv: 13 bytes, 3 rows, sha256" in done.out
    assert not (place / "holdfast.db").exists()


@pytest.mark.nightly
def test_what_is_recorded_and_forgotten_is_in_the_audit_log(
    place: Path, holdfast: Holdfast, arrange: Any, source: str
) -> None:
    assert holdfast("reports", "publish", source, "./out").code == 0
    assert not (place / "holdfast.db").exists(), "no cluster hears of what isn't recorded"
    recorded = holdfast("reports", "publish", source, "./out", "--record", "--name", "again.csv")
    assert recorded.code == 0, recorded.err
    assert holdfast("reports", "forget", "9999-01-01").code == 0
    log = arrange(lambda services: AuditLog(services.registry(), services.clock, None).entries())
    assert {(entry.action, entry.subject, entry.outcome) for entry in log} == {
        ("publish a report", "customer sales", "done"),
        ("forget reports", "before 9999-01-01", "done"),
    }
    assert all(entry.who.endswith("(command line)") for entry in log)


@pytest.mark.nightly
def test_what_is_published_may_be_recorded(place: Path, holdfast: Holdfast, source: str) -> None:
    arguments = ("--format", "xlsx", "--customer", "acme", "--companion", "ok", "--record", "--json")
    (published,) = holdfast("reports", "publish", source, "./out", *arguments).lines
    (file,) = published["files"]
    (row,) = holdfast("reports", "status", "--json").lines
    assert (row["name"], row["state"], row["customer"]) == ("sales.xlsx", "succeed", "acme")
    assert (row["size"], row["rows"], row["sha256"]) == (file["size"], ROWS, file["sha256"])
    assert row["attempts"] == 1
    assert (place / "out/sales.xlsx.ok").read_bytes() == b""
    shown = holdfast("reports", "status", "--customer", "acme")
    assert file["sha256"][:12] in shown.out
    assert holdfast("reports", "status", "--customer", "other", "--json").lines == []
    assert "1 files" in holdfast("reports", "forget", "9999-01-01").out
    assert holdfast("reports", "status", "--json").lines == []


@pytest.mark.parametrize("error", [NoRoom("No space left on device"), Unavailable("a disk that is away")])
def test_what_can_t_be_published_leaves_no_part(
    place: Path, holdfast: Holdfast, source: str, monkeypatch: pytest.MonkeyPatch, error: HoldfastError
) -> None:
    seen = list[list[str]]()

    async def fail(self: FileUpload, sha256: str, *, read_back: bool = False) -> None:
        seen.append([each.name for each in (place / "out").iterdir()])
        raise error

    monkeypatch.setattr(FileUpload, "commit", fail)
    monkeypatch.setattr(publishing, "deliver_file", partial(deliver_file, tries=1))
    assert holdfast("reports", "publish", source, "./out").code != 0
    assert len(seen) == 1
    assert seen[0][0].endswith(".part"), "it was half-sent"
    assert list((place / "out").iterdir()) == []


def test_a_dry_run_sends_nothing(place: Path, holdfast: Holdfast, source: str) -> None:
    done = holdfast("reports", "publish", source, "./out", "--dry-run")
    assert done.code == 0, done.err
    assert list((place / "out").iterdir()) == []
    assert "'=b" in done.out
    assert "int64" in done.out
    assert "3 rows, 18 bytes" in done.out
    (found,) = holdfast("reports", "publish", source, "./out", "--dry-run", "--json").lines
    assert (found["size"], found["exact"]) == (18, True)


@pytest.mark.slow
def test_the_size_of_much_is_estimated(place: Path, holdfast: Holdfast) -> None:
    source = stored(place, {"id": [10**9] * 1_500_000}, "many.parquet", row_group_size=50_000)
    (found,) = holdfast("reports", "publish", source, "./out", "--dry-run", "--json").lines
    assert found["exact"] is False
    assert found["size"] == pytest.approx(16_500_003, rel=0.05)


def test_an_order_may_come_from_a_file(place: Path, holdfast: Holdfast, source: str) -> None:
    order = {"customer": "acme", "report": "sales", "name": "{customer}-{date}.csv", "date": "2024-02-29"}
    (place / "order.json").write_text(json.dumps(order))
    done = holdfast("reports", "publish", source, "./out", "--order", "order.json")
    assert done.code == 0, done.err
    assert (place / "out/acme-2024-02-29.csv").exists()


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["missing.parquet", "./out"], 1, "missing.parquet"),
        (["sales.parquet", "./nowhere"], 2, "nowhere doesn't exist"),
        (["sales.parquet", "./out", "--option", "delimiter"], 2, "NAME=VALUE"),
        (["sales.parquet", "./out", "--option", "delimter=;"], 1, "delimter"),
        (["sales.parquet", "./out", "--name", "../x"], 1, "name"),
        (["sales.parquet", "./out", "--credentials", "acme"], 2, "HOLDFAST_CREDENTIAL_ACME"),
        (["sales.parquet", "./out", "--order", "none.json"], 2, "none.json can't be read"),
        (["sales.parquet", "ftp://127.0.0.1:1/", "--dry-run"], 0, ""),
    ],
)
def test_a_wrong_order_is_refused_with_its_reason(
    place: Path, holdfast: Holdfast, source: str, arguments: list[str], code: int, said: str
) -> None:
    done = holdfast("reports", "publish", *arguments)
    assert (done.code, said in done.err) == (code, True), done.err
    assert list((place / "out").iterdir()) == []


@pytest.mark.slow
def test_what_nobody_has_begun_is_listed_too(place: Path, holdfast: Holdfast, source: str) -> None:
    ordered(place, 3, f"file:{place}/out")
    send = ("tasks", "send", "reports", "report.publish", "--file", "order.json")
    assert holdfast(*send, "--trace-id", "waits", "--group", "acme").code == 0
    assert holdfast("reports", "status", "--json").lines == []
    (row,) = holdfast("reports", "status", "--of", "reports", "--json").lines
    assert (row["trace"], row["customer"], row["state"]) == ("waits", "acme", "queued")
    assert holdfast("tasks", "cancel", "reports", "waits").code == 0
    ended = holdfast("reports", "status", "--of", "reports", "--json")
    assert ended.code == 1
    assert [(row["trace"], row["state"]) for row in ended.lines] == [("waits", "failed")]
    assert "cancelled" in ended.lines[0]["error"]
    unknown = holdfast("reports", "status", "--of", "report")
    assert (unknown.code, "no tasks of an app 'report' are known" in unknown.err) == (1, True)
    day_before = ("--date", "2024-02-28")
    assert holdfast("reports", "status", "--of", "reports", *day_before, "--json").lines == []


def test_where_many_wait_it_says_that_some_are_left_out(
    holdfast: Holdfast, arrange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(services: Services) -> None:
        await services.task_store("reports").queue([Task(f"w{n}", "report.publish") for n in range(3)])

    arrange(leave)
    monkeypatch.setattr(listing, "TASKS_READ_MAX", 2)
    found = holdfast("reports", "status", "--of", "reports", "--json")
    assert ([row["trace"] for row in found.lines], found.code) == (["w0", "w1"], 0)
    assert "There may be more" in found.err


def test_a_row_that_its_slot_could_not_end_stands_as_its_task(
    place: Path, holdfast: Holdfast, arrange: Any
) -> None:
    left = Row(
        app="reports", trace="gone", customer="acme", report="sales", day=dt.date(2024, 2, 29),
        destination="", name="sales.csv",
    )  # fmt: skip

    async def leave(services: Services) -> None:
        await Audit(services.registry(), services.clock).keep(left)
        store = services.task_store("reports")
        await store.queue([Task("gone", "report.publish")])
        await store.cancel("gone", "too late")

    arrange(leave)
    (row,) = holdfast("reports", "status", "--date", "2024-02-29", "--json").lines
    assert (row["state"], row["error"]) == ("failed", "cancelled: too late")


# --- on a node


@pytest.fixture
def node(place: Path) -> Iterator[Callable[..., Process]]:
    """Start a node of an app that publishes a little over 8 MiB of a file at once, and then slowly."""
    (place / "publishing.py").write_text(APP)
    started: list[Process] = []

    def run(slots: int = 1) -> Process:
        started.append(Process("publishing:app", "--name", "a", "--set", f"task_slots={slots}"))
        started[-1].wait_for("node runs")
        return started[-1]

    yield run
    for process in started:
        process.child.kill()
        process.join()


@pytest.fixture
def ftp_server() -> Iterator[FtpServer]:
    server = FtpServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def ordered(place: Path, rows: int, destination: str, **delivery: Any) -> dict[str, Any]:
    """Write an order of ``rows`` rows to ``order.json``."""
    order = {
        "customer": "acme",
        "report": "sales",
        "tables": [{"sources": [stored(place, {"id": [10**9] * rows})]}],
        "name": "sales.csv",
        "date": "2024-02-29",
        "delivery": {"destination": destination, "companions": ["ok"], **delivery},
    }
    (place / "order.json").write_text(json.dumps(order))
    return order


def row_once(
    done: Callable[[Row], bool], at_each: Callable[[Row], None] = lambda _: None
) -> Callable[[Services], Awaitable[Row]]:
    """The file's row, once it is so; ``at_each`` looks at all that stand before."""

    async def wait(services: Services) -> Row:
        version = 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                document = await services.registry().changed(ROW, version, PATIENCE_S)
                assert document is not None
                version = document.version
                row = msgspec.json.decode(document.body, type=Row)
                at_each(row)
                if done(row):
                    return row

    return wait


@pytest.mark.slow
def test_a_worker_killed_in_the_midst_of_a_file_leaves_no_torn_one(
    place: Path, holdfast: Holdfast, arrange: Any, node: Callable[[], Process]
) -> None:
    (place / "out").mkdir()
    rows = 2_700_000
    body = "id\n" + "1000000000\n" * rows
    ordered(place, rows, f"file:{place}/out")
    process = node()
    holdfast("tasks", "send", "reports", "report.publish", "--file", "order.json", "--trace-id", "night")

    def is_never_torn(row: Row) -> None:
        if (place / "out/sales.csv").exists():
            assert (place / "out/sales.csv").stat().st_size == len(body)

    half_sent = arrange(row_once(lambda row: bool(row.record and row.record.marks), is_never_torn))
    assert half_sent.state is State.RUNNING
    (forks,) = [child for child in psutil.Process(process.child.pid).children() if child.children()]
    for slot in forks.children():
        slot.kill()
    ended = arrange(row_once(lambda row: row.state is State.SUCCEEDED, is_never_torn))
    assert (ended.attempts, ended.rows, ended.size) == (2, rows, len(body))
    assert (place / "out/sales.csv").read_text() == body
    assert sorted(path.name for path in (place / "out").iterdir()) == ["sales.csv", "sales.csv.ok"]
    assert half_sent.record.marks[0].size >= MARK_BYTES
    (row,) = holdfast("reports", "status", "--date", "2024-02-29", "--json").lines
    assert (row["state"], row["attempts"], row["trace"]) == ("succeed", 2, "night")
    assert process.end() == 0
    (task,) = holdfast("tasks", "show", "reports", "night", "--json").lines
    assert (task["state"], task["value"]["files"][0]["sha256"]) == ("succeed", row["sha256"])


@pytest.mark.slow
def test_a_cancelled_task_cleans_up_at_the_server(
    place: Path,
    holdfast: Holdfast,
    arrange: Any,
    node: Callable[[], Process],
    ftp_server: FtpServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = {"user": ftp_server.user, "password": ftp_server.password}
    monkeypatch.setenv("HOLDFAST_CREDENTIAL_ACME", json.dumps(login))
    ordered(place, 2_700_000, ftp_server.url, credentials="acme")
    process = node()
    holdfast("tasks", "send", "reports", "report.publish", "--file", "order.json", "--trace-id", "night")
    arrange(row_once(lambda row: bool(row.record and row.record.marks)))
    assert [path.suffix for path in ftp_server.files.iterdir()] == [".part"]
    assert holdfast("tasks", "cancel", "reports", "night").code == 0
    row = arrange(row_once(lambda row: row.state is State.FAILED))
    assert row.error == "the attempt was cancelled"
    assert list(ftp_server.files.iterdir()) == []
    assert process.end() == 0
    assert holdfast("reports", "status", "--date", "2024-02-29").code == 1


@pytest.mark.nightly
async def test_a_customer_has_so_many_connections_whatever_slots_are_free(
    place: Path, node: Callable[..., Process], ftp_server: FtpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four slots hang at the server of a customer with five orders; another's go by them."""
    login = {"user": ftp_server.user, "password": ftp_server.password}
    monkeypatch.setenv("HOLDFAST_CREDENTIAL_ACME", json.dumps(login))
    (place / "out").mkdir()
    async with TcpFaults(ftp_server.port) as proxy, Services(load()) as services:
        proxy.freeze()
        acme = ordered(place, ROWS, f"ftp://127.0.0.1:{proxy.port}", credentials="acme")
        other = acme | {"customer": "other", "delivery": {"destination": f"file:{place}/out"}}
        producer, store = make_producer(services, "reports"), services.task_store("reports")

        async def order(body: dict[str, Any], count: int) -> list[str]:
            bodies = [body | {"name": f"{number}.csv"} for number in range(count)]
            return await producer.send([Order(task_type="report.publish", body=each) for each in bodies])

        async def end(traces: list[str]) -> set[tuple[State, int]]:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    tasks = [await store.get(trace) for trace in traces]
                    if all(task is not None and task.ended for task in tasks):
                        return {(task.state, task.attempts) for task in tasks if task is not None}
                    await asyncio.sleep(0.02)

        process = await asyncio.to_thread(node, 4)
        slow = await order(acme, 5)
        async with asyncio.timeout(PATIENCE_S):
            while proxy.connections < 2:  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.02)
        assert await end(await order(other, 6)) == {(State.SUCCEEDED, 1)}
        assert (proxy.connections, proxy.accepted) == (2, 2)
        proxy.thaw()
        assert await end(slow) == {(State.SUCCEEDED, 1)}
        assert proxy.accepted == 5
        assert len(list(ftp_server.files.glob("*.csv"))) == 5
        assert await asyncio.to_thread(process.end) == 0
