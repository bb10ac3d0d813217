"""The statuses of devices, for operators, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select, text

from holdfast.devices.ports.outbox import DeviceStatus
from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules.device_queue import HeadPhase
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.records import (
    HEAD_KINDS,
    PHASES,
    SEEN_KINDS,
    TEXT,
    RowFilter,
    has_phase,
)
from holdfast.devices.services.sqlalchemy.schema import count_shards

WAITING_MAX = 1000
"""Waiting commands of a device that are counted, at most."""


def read_statuses(
    connection: Connection, rows: RowFilter, *, outbox: str, after: str, limit: int, device: str
) -> list[DeviceStatus]:
    """Return the statuses of devices in order, after the device ``after``; or the status of one device."""
    h, d = tables.head.c, tables.device.c
    listed = connection.execute(_scheduled(outbox, after, limit, device))
    scheduled = {row[0]: row[1] for row in rows.valid("device", listed, TEXT)}
    names = [*scheduled]
    heads = connection.execute(
        select(h.device, h.lane, h.shard, h.phase)
        .where(h.outbox == outbox, h.device.in_(names))
        .order_by(h.lane)
    )
    phases: dict[str, list[HeadPhase]] = {}
    for name, _, _, phase in rows.valid("head", heads, HEAD_KINDS[:4], has_phase):
        phases.setdefault(name, []).append(PHASES[phase])
    known = connection.execute(
        select(d.device, d.seen_at, d.away).where(d.outbox == outbox, d.device.in_(names))
    ).all()
    seen = {name: (at, away) for name, at, away in valid_seen(rows, known)}
    p = tables.pause.c
    paused = set(
        connection.execute(select(p.device).where(p.outbox == outbox, p.device.in_(names))).scalars()
    )
    shards = count_shards(connection, outbox)
    statuses = []
    for name in names:
        doing = tuple(phases.get(name, ()))
        waiting = min(WAITING_MAX, scheduled[name] + doing.count(HeadPhase.OUT))
        seen_at, away = seen.get(name, (None, False))
        shard = queue.shard_of(name, shards)
        statuses.append(DeviceStatus(outbox, name, shard, doing, waiting, seen_at, away, name in paused))
    return statuses


def valid_seen(rows: RowFilter, found: Sequence[Sequence[Any]]) -> list[tuple[str, float | None, bool]]:
    """Return rows of device, seen_at and away. A device with an invalid time was never seen."""
    timed = {row[0] for row in rows.valid("device", found, SEEN_KINDS)}
    return [
        (device, at if device in timed else None, bool(away))
        for device, at, away in found
        if isinstance(device, str)
    ]


def _scheduled(outbox: str, after: str, limit: int, device: str) -> Select[tuple[str, int]]:
    """Select devices in order, each with the number of its scheduled commands, in one statement for a
    page."""
    h, d, c = tables.head.c, tables.device.c, tables.command.c
    named = [
        select(t.device).where(
            t.outbox == outbox, t.device > after, *([t.device == device] if device else [])
        )
        for t in (h, d)
    ]
    both = named[0].union(named[1]).subquery()
    listed = select(both.c.device).order_by(both.c.device).limit(limit).subquery()
    # With the lane, SQLite takes the index of scheduled commands.
    waits = text("state = 'scheduled' AND lane >= 0")
    some = select(c.id).where(c.outbox == outbox, c.device == listed.c.device, waits).limit(WAITING_MAX)
    counted = select(func.count()).select_from(some.correlate(listed).subquery()).correlate(listed)
    return select(listed.c.device, counted.scalar_subquery()).order_by(listed.c.device)
