"""The back office: a small web application. It knows nothing of MQTT; it writes to its own database.

POST   /terminals/{terminal}/people   {"person": "951", "name": "A. Person"}
DELETE /terminals/{terminal}/people/{person}
GET    /pending                       what terminals have not confirmed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web
from examples.whitelist.app import tell
from examples.whitelist.tables import Base, Entry, pending
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from holdfast.errors import HoldfastError

T = TypeVar("T")


class Office:
    """Answers requests from its database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        Base.metadata.create_all(engine)

    def application(self) -> web.Application:
        """What is served."""
        application = web.Application()
        application.add_routes(
            [
                web.post("/terminals/{terminal}/people", self._add),
                web.delete("/terminals/{terminal}/people/{person}", self._remove),
                web.get("/pending", self._pending),
            ]
        )
        return application

    def change(self, db: Session, terminal: str, person: str, name: str | None) -> Entry:
        """Let a person in at a terminal under a name, or take them off (None): the change and the command for
        it are one transaction."""
        entry = db.get(Entry, (terminal, person))
        if entry is None:
            entry = Entry(terminal=terminal, person=person, name="", wanted=False, version=0, agreed=0)
            db.add(entry)
        entry.wanted, entry.name = name is not None, name or entry.name
        entry.version += 1
        db.flush()
        tell(db, entry)
        return entry

    async def _add(self, request: web.Request) -> web.Response:
        asked = await request.json()
        return await self._changed(request.match_info["terminal"], str(asked["person"]), str(asked["name"]))

    async def _remove(self, request: web.Request) -> web.Response:
        return await self._changed(request.match_info["terminal"], request.match_info["person"], None)

    async def _changed(self, terminal: str, person: str, name: str | None) -> web.Response:
        try:
            version = await self._in_transaction(lambda db: self.change(db, terminal, person, name).version)
        except HoldfastError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.json_response({"version": version})

    async def _pending(self, _: web.Request) -> web.Response:
        waiting = await self._in_transaction(
            lambda db: [{"terminal": e.terminal, "person": e.person} for e in db.scalars(pending())]
        )
        return web.json_response(waiting)

    async def _in_transaction(self, work: Callable[[Session], T]) -> T:
        def run() -> T:
            with Session(self._engine) as db, db.begin():
                return work(db)

        return await asyncio.to_thread(run)
