"""The pages in a real browser: they run under their content policy, can be used by everybody, and follow the
cluster while they are open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from holdfast.console.service import Console
from holdfast.testing import NodeForTests
from simulator.servers import programs
from tests.console.conftest import HOSTILE

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
SERIOUS = ("serious", "critical")
PATIENCE_MS = 30_000.0
PHONE_PX = 360


def rules_of_accessibility() -> str:
    """axe-core, as one script."""
    return (programs.INSTALLED / "axe-core/node_modules/axe-core/axe.min.js").read_text()


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    """A browser without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=programs.find("chromium"))
        yield browser
        await browser.close()


class Tab:
    """A page of the console, and what went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._check)

    def _check(self, request: Any) -> None:
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.faults.append(f"asks another host: {request.url}")

    async def open(self, path: str) -> None:
        """Open a page, and wait until it hears what happens, if it shows anything of it."""
        response = await self.page.goto(self.address + path)
        assert response is not None
        assert response.status == 200, path
        if await self.page.locator("[data-live]").count():
            await expect(self.page.locator("#connection")).to_have_text("Live", timeout=PATIENCE_MS)


@contextlib.asynccontextmanager
async def opened(
    chromium: Browser,
    console: Console,
    scheme: Literal["light", "dark"] = "light",
    width: int = 1200,
    *,
    operates: bool = True,
) -> AsyncIterator[Tab]:
    """Have a tab open, of somebody who has entered with the printed token unless they only read."""
    context = await chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    tab = Tab(await context.new_page(), console.address)
    if operates:
        await tab.page.goto(f"{console.address}/enter?token={console.own_token}")
    yield tab
    await context.close()
    assert tab.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_has_a_serious_fault_of_accessibility_or_breaks_its_policy(
    chromium: Browser, console: Console, scheme: Literal["light", "dark"]
) -> None:
    rules = rules_of_accessibility()
    async with opened(chromium, console, scheme) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            await tab.page.evaluate(rules)
            found = await tab.page.evaluate("axe.run()")
            assert found["passes"], name
            serious = [
                (fault["id"], [node["html"] for node in fault["nodes"]])
                for fault in found["violations"]
                if fault["impact"] in SERIOUS
            ]
            assert serious == [], name


async def test_no_page_is_wider_than_a_phone(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console, width=PHONE_PX) as tab:
        for name, path in PAGES.items():
            await tab.open(path)
            width = await tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE_PX, name


async def test_all_that_can_be_done_is_reached_by_keyboard(chromium: Browser, console: Console) -> None:
    reached = """() => {
        const focused = document.activeElement
        return focused === document.body ? null : focused.outerHTML.slice(0, 200)
    }"""
    wanted = """() => [...document.querySelectorAll(
        'a[href], button, summary, select, input:not([type=hidden]), textarea'
    )].filter(element => element.checkVisibility()).map(element => element.outerHTML.slice(0, 200))"""
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


async def test_a_stream_is_paused_and_resumed_by_its_buttons(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/stream?key=cameras%2Ffront")
        await tab.page.get_by_role("button", name="Pause", exact=True).click()
        await expect(tab.page.locator("#stream")).to_contain_text("parked: paused", timeout=PATIENCE_MS)
        await tab.page.get_by_role("button", name="Resume", exact=True).click()
        await expect(tab.page.locator("#stream")).to_contain_text("free to run again", timeout=PATIENCE_MS)


async def test_an_open_list_shows_a_stream_that_begins(
    chromium: Browser, console: Console, node: NodeForTests
) -> None:
    async with opened(chromium, console, operates=False) as tab:
        await tab.open("/streams")
        node.stream("cameras").send({"camera": "just-begun", "frame": 0})
        await expect(tab.page.locator("#streams")).to_contain_text("cameras/just-begun", timeout=PATIENCE_MS)


async def test_who_only_reads_sees_no_buttons_that_change_something(
    chromium: Browser, console: Console
) -> None:
    async with opened(chromium, console, operates=False) as tab:
        await tab.open("/stream?key=cameras%2Ffront")
        await expect(tab.page.get_by_role("button", name="Pause")).to_have_count(0)


async def test_a_hostile_key_is_text(chromium: Browser, console: Console) -> None:
    async with opened(chromium, console) as tab:
        await tab.open("/streams")
        await expect(tab.page.locator("#streams")).to_contain_text(f"cameras/{HOSTILE}", timeout=PATIENCE_MS)
        await tab.page.get_by_role("link", name=f"cameras/{HOSTILE}").click()
        await expect(tab.page.locator("h1")).to_have_text(f"cameras/{HOSTILE}")


async def test_seven_tabs_hear_what_happens(chromium: Browser, console: Console, node: NodeForTests) -> None:
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
