"""What errors of the HTTP client say to people."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from holdfast.common.http_errors import describe_http_error
from simulator.servers import certificate


@asynccontextmanager
async def untrusted(folder: Path) -> AsyncIterator[int]:
    """A server whose certificate nobody trusts, at this port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate.make(folder))
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


async def told(url: str) -> str:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as raised:
            await session.get(url)
    return describe_http_error(raised.value)


async def test_errors_of_connections_name_host_and_reason_and_no_terms_of_the_client(tmp_path: Path) -> None:
    async with untrusted(tmp_path) as port:
        said = await told(f"https://127.0.0.1:{port}/")
    assert said.startswith(f"can't connect to 127.0.0.1:{port}: ")
    assert "certificate" in said
    assert "ssl:" not in said
    closed = await told(f"https://127.0.0.1:{port}/")
    assert closed.startswith(f"can't connect to 127.0.0.1:{port}: ")
    assert "ssl:" not in closed
    assert (await told("http://no.host.invalid/")).startswith("can't connect to no.host.invalid:80: ")


def test_other_errors_say_what_they_say_or_their_names() -> None:
    assert describe_http_error(aiohttp.ServerDisconnectedError()) == "Server disconnected"
    assert describe_http_error(TimeoutError()) == "TimeoutError"
