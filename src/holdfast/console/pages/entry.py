"""Entering with a token and leaving, events, files, and whether the console lives."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from holdfast.console.access import Group
from holdfast.console.parts import ConsoleParts
from holdfast.http.problem import RequestRefused

CROSS_SITES = ("cross-site", "same-site")


class Entry:
    """Lets callers in by their token, and out again."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def form(self, request: web.Request) -> web.Response:
        """Show the form for a token; or, with the token in the address as it is printed, enter at once."""
        token = request.query.get("token")
        if token is None:
            return self._parts.renderer.page(request, "enter.html", wrong=False, title="Enter")
        if request.headers.get("Sec-Fetch-Site") in CROSS_SITES:
            raise RequestRefused(403, "foreign", "Cross-site request refused", "open the address yourself")
        return self._enter(request, token)

    async def enter(self, request: web.Request) -> web.Response:
        """Enter with the token of a form."""
        return self._enter(request, str((await request.post()).get("token", "")).strip())

    async def leave(self, request: web.Request) -> web.Response:
        """Have the browser forget its token."""
        response = _to("/")
        response.del_cookie(self._parts.access.cookie, path="/")
        return response

    def _enter(self, request: web.Request, token: str) -> web.Response:
        access = self._parts.access
        if access.enter(token) is None:
            return self._parts.renderer.page(request, "enter.html", status=401, wrong=True, title="Enter")
        response = _to("/")
        response.set_cookie(
            access.cookie, token, path="/", httponly=True, samesite="Strict", secure=access.secure
        )
        return response


def _to(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})


async def alive(request: web.Request) -> web.Response:
    """Say that the console lives."""
    return web.Response(text="ok\n")


def open_routes(parts: ConsoleParts) -> Sequence[web.RouteDef]:
    """The routes that need no right."""
    entry = Entry(parts)
    return [
        web.get("/healthz", alive),
        web.get("/enter", entry.form),
        web.post("/enter", entry.enter),
        web.post("/leave", entry.leave),
        web.get("/static/{path:.*}", parts.assets.serve),
    ]


def groups(parts: ConsoleParts) -> list[Group]:
    """The events."""
    return [("read", [web.get("/events", parts.events.serve)])]
