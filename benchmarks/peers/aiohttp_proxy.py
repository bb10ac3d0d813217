"""A minimal proxy on aiohttp: each request to the next backend in turn, on connections that are kept."""

from __future__ import annotations

import sys
from itertools import cycle

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


async def serve(port: int, backends: list[str]) -> web.Application:
    """The proxy."""
    addresses = cycle(backends)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def forward(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url = f"{next(addresses)}{request.rel_url.raw_path}"
        async with session.post(url, data=await request.read(), headers=headers) as said:
            kept = {name: value for name, value in said.headers.items() if name.lower() not in HOP_BY_HOP}
            return web.Response(status=said.status, headers=kept, body=await said.read())

    async def close(app: web.Application) -> None:
        await session.close()

    app = web.Application(client_max_size=1 << 20)
    app.add_routes([web.post("/process/{id}", forward)])
    app.on_cleanup.append(close)
    return app


def main() -> None:
    """Serve at the port that comes first, for the backends that follow."""
    port, backends = int(sys.argv[1]), sys.argv[2:]
    uvloop.install()
    web.run_app(serve(port, backends), host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    main()
