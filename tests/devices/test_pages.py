"""The console's pages of outboxes and devices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html import unescape
from typing import Literal

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect
from sqlalchemy import create_engine

from holdfast import App
from holdfast.config.settings import Config
from holdfast.console.audit import AuditLog
from holdfast.console.service import Console
from holdfast.devices import outboxes
from holdfast.devices.conformance.outbox_bench import Driver
from holdfast.devices.operator import DevicesOperator
from holdfast.devices.outboxes import (
    ABORT_ACTION,
    CANCEL_ACTION,
    PAUSE_ACTION,
    RESUME_ACTION,
    RETRY_ACTION,
    Outboxes,
)
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import LABEL
from holdfast.errors import Unavailable
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.wiring.services import Services
from tests.console.browser import Browser, running_console
from tests.console.chromium import PATIENCE_MS, PHONE_PX, opened

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
async def rollout(services: Services, store: OutboxStore) -> int:
    """A rollout to three devices, of which one is away and two were never heard of. One has a command
    more."""
    outbox = App("office").outbox("doors", shards=3)
    with create_engine(services.config.outbox_url).begin() as db:
        outbox.add(db, device="d1", command={"do": "unlock"})
        number = outbox.add_rollout(db, HOSTILE, ["d1", "d2", "d3"], {"v": 2})
    driver = Driver(store)
    await driver.open()
    driver.now = now = await store.now()
    for _ in range(2):
        await driver.take_turn(sendable=[], seen={"d2": now}, away={"d2"}, sweep=True)
    return number


@pytest.fixture
async def console(services: Services) -> AsyncIterator[Console]:
    async with running_console(services) as running:
        yield running


@pytest.fixture
async def operator(console: Console) -> AsyncIterator[Browser]:
    async with Browser(console, console.own_token) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.usefixtures("rollout")
async def test_devices_are_shown_with_why_they_are_stuck(operator: Browser) -> None:
    page = await operator.get("/devices")
    assert HOSTILE not in page.text
    assert HOSTILE in unescape(page.text)
    assert page.text.count("it is away") == 1
    stuck = await operator.get("/devices", outbox="doors", show="stuck")
    shown = [device for device in ("d1", "d2", "d3") if f"device={device}" in stuck.text]
    assert shown == ["d2"], "what only waits for its time is not stuck"
    assert "it is away" in (await operator.get("/devices", outbox="doors", show="away")).text
    one = await operator.get("/devices/one", outbox="doors", device="d1")
    assert one.text.count(">Cancel<") == 2
    assert "unlock" not in one.text.partition("<main")[2]
    assert (await operator.get("/devices/one", outbox="doors", device="d9")).status == 404
    assert (await operator.get("/devices", show="wat")).status == 400


@pytest.mark.slow
@pytest.mark.usefixtures("rollout")
async def test_a_published_command_has_no_button_to_cancel_it(operator: Browser, store: OutboxStore) -> None:
    driver = Driver(store)
    await driver.open()
    driver.now = await store.now()
    await driver.take_turn()
    states = [command.state.value for command in await store.commands("doors", device="d1")]
    assert states == ["published", "scheduled"]
    one = await operator.get("/devices/one", outbox="doors", device="d1")
    assert one.text.count(">Cancel<") == 1
    assert "sent, and not answered" in one.text
    assert "<dd>one was sent, and its answer is awaited</dd>" in one.text
    stuck = await operator.get("/devices", outbox="doors", show="stuck")
    assert stuck.text.count("sent, and not answered") == 2


@pytest.mark.slow
async def test_devices_are_paused_and_commands_cancelled(
    services: Services, operator: Browser, store: OutboxStore, rollout: int
) -> None:
    await operator.get("/devices")
    done = await operator.post("/devices/pause", outbox="doors", device="d1")
    assert "d1 is paused" in done.text
    assert "it is paused" in done.text
    assert list(await store.paused("doors")) == ["d1"]
    assert "d1 goes on" in (await operator.post("/devices/resume", outbox="doors", device="d1")).text
    assert "is not paused" in (await operator.post("/devices/resume", outbox="doors")).text
    (first, _) = await store.commands("doors", device="d1")
    taken = await operator.post("/devices/cancel", outbox="doors", device="d1", command=first.id)
    assert f"command {first.id} is cancelled" in taken.text
    again = await operator.post("/devices/retry", outbox="doors", device="d1", command=first.id)
    assert f"nothing was done to {first.id}" in again.text
    unsure = await operator.post("/devices/abort", outbox="doors", rollout=rollout)
    assert "nothing more of the rollout will be sent: tick the box" in unsure.text
    aborted = await operator.post("/devices/abort", outbox="doors", rollout=rollout, confirm="yes")
    assert f"rollout {rollout} is aborted; 0 of 3 are done" in aborted.text
    assert "aborted</span>" in aborted.text
    assert (await store.rollouts("doors"))[0].aborted
    log = AuditLog(services.registry(), services.clock, None)
    entries = {(entry.action, entry.subject) for entry in await log.entries()}
    assert entries == {
        (PAUSE_ACTION, "doors"),
        (RESUME_ACTION, "doors"),
        (CANCEL_ACTION, str(first.id)),
        (RETRY_ACTION, str(first.id)),
        (ABORT_ACTION, f"doors/{rollout}"),
    }


@pytest.mark.nightly
async def test_the_newest_rollouts_are_shown_however_many_there_were(
    services: Services, operator: Browser, store: OutboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "ROLLOUTS_MAX", 2)
    outbox = App("office").outbox("doors", shards=3)
    with create_engine(services.config.outbox_url).begin() as db:
        numbers = [outbox.add_rollout(db, f"plan-{n}", ["d1"], {"v": n}) for n in range(3)]
    page = await operator.get("/devices", outbox="doors")
    assert [f"plan-{n}" in page.text for n in range(3)] == [False, True, True]
    aborted = await operator.post("/devices/abort", outbox="doors", rollout=numbers[-1], confirm="yes")
    assert f"rollout {numbers[-1]} is aborted" in aborted.text
    view = await Outboxes(store).view("doors")
    assert [each.id for each in view.rollouts] == numbers[1:]


@pytest.mark.usefixtures("rollout")
async def test_the_status_counts_waiting_commands_and_names_pauses(
    services: Services, store: OutboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Member(name, f"node-{name}", "http://n", load=Load(offers=("doors",))) for name in ("a", "b")]
    table = await DevicesOperator().status(services, members, [Claim(f"{LABEL}doors/0", "a", 1)])
    assert table.columns == ["outbox", "node", "shards", "commands waiting", "paused"]
    waiting = str(await store.count_waiting("doors", 100))
    assert table.rows == [["doors", "node-a", 1, waiting, ""], ["doors", "node-b", 0, waiting, ""]]
    assert int(waiting) > 1
    await store.pause("doors", "d1")
    monkeypatch.setattr("holdfast.devices.operator.WAITING_MAX", 1)
    table = await DevicesOperator().status(services, members[:1], [])
    assert table.rows == [["doors", "node-a", 0, "1 or more", "1 of its devices"]]


@pytest.mark.slow
@pytest.mark.usefixtures("rollout")
async def test_an_error_is_shown_without_secrets(operator: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: Outboxes, outbox: str) -> None:
        raise Unavailable("postgresql://office:hunter2@db.example/office is away")

    monkeypatch.setattr(Outboxes, "view", away)
    page = await operator.get("/devices", outbox="doors")
    assert ("db.example/office is away" in page.text, "hunter2" in page.text) == (True, False)


@pytest.mark.slow
@pytest.mark.usefixtures("rollout")
async def test_a_reader_changes_nothing(console: Console, store: OutboxStore) -> None:
    async with Browser(console) as reader:
        page = await reader.get("/devices", outbox="doors")
        assert "Pause" not in page.text
        for path in ("pause", "resume", "retry", "cancel", "abort"):
            assert (await reader.post(f"/devices/{path}", outbox="doors")).status == 403
    async with Browser(console, console.own_token) as operator:
        forged = await operator.post("/devices/pause", outbox="doors", form_token="0" * 64)
        assert forged.status == 403
    assert await store.paused("doors") == {}


async def test_without_an_outbox_the_page_says_which_setting_names_one(tmp_path: object) -> None:
    config = Config(url=f"sqlite:///{tmp_path}/holdfast.db")
    async with Services(config) as services, running_console(services) as console, Browser(console) as reader:
        page = await reader.get("/devices")
        assert (page.status, "outbox_url" in page.text) == (200, True)


@pytest.mark.nightly
@pytest.mark.usefixtures("rollout")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_have_no_serious_fault_of_accessibility(
    chromium: Chromium, console: Console, scheme: Literal["light", "dark"]
) -> None:
    async with opened(chromium, console, scheme, PHONE_PX) as tab:
        for path in ("/devices", "/devices/one?outbox=doors&device=d1"):
            await tab.open(path)
            assert await tab.serious_faults() == []
            assert await tab.width_px() <= PHONE_PX


@pytest.mark.nightly
@pytest.mark.usefixtures("rollout")
async def test_open_pages_follow_and_keep_what_was_ticked(
    chromium: Chromium, console: Console, store: OutboxStore
) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/devices")
        sure = tab.page.get_by_role("checkbox")
        await sure.check()
        await store.pause("doors", "d3")
        row = tab.page.get_by_role("row").filter(has=tab.page.get_by_role("rowheader", name="d3"))
        await expect(row).to_contain_text("paused", timeout=PATIENCE_MS)
        await expect(sure).to_be_checked()
        await tab.open("/devices/one?outbox=doors&device=d2")
        await store.pause("doors", "d2")
        await expect(tab.page.locator("#device")).to_contain_text("paused", timeout=PATIENCE_MS)
