"""A real browser on the pages of a console."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from holdfast.console.service import Console
from simulator.servers import programs

SERIOUS = ("serious", "critical")
PATIENCE_MS = 30_000.0
PHONE_PX = 360
RULES = programs.INSTALLED / "axe-core/node_modules/axe-core/axe.min.js"


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

    async def serious_faults(self) -> list[tuple[str, list[str]]]:
        """What axe-core finds on the page that keeps somebody from using it: the rule, and where."""
        await self.page.evaluate(RULES.read_text())
        found = await self.page.evaluate("axe.run()")
        assert found["passes"], "it looked at nothing"
        return [
            (fault["id"], [node["html"] for node in fault["nodes"]])
            for fault in found["violations"]
            if fault["impact"] in SERIOUS
        ]

    async def width_px(self) -> int:
        """How wide the page is."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth"))


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
