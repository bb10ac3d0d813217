"""``GET /openapi.json``: the description of the HTTP API of gateways and nodes, in OpenAPI 3.1."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

PATH = "/openapi.json"


def route() -> web.RouteDef:
    """Return the route, which is the same everywhere."""
    page = files("holdfast.gateway").joinpath("openapi.json").read_bytes()

    async def show(request: web.Request) -> web.Response:
        return web.Response(body=page, content_type="application/json")

    return web.get(PATH, show)
