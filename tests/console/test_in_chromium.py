"""The pages in a real browser: they run under their content policy, can be used by everybody, and follow the
cluster while they are open."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, expect

from holdfast.console.service import Console
from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services
from tests.console.chromium import PATIENCE_MS, PHONE_PX, Tab, opened
from tests.console.conftest import HOSTILE, LET_GO

PAGES = {
    "overview": "/",
    "streams": "/streams",
    "stream": "/stream?key=cameras%2Flate",
    "hostile-stream": "/stream?key=cameras%2F%3Cscript%3Ealert(%22x%22)%3C%2Fscript%3E",
    "tasks": "/tasks",
    "dead-letters": "/dead-letters",
    "dead-letters-of-a-queue": "/dead-letters?queue=cameras",
    "audit": "/audit",
}


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_has_a_serious_fault_of_accessibility_or_breaks_its_policy(
    chromium: Browser, console: Console, scheme: Literal["light", "dark"]
) -> None:
    async with opened(chromium, console, scheme) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            assert await tab.serious_faults() == [], name


@pytest.mark.nightly
async def test_no_page_is_wider_than_a_phone(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console, width=PHONE_PX) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            assert await tab.width_px() <= PHONE_PX, name


@pytest.mark.nightly
async def test_on_a_phone_nothing_of_a_row_is_out_of_sight(chromium: Browser, console: Console) -> None:
    outside = """() => [...document.querySelectorAll("tbody td, tbody th")].filter(cell => {
        const box = cell.getBoundingClientRect()
        return box.width && (box.left < 0 || box.right > innerWidth)
    }).map(cell => cell.outerHTML)"""
    async with opened(chromium, console, width=PHONE_PX) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            assert await tab.page.evaluate(outside) == [], name
        await tab.open("/streams")
        late = tab.page.locator("tr", has_text="cameras/late")
        await expect(late).to_contain_text("waits for seq 1 to 3", timeout=PATIENCE_MS)
        label = await late.locator("td").last.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label == '"Status"'


@pytest.mark.nightly
async def test_words_are_broken_in_no_table_while_there_is_room(chromium: Browser, console: Console) -> None:
    broken = """() => [...document.querySelectorAll("td")].filter(cell => {
        const style = getComputedStyle(cell)
        return style.overflowWrap === "anywhere" && !cell.classList.contains("text")
    }).map(cell => cell.outerHTML)"""
    async with opened(chromium, console) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            assert await tab.page.evaluate(broken) == [], name


@pytest.mark.nightly
async def test_buttons_that_can_do_nothing_now_are_off_and_say_why(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/stream?key=cameras%2Ffront")
        resume = tab.page.get_by_role("button", name="Resume", exact=True)
        pause = tab.page.get_by_role("button", name="Pause", exact=True)
        await expect(resume).to_be_disabled()
        await expect(resume).to_have_attribute("title", "It isn't parked.")
        await expect(tab.page.get_by_role("button", name="Move")).to_be_disabled()
        await pause.click()
        await expect(pause).to_be_disabled(timeout=PATIENCE_MS)
        await resume.click()
        await expect(resume).to_be_disabled(timeout=PATIENCE_MS)
        await expect(pause).to_be_enabled()
        trace = node.client.send("mail.send", {"to": "x"})
        await asyncio.to_thread(node.outcome, trace)
        await tab.open(f"/task?app=shop&trace={trace}")
        await expect(tab.page.get_by_role("button", name="Cancel the task")).to_be_disabled()
        await expect(tab.page.get_by_role("button", name="Send it again")).to_be_disabled()


@pytest.mark.nightly
async def test_a_time_is_shown_in_the_readers_zone_and_in_utc_to_the_pointer(
    chromium: Browser, console: Console
) -> None:
    context = await chromium.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    tab = Tab(await context.new_page(), console.address)
    await tab.open("/stream?key=cameras%2Flate")
    time = tab.page.locator("time").first
    at = datetime.fromisoformat(str(await time.get_attribute("datetime")))
    await expect(time).to_have_text(f"{at.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M:%S}")
    assert await time.get_attribute("title") == f"{at:%Y-%m-%d %H:%M:%S} UTC"


@pytest.mark.nightly
async def test_all_that_can_be_done_is_reached_by_keyboard(chromium: Browser, console: Console) -> None:
    reached = """() => {
        const focused = document.activeElement
        return focused === document.body ? null : focused.outerHTML.slice(0, 200)
    }"""
    wanted = """() => [...document.querySelectorAll(
        'a[href], button, summary, select, input:not([type=hidden]), textarea'
    )].filter(element => element.checkVisibility() && !element.disabled)
        .map(element => element.outerHTML.slice(0, 200))"""
    async with opened(chromium, console) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            expected, seen = set(await tab.page.evaluate(wanted)), set()
            for _ in range(400):
                await tab.page.keyboard.press("Tab")
                if (html := await tab.page.evaluate(reached)) is None:
                    break
                seen.add(html)
            assert expected <= seen, name


@pytest.mark.slow
async def test_a_stream_is_paused_and_resumed_by_its_buttons(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/stream?key=cameras%2Ffront")
        await tab.page.get_by_role("button", name="Pause", exact=True).click()
        await expect(tab.page.locator("#stream")).to_contain_text("parked: paused", timeout=PATIENCE_MS)
        await tab.page.get_by_role("button", name="Resume", exact=True).click()
        await expect(tab.page.locator("#stream")).to_contain_text("resumed", timeout=PATIENCE_MS)


@pytest.mark.nightly
async def test_a_schedule_is_written_and_a_running_task_looked_at(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    trace = node.client.send("mail.hang", {})
    async with opened(chromium, console) as tab:
        await tab.open(f"/task?app=shop&trace={trace}")
        link = tab.page.get_by_role("link", name="Show where it is")
        await expect(link).to_be_visible(timeout=PATIENCE_MS)
        await link.click()
        await expect(tab.page.locator("pre")).to_contain_text("mail.hang", timeout=PATIENCE_MS)
        assert await tab.serious_faults() == []
        await tab.open("/tasks?app=shop")
        await tab.page.get_by_text("Add or change an entry").click()
        await tab.page.get_by_label("Name", exact=True).fill("weekly")
        await tab.page.get_by_label("Times (cron, five fields)").fill("0 6 * * 1")
        await tab.page.get_by_label("Type of the task").fill("mail.send")
        assert await tab.serious_faults() == []
        await tab.page.get_by_role("button", name="Set").last.click()
        await expect(tab.page.get_by_role("region", name="Schedule")).to_contain_text("0 6 * * 1")
        await tab.page.get_by_role("button", name="Remove weekly").click()
        await expect(tab.page.get_by_role("region", name="Schedule")).not_to_contain_text("0 6 * * 1")
    LET_GO.set()
    await asyncio.to_thread(node.outcome, trace)


@pytest.mark.nightly
async def test_a_ticked_dead_letter_is_sent_again_after_its_preview(
    chromium: Browser, console: Console, node: NodeForTests, services: Services
) -> None:
    node.stream("cameras").send({"camera": "ticked", "frame": 0, "bad": True})
    async with opened(chromium, console) as tab:
        await tab.open("/streams?text=ticked")
        await expect(tab.page.locator("#streams")).to_contain_text("cameras/ticked", timeout=PATIENCE_MS)
        await tab.open("/stream?key=cameras%2Fticked")
        await expect(tab.page.locator(".life")).to_contain_text("0:0 was set aside on ", timeout=PATIENCE_MS)
        await tab.page.get_by_role("link", name="Dead letters of this stream").click()
        [before] = await services.queue("cameras").dead_letters(10, "", "ticked")
        await tab.page.get_by_role("checkbox", name=before.id).check()
        await tab.page.get_by_role("button", name="Send again…").click()
        await expect(tab.page.locator("h1")).to_have_text("Send 1 again?")
        assert await tab.serious_faults() == []
        await tab.page.get_by_role("button", name="Send again").click()
        await expect(tab.page.locator(".notice")).to_contain_text("1 of 1 dead letters of cameras")
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not (after := await services.queue("cameras").dead_letters(10, "", "ticked")):
            pass
    assert after[0].at > before.at, "it was handled again, and failed again"


@pytest.mark.nightly
async def test_a_waiting_task_ends_by_its_button_with_the_reason_given(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    trace = node.client.send("mail.send", {"to": "x"}, delay_s=3600)
    async with opened(chromium, console) as tab:
        await tab.open(f"/task?app=shop&trace={trace}")
        await tab.page.get_by_label("Reason", exact=True).fill("ordered twice")
        await tab.page.get_by_role("button", name="Cancel the task").click()
        await expect(tab.page.locator("#task")).to_contain_text("ordered twice", timeout=PATIENCE_MS)
        await expect(tab.page.locator("#task .tag")).to_have_text("cancelled", timeout=PATIENCE_MS)
    assert "ordered twice" in (await asyncio.to_thread(node.outcome, trace)).detail


@pytest.mark.nightly
async def test_a_limit_that_is_set_on_the_page_is_shown_and_taken_off_again(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    await asyncio.to_thread(node.outcome, node.client.send("mail.send", {"to": "x"}))
    async with opened(chromium, console) as tab:
        limits = tab.page.get_by_role("region", name="Limits")
        for given, shown in (("3", "On all nodes3 "), ("0", "On all nodesno limit")):
            await tab.open("/tasks?app=shop")
            await limits.get_by_text("Change").click()
            await limits.get_by_label("On all nodes (0: none)").fill(given)
            await limits.get_by_role("button", name="Set").click()
            await expect(limits).to_contain_text(shown, timeout=PATIENCE_MS)


@pytest.mark.nightly
async def test_an_open_list_shows_a_stream_that_begins(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    async with opened(chromium, console, operates=False) as tab:
        await tab.open("/streams")
        node.stream("cameras").send({"camera": "just-begun", "frame": 0})
        await expect(tab.page.locator("#streams")).to_contain_text("cameras/just-begun", timeout=PATIENCE_MS)


@pytest.mark.nightly
async def test_who_only_reads_sees_no_buttons_that_change_something(
    chromium: Browser, console: Console
) -> None:
    async with opened(chromium, console, operates=False) as tab:
        await tab.open("/stream?key=cameras%2Ffront")
        await expect(tab.page.get_by_role("button", name="Pause")).to_have_count(0)


@pytest.mark.nightly
async def test_a_hostile_key_is_shown_as_plain_text(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/streams")
        await expect(tab.page.locator("#streams")).to_contain_text(f"cameras/{HOSTILE}", timeout=PATIENCE_MS)
        await tab.page.get_by_role("link", name=f"cameras/{HOSTILE}").click()
        await expect(tab.page.locator("h1")).to_have_text(f"cameras/{HOSTILE}")


@pytest.mark.nightly
async def test_seven_tabs_at_once_all_hear_what_happens(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    """Browsers allow six connections to a host, so tabs share one for events."""
    context = await chromium.new_context()
    tabs = [Tab(await context.new_page(), console.address) for _ in range(7)]
    for tab in tabs:
        await tab.open("/streams")
    node.stream("cameras").send({"camera": "seen-by-seven", "frame": 0})
    for tab in tabs:
        await expect(tab.page.locator("#streams")).to_contain_text(
            "cameras/seen-by-seven", timeout=PATIENCE_MS
        )
    await context.close()
    assert [fault for tab in tabs for fault in tab.faults] == []
