"""The back office: a small web application. It knows nothing of MQTT; it writes to its own database.

POST   /terminals/{terminal}/people   {"person": "951", "name": "A. Person"}
DELETE /terminals/{terminal}/people/{person}
GET    /pending                       what terminals have not confirmed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.whitelist.app import send_command
from examples.whitelist.tables import Base, Entry, pending
from holdfast import InvalidMessage

T = TypeVar("T")


class Office:
    """Answers requests from its database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        Base.metadata.create_all(engine)

    def application(self) -> Starlette:
        """What is served."""
        people = "/terminals/{terminal}/people"
        return Starlette(
            routes=[
                Route(people, self._add, methods=["POST"]),
                Route(f"{people}/{{person}}", self._remove, methods=["DELETE"]),
                Route("/pending", self._pending),
            ]
        )

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
        send_command(db, entry)
        return entry

    async def _add(self, request: Request) -> JSONResponse:
        asked = await request.json()
        return await self._changed(request.path_params["terminal"], str(asked["person"]), str(asked["name"]))

    async def _remove(self, request: Request) -> JSONResponse:
        return await self._changed(request.path_params["terminal"], request.path_params["person"], None)

    async def _changed(self, terminal: str, person: str, name: str | None) -> JSONResponse:
        try:
            version = await self._in_transaction(lambda db: self.change(db, terminal, person, name).version)
        except InvalidMessage as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"version": version})

    async def _pending(self, _: Request) -> JSONResponse:
        waiting = await self._in_transaction(
            lambda db: [{"terminal": e.terminal, "person": e.person} for e in db.scalars(pending())]
        )
        return JSONResponse(waiting)

    async def _in_transaction(self, work: Callable[[Session], T]) -> T:
        def run() -> T:
            with Session(self._engine) as db, db.begin():
                return work(db)

        return await run_in_threadpool(run)
