"""Outboxes that are declared, and used, as they should be."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, assert_type

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from holdfast import App

app = App("office")
doors = app.outbox("doors", shards=4, rate=100, group=lambda device: device[:2], group_rates={"ab": 5})


def add(db: Session, other: Connection) -> None:
    command: dict[str, Any] = {"operator": "EditPerson"}
    assert_type(doors.add(db, device="d", command=command, priority=1, supersede_key="a"), int)
    assert_type(doors.add(other, device="d", command=b"", delay_s=1.5, expires_in_s=None), int)
    assert_type(doors.add_many(db, [{"device": "d", "command": command, "priority": 2}]), list[int])
    assert_type(doors.add_rollout(db, "all", ["a", "b"], command, rate=5, trace_id="t"), int)
    assert_type(doors.cancel(db, supersede_key="a"), int)
    doors.pause(db, "d")
    assert_type(doors.resume(db), bool)


async def add_async(db: AsyncSession) -> None:
    assert_type(await doors.add(db, device="d", command="text", dedupe_key="x"), int)
    assert_type(doors.add_many(db, []), Awaitable[list[int]])
    assert_type(await doors.cancel(db, device="d"), int)
    await doors.pause(db)
