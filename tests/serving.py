"""Web servers that tests are asked by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def served(*routes: web.AbstractRouteDef) -> AsyncIterator[str]:
    """Serve these routes on loopback; yields the URL, without a slash at its end."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
