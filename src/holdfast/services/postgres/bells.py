"""Bells: wake the waiters for a topic, in this process at once, and in all others by NOTIFY.

A NOTIFY takes a lock of the whole database when its transaction commits. So none is part of a transaction
that changes data: topics are gathered, and go together some milliseconds later. A ring may be lost (a new
connection, a killed process), so waiters also check every ``SAFETY_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

import psycopg

from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.services.postgres.lane import Connection, PostgresLane, cut, limited
from holdfast.system.log import get_logger

log = get_logger(__name__)

SAFETY_S = 1.0
"""Seconds for which a waiter relies on bells alone."""

EVERY_S = 0.005
"""Seconds between two notifications of one process at least."""

AGAIN_S = 1.0
"""Seconds before a lost connection is replaced."""

QUIET_S = 15.0
"""Seconds of silence after which the server is asked whether it is still there."""

NAME_MAX_BYTES = 63
"""The longest name that PostgreSQL takes."""

CHANNEL_MAX_BYTES = 7000
"""The usual limit of a payload in bytes: PostgreSQL refuses 8,000 and more."""

NOTIFY = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"


class PostgresBells:
    """Rings topics for all processes that use the schema. ``listen_to`` connects the listener; None: this
    process gets only its own rings."""

    def __init__(
        self,
        schema: str,
        lane: PostgresLane,
        clock: Clock,
        listen_to: Callable[[], Awaitable[Connection]] | None,
    ) -> None:
        self.hears = asyncio.Event()
        self._channel = channel_of(schema)
        self._lane = lane
        self._clock = clock
        self._listen_to = listen_to
        self._name = clock.new_id()
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._rung: set[str] = set()
        self._ringer: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever ``topic`` is rung. Clear it, check, then wait for it, for
        ``SAFETY_S`` at most."""
        if self._listener is None and self._listen_to is not None:
            self._listener = asyncio.create_task(self._hear(self._listen_to))
        event = asyncio.Event()
        events = self._waiting.setdefault(topic, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events and self._waiting.get(topic) is events:
                del self._waiting[topic]

    @property
    def is_awaited(self) -> bool:
        """True if something of this process waits for a topic."""
        return bool(self._waiting)

    def ring(self, topics: Iterable[str]) -> None:
        """Wake the waiters for these topics. Call it after the commit that they wait for."""
        topics = set(topics)
        self.ring_here(topics)
        self._rung |= topics
        if self._rung and self._ringer is None:
            self._ringer = asyncio.create_task(self._send_rings())

    def ring_here(self, topics: Iterable[str]) -> None:
        """Wake the waiters for these topics in this process."""
        for topic in topics:
            for event in self._waiting.get(topic, ()):
                event.set()

    def wake_all(self) -> None:
        """Wake everything that waits in this process."""
        self.ring_here(list(self._waiting))

    async def close(self) -> None:
        """Stop listening, after all rings are sent."""
        if self._ringer is not None:
            await asyncio.wait([self._ringer])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _send_rings(self) -> None:
        try:
            while self._rung:
                payloads = list(_payloads(self._name, self._rung))
                self._rung = set()
                with contextlib.suppress(HoldfastError):  # a lost ring: waiters check by themselves
                    await self._lane.read(lambda c: c.execute(NOTIFY, (self._channel, payloads)))  # noqa: B023
                await self._clock.sleep(EVERY_S)
        finally:
            self._ringer = None

    # --- the listener

    async def _hear(self, listen_to: Callable[[], Awaitable[Connection]]) -> None:
        warned = False
        while True:
            try:
                connection = await listen_to()
                try:
                    with limited(connection, QUIET_S):
                        await connection.execute(f'LISTEN "{self._channel}"')
                    self.hears.set()
                    self.wake_all()  # rings may have been missed
                    await self._hear_all(connection)
                finally:
                    self.hears.clear()
                    cut(connection)
                    await connection.close()
            except Exception as error:  # noqa: BLE001 - nothing else would listen again
                foreseen = isinstance(error, psycopg.Error | OSError | HoldfastError)
                if foreseen or warned:
                    log.debug("listener connection lost", error=str(error).strip())
                else:
                    log.warning("listener connection lost", error=str(error).strip())
                warned = warned or not foreseen
                await self._clock.sleep(AGAIN_S)

    async def _hear_all(self, connection: Connection) -> None:
        while True:
            async for notice in connection.notifies(timeout=QUIET_S):
                name, *topics = notice.payload.split("\n")
                if name != self._name:
                    self.ring_here(topics)
            with limited(connection, QUIET_S):
                await connection.execute("SELECT 1")


def channel_of(schema: str) -> str:
    """Return the name of a schema's channel. LISTEN shortens a name that is too long; NOTIFY refuses it."""
    name = f"holdfast_{schema}"
    if len(name) <= NAME_MAX_BYTES:
        return name
    return f"holdfast_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def _payloads(name: str, topics: Iterable[str]) -> Iterator[str]:
    """Payloads of at most ``CHANNEL_MAX_BYTES`` that name all topics, a line each, after this process."""
    lines, size = [name], len(name)
    for topic in sorted(topics):
        length = len(topic.encode()) + 1
        if size + length > CHANNEL_MAX_BYTES and len(lines) > 1:
            yield "\n".join(lines)
            lines, size = [name], len(name)
        lines.append(topic)
        size += length
    yield "\n".join(lines)
