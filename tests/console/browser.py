"""What a browser does with a console: it keeps its cookie, sends what browsers send, and hears the events."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from html import unescape
from typing import Any, NamedTuple, Self

import aiohttp
from multidict import CIMultiDict

from holdfast.console.service import Console, ConsoleSettings
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log

PATIENCE_S = 30.0
FORM_TOKEN = re.compile(r'data-form-token="([0-9a-f]*)"')


@contextlib.asynccontextmanager
async def running_console(services: Services) -> AsyncIterator[Console]:
    """Run a console on loopback."""
    console = Console(services, ConsoleSettings(port=0), Log())
    await console.start()
    try:
        yield console
    finally:
        await console.stop()


class Answer(NamedTuple):
    """What came back."""

    status: int
    text: str
    headers: Mapping[str, str]


class Browser:
    """A browser that has the console open. ``token`` is the one that it enters with, if any."""

    def __init__(self, console: Console, token: str = "") -> None:
        self.console = console
        self.token = token
        self.form_token = ""
        self.session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(
            self.console.address,
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            timeout=aiohttp.ClientTimeout(PATIENCE_S),
            connector=aiohttp.TCPConnector(limit=0),
        )
        if self.token:
            await self.get("/enter", token=self.token)
        else:
            await self.get("/")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
        """Open a page."""
        sent = CIMultiDict({"Accept": "text/html"})
        sent.extend(headers or {})
        async with self.session.get(path, params=query, headers=sent) as response:
            text = await response.text(errors="replace")  # a picture is none
            if (found := FORM_TOKEN.search(text)) is not None:
                self.form_token = found[1]
            return Answer(response.status, text, response.headers)

    async def post(
        self, path: str, *, headers: Mapping[str, str | None] | None = None, **form: Any
    ) -> Answer:
        """Send a form, as a page of the console does. A header that is None isn't sent."""
        sent = {
            "Accept": "text/html",
            "Origin": self.console.address,
            "Sec-Fetch-Site": "same-origin",
            **(headers or {}),
        }
        fields = {"form_token": self.form_token, **form}
        body = aiohttp.FormData([(name, value) for name, value in fields.items() if value is not None])
        given = {name: value for name, value in sent.items() if value is not None}
        async with self.session.post(path, data=body, headers=given) as response:
            return Answer(response.status, await response.text(), response.headers)

    @contextlib.asynccontextmanager
    async def events(self) -> AsyncIterator[aiohttp.ClientResponse]:
        """Have a stream of events open."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self.session.get("/events", timeout=timeout) as response:
            yield response

    async def until(self, text: str, path: str, **query: Any) -> Answer:
        """Open a page again whenever the console says that something has changed, until it has this text."""
        seen = ""
        try:
            async with asyncio.timeout(PATIENCE_S), self.events() as news:
                while True:
                    seen = unescape((answer := await self.get(path, **query)).text)
                    if text in seen:
                        return answer
                    if not await news.content.readline():
                        raise AssertionError("the events have ended")
        except TimeoutError:
            raise AssertionError(f"{path} never had {text!r}: {seen}") from None
