"""What the console shows of reports, by page and by API."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Browser as Chromium

from holdfast.config.settings import Config
from holdfast.console.service import Console
from holdfast.errors import Unavailable
from holdfast.extend import Task, TaskState
from holdfast.reports import listing
from holdfast.reports.audit import TASK_TYPE, Audit, Row
from holdfast.reports.listing import LEFT_OUT
from holdfast.tasks.discovery import Directory, NodeEntry, announced
from holdfast.wiring.services import Services
from tests.console.browser import Browser, running_console
from tests.console.chromium import PHONE_PX, opened

DAY = dt.date(2024, 2, 29)
HOSTILE = "<script>alert(1)</script>"
FILES = 103


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """A day with many files, one of them failed, one of a hostile customer; and a report that waits."""
    async with Services(Config(url=f"sqlite:///{tmp_path}/holdfast.db")) as services:
        audit = Audit(services.registry(), services.clock)
        for number in range(FILES):
            row = Row(
                app="reports",
                trace=f"t{number:03}",
                customer=HOSTILE if number == 1 else "acme",
                report="sales",
                day=DAY,
                destination="sftp://files.acme.example/in",
                name=f"sales-{number}.csv",
                state=TaskState.FAILED if number == 0 else TaskState.SUCCEEDED,
                ended_at=1709164800.0,
                size=1_000_000,
                rows=10,
                sha256="ab" * 32,
                attempts=2,
                error="the disk is full" if number == 0 else "",
            )
            await audit.keep(row)
        await services.task_store("reports").queue([Task("waits", TASK_TYPE, group="globex")])
        yield services


@pytest.fixture
async def console(services: Services) -> AsyncIterator[Console]:
    async with running_console(services) as running:
        yield running


@pytest.fixture
async def reader(console: Console) -> AsyncIterator[Browser]:
    async with Browser(console, console.own_token) as opened:
        yield opened


async def test_the_files_of_a_day_are_shown_with_where_they_went_and_why_they_failed(reader: Browser) -> None:
    page = await reader.get("/reports?date=2024-02-29")
    assert page.status == 200
    for said in ("sales-0.csv", "sftp://files.acme.example/in", "the disk is full", "/task?app=reports"):
        assert said in page.text, said
    assert HOSTILE not in page.text
    assert "sales-102.csv" not in page.text
    later = await reader.get("/reports?date=2024-02-29&from=100")
    assert "sales-102.csv" in later.text


async def test_files_are_found_by_state_and_customer(reader: Browser) -> None:
    failed = await reader.get("/reports?date=2024-02-29&state=failed")
    assert ("sales-0.csv" in failed.text, "sales-2.csv" in failed.text) == (True, False)
    nobody = await reader.get("/reports?date=2024-02-29&customer=nobody")
    assert "None was ordered for this day" in nobody.text


@pytest.mark.slow
async def test_reports_that_no_node_has_begun_are_shown_for_their_app(reader: Browser) -> None:
    assert "globex" not in (await reader.get("/reports")).text
    assert "globex" in (await reader.get("/reports?app=reports")).text


@pytest.mark.parametrize("app", ["nobody", "no app", "../../x"])
async def test_no_store_is_opened_for_an_app_of_which_nothing_is_known(
    services: Services, reader: Browser, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    opened, task_store = [], Services.task_store

    def noted(self: Services, name: str) -> Any:
        opened.append(name)
        return task_store(self, name)

    monkeypatch.setattr(Services, "task_store", noted)
    assert "are known" in (await reader.get("/reports", app=app)).text
    assert (await reader.get("/api/v1/reports", app=app)).status == 404
    assert app not in opened


async def test_an_app_is_known_that_its_nodes_have_announced(
    services: Services, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(self: Services) -> list[str]:
        return []

    monkeypatch.setattr(Services, "task_apps", none)  # as services that can't list them
    assert (await reader.get("/api/v1/reports", app="reports")).status == 404
    entry = NodeEntry("lab-1", "", (TASK_TYPE,))
    directory = Directory(services.registry(), "reports", services.clock)
    await directory.change(lambda listing: announced(listing, "m1", entry, ["m1"], {}))
    found = json.loads((await reader.get("/api/v1/reports", app="reports")).text)
    assert [file["customer"] for file in found["files"]] == ["globex"]


async def test_what_fails_is_told_without_secrets(reader: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: Audit, day: dt.date) -> None:
        raise Unavailable("redis://office:hunter2@db.example is away")

    monkeypatch.setattr(Audit, "day", away)
    page = await reader.get("/reports")
    assert ("db.example is away" in page.text, "hunter2" in page.text) == (True, False)


@pytest.mark.slow
async def test_where_many_wait_some_are_left_out_and_that_is_told(
    services: Services, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await services.task_store("reports").queue([Task(f"w{n}", TASK_TYPE, group="globex") for n in range(3)])
    complete = json.loads((await reader.get("/api/v1/reports", app="reports")).text)
    assert (complete["total"], complete["complete"]) == (4, True)
    assert LEFT_OUT not in (await reader.get("/reports", app="reports")).text
    monkeypatch.setattr(listing, "TASKS_READ_MAX", 3)
    cut = json.loads((await reader.get("/api/v1/reports", app="reports")).text)
    assert (cut["total"], cut["complete"]) == (3, False)
    assert LEFT_OUT in (await reader.get("/reports", app="reports")).text


@pytest.mark.slow
async def test_tasks_of_rows_are_looked_at_together(
    services: Services, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, count = dt.date(2024, 3, 1), listing.GETS_AT_ONCE
    audit, store = Audit(services.registry(), services.clock), services.task_store("reports")
    for number in range(count):
        trace = f"run{number:03}"
        row = Row(app="reports", trace=trace, customer="acme", report="r", day=day, destination="", name="f")
        await audit.keep(row)
        await store.queue([Task(trace, TASK_TYPE)])
    await store.cancel("run007", "too late")
    get, all_asked, asking = type(store).get, asyncio.Event(), 0

    async def together(self: Any, trace: str) -> Any:
        nonlocal asking
        asking += 1
        if asking == count:
            all_asked.set()
        await all_asked.wait()
        return await get(self, trace)

    monkeypatch.setattr(type(store), "get", together)
    async with asyncio.timeout(30):
        page = await reader.get("/api/v1/reports", date="2024-03-01", state="failed")
    assert [file["trace"] for file in json.loads(page.text)["files"]] == ["run007"]


@pytest.mark.parametrize("query", ["date=yesterday", "date=0001-01-01", "date=9999-12-31", "state=lost"])
async def test_a_question_that_makes_no_sense_is_refused(reader: Browser, query: str) -> None:
    assert (await reader.get(f"/reports?{query}")).status == 400


async def test_the_api_lists_files_in_parts(reader: Browser) -> None:
    page = await reader.get("/api/v1/reports?date=2024-02-29&offset=100&limit=2")
    found = json.loads(page.text)
    assert found["total"] == FILES
    assert [file["name"] for file in found["files"]] == ["sales-100.csv", "sales-101.csv"]
    page = await reader.get("/api/v1/reports?date=2024-02-29&state=failed")
    (failed,) = json.loads(page.text)["files"]
    assert (failed["trace"], failed["error"]) == ("t000", "the disk is full")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_has_no_serious_fault_of_accessibility(
    chromium: Chromium, console: Console, scheme: Literal["light", "dark"]
) -> None:
    async with opened(chromium, console, scheme, PHONE_PX) as tab:
        await tab.open("/reports?date=2024-02-29")
        assert await tab.serious_faults() == []
        assert await tab.width_px() <= PHONE_PX
