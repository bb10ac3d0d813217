"""The page of the audit log."""

from __future__ import annotations

from aiohttp import web

from holdfast.console.access import Group
from holdfast.console.parts import ConsoleParts
from holdfast.console.rendering import html_response

ENTRIES = 200


class AuditPage:
    """The page of the audit log."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def page(self, request: web.Request) -> web.Response:
        """Answer with the page."""
        content = self._parts.renderer.safe(await self._content())
        return self._parts.renderer.page(request, "audit.html", title="Audit", content=content)

    async def part(self, request: web.Request) -> web.Response:
        """Answer with what changes on it."""
        return html_response(await self._content())

    async def _content(self) -> str:
        return await self._parts.cache.get("audit", self._make)

    async def _make(self) -> str:
        entries = await self._parts.audit.entries(ENTRIES)
        return self._parts.renderer.part("parts/audit.html", entries=entries)


def groups(parts: ConsoleParts) -> list[Group]:
    """The routes of the audit log."""
    page = AuditPage(parts)
    return [("read", [web.get("/audit", page.page), web.get("/parts/audit", page.part)])]
