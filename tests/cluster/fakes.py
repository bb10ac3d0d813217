"""What the parts of a node stand on in their tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.limits import Limits
from holdfast.cluster.membership import Membership
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.ports.tracing import SpanRecord
from simulator.limits import limits_with


class Log:
    """Keeps what was logged: (level, event, fields)."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.entries.append((level, event, fields))

    def events(self, level: str) -> list[str]:
        """The events of a level."""
        return [event for known, event, _ in self.entries if known == level]


class StandingMembership:
    """A membership that is as the test says."""

    def __init__(self, *others: Member) -> None:
        self.id = "me"
        self.alive = True
        self.joined = asyncio.Event()
        self.joined.set()
        self.view = {m.id: m for m in (Member("me", "me", "sim://me"), *others)}
        self.suspected: list[str] = []

    async def suspect(self, member: str) -> None:
        self.suspected.append(member)

    async def refresh(self) -> None:
        pass


def held(n: int, receipt: str = "", *, expires_at: float = 1e9, sender: str = "", body: bytes = b"") -> Held:
    """Message number ``n`` with one delivery."""
    delivery = Receipt(receipt or f"r{n}", expires_at, sender=sender, number=n, reply_to=f"sim://{sender}")
    return Held(Place(0, n), body or b"body %d" % n, {}, [delivery])


async def settle_down() -> None:
    """Let everything happen that needs no time."""
    for _ in range(50):
        await asyncio.sleep(0)


def make_host(
    clock: Clock,
    tasks: Tasks | None = None,
    *,
    limits: Limits | None = None,
    coordinator: Any = None,
    peer: Any = None,
    log: Any = None,
    name: str = "me",
    membership: Any = None,
) -> Host:
    """A host for parts that are tested by themselves, of which a test gives what its part uses."""
    host = Host(coordinator, peer, clock, limits or limits_with(), log or Log(), name)
    host.membership = membership or cast("Membership", StandingMembership())
    if tasks is not None:
        host.tasks = tasks
    return host


class KeptSpans:
    """An exporter that stores its spans."""

    exported = dropped = 0

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []

    def add(self, span: SpanRecord) -> None:
        self.spans.append(span)

    async def close(self) -> None:
        pass
