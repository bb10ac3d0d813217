"""The standing of devices, for operators: which are there, which are away, and why commands wait."""

from __future__ import annotations

import enum

import msgspec

from holdfast.devices.ports.outbox import DeviceStatus
from holdfast.devices.rules.device_queue import HeadPhase

STALE_S = 120.0
"""For how long a device may be silent before it counts as stale, unless told."""


class Reachability(enum.StrEnum):
    """The reachability of a device, as far as anybody knows."""

    THERE = "there"
    PAUSED = "paused"
    AWAY = "away"
    STALE = "stale"
    UNSEEN = "never seen"


class DeviceRecord(msgspec.Struct):
    """A device. ``doing`` has the phases of its lanes that aren't idle, and ``waiting`` counts its commands
    that aren't closed, up to a thousand. ``stuck`` says why they aren't sent, or that one was and isn't
    answered; it is empty where nothing holds them up. ``seen_at`` is a wall time in seconds."""

    device: str
    standing: Reachability
    seen_at: float | None
    waiting: int
    doing: list[HeadPhase]
    stuck: str
    shard: int


def device_record(
    status: DeviceStatus, now: float, *, all_paused: bool, stale_after_s: float = STALE_S
) -> DeviceRecord:
    """Return how a device stands at this wall time. ``all_paused``: its whole outbox is."""
    standing = _standing(status, now, stale_after_s)
    doing = sorted({*status.phases} - {HeadPhase.IDLE})
    return DeviceRecord(
        device=status.device,
        standing=standing,
        seen_at=status.seen_at,
        waiting=status.waiting,
        doing=doing,
        stuck=_stuck(status, standing, doing, now, all_paused=all_paused) if status.waiting else "",
        shard=status.shard,
    )


def _standing(status: DeviceStatus, now: float, stale_after_s: float) -> Reachability:
    if status.paused:
        return Reachability.PAUSED
    if status.away:
        return Reachability.AWAY
    if status.seen_at is None:
        return Reachability.UNSEEN
    return Reachability.STALE if now - status.seen_at > stale_after_s else Reachability.THERE


def _stuck(
    status: DeviceStatus, standing: Reachability, doing: list[HeadPhase], now: float, *, all_paused: bool
) -> str:
    silent = "" if status.seen_at is None else f", not heard of for {max(0.0, now - status.seen_at):.0f} s"
    if all_paused:
        return "its outbox is paused"
    if standing is Reachability.PAUSED:
        return "it is paused"
    if standing is Reachability.AWAY:
        return f"it is away{silent}"
    if not doing:
        return "no node has taken its commands up yet"
    # Nothing is held back from a device that is only silent: what isn't out waits for its time.
    if standing is not Reachability.THERE and HeadPhase.OUT in doing:
        return f"sent, and not answered{silent}"
    return ""
