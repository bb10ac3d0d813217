"""Outboxes and commands with a setting that there isn't, or a value that can't be."""

from __future__ import annotations

from sqlalchemy.orm import Session

from holdfast import App

app = App("office")
doors = app.outbox("doors")

app.outbox("faces", shard=3)  # error
app.outbox("faces", shards="3")  # error
app.outbox("faces", dialect="json")  # error


def add(db: Session) -> None:
    doors.add(db, device="d", command={}, priorty=1)  # error
    doors.add(db, device="d", command={}, priority="high")  # error
    doors.add(db, command={})  # error
    doors.add("office.db", device="d", command={})  # error
    doors.add_many(db, [{"device": "d", "command": {}, "dedup_key": "x"}])  # error
    doors.add_rollout(db, "all", ["d"], {}, abort=0.5)  # error
