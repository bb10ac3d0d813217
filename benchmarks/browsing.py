"""Browsers of a console: what they ask for, and how they enter."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import aiohttp

FORM_TOKEN = re.compile(r'data-form-token="([0-9a-f]*)"')


class Operator:
    """Somebody who has entered a console with the token that it has printed."""

    def __init__(self, session: aiohttp.ClientSession, address: str, form_token: str) -> None:
        self.session = session
        self._address = address
        self._form_token = form_token

    async def click(self, path: str, **form: str) -> str:
        """Send a form of a page; returns where the answer leads. Raises RuntimeError if it is refused."""
        fields = {"form_token": self._form_token, **form}
        headers = {"Origin": self._address, "Sec-Fetch-Site": "same-origin"}
        async with self.session.post(path, data=fields, headers=headers, allow_redirects=False) as answer:
            if answer.status != 303:
                raise RuntimeError(f"POST {path} was answered with {answer.status}: {await answer.text()}")
            return answer.headers["Location"]


@contextlib.asynccontextmanager
async def entered(line: str) -> AsyncIterator[Operator]:
    """Enter the console whose address is in the line that it has printed."""
    entry = line.removeprefix("console: ").strip()
    address = entry.partition("/enter")[0]
    connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(address, connector=connector, cookie_jar=jar) as session:
        async with session.get(entry, headers={"Accept": "text/html"}) as answer:
            answer.raise_for_status()
        async with session.get("/", headers={"Accept": "text/html"}) as answer:
            found = FORM_TOKEN.search(await answer.text())
        if found is None:
            raise RuntimeError(f"{address} has no form token for who has entered")
        yield Operator(session, address, found[1])
