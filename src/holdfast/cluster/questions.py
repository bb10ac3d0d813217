"""Questions to services for a node's metrics: asked when the metrics are read, at most once in an
interval."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.cluster.host import Host

T = TypeVar("T")

ANSWER_S = 2.0
"""Seconds that a reader of the metrics waits for an answer."""

KNOWN_TIMES = 3
"""The number of intervals for which an answer counts."""

REST_TIMES = 50
"""The pause after a slow answer, as a multiple of its time: counting a deep queue costs the service work."""


class ServiceQuestion(Generic[T]):
    """One question to a service, asked at most every ``every_s`` seconds, and less often if its answers take
    long. ``about`` names it in the log."""

    def __init__(self, host: Host, about: str, ask: Callable[[], Awaitable[T]], every_s: float) -> None:
        self._host = host
        self._about = about
        self._ask_it = ask
        self._every_s = every_s
        self._asked_at: float | None = None
        self._answered_at = 0.0
        self._took_s = 0.0
        self._answer: T | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def _pause_s(self) -> float:
        return max(self._every_s, REST_TIMES * self._took_s)

    async def refresh(self) -> None:
        """Ask if it is time, and wait a moment for the answer. The next reader gets a later answer."""
        now = self._host.clock.monotonic()
        if self._idle.is_set() and (self._asked_at is None or now >= self._asked_at + self._pause_s):
            self._asked_at = now
            self._idle.clear()
            if self._host.tasks.spawn(self._ask()) is None:
                self._idle.set()
        await self._host.clock.wait(self._idle, ANSWER_S)

    @property
    def answer(self) -> T | None:
        """The last answer; None if the last question failed, or the answer is too old."""
        known_s = self._host.clock.monotonic() - self._answered_at
        return self._answer if known_s < KNOWN_TIMES * self._pause_s else None

    @property
    def failed(self) -> bool:
        """True if the question was asked and has no answer."""
        return self._asked_at is not None and self.answer is None

    async def _ask(self) -> None:
        asked_at = self._host.clock.monotonic()
        try:
            self._answer = await self._ask_it()
            self._answered_at = self._host.clock.monotonic()
            self._took_s = self._answered_at - asked_at
        except Exception as error:  # noqa: BLE001 - an adapter of another package may raise anything
            self._answer = None
            self._host.log.debug("cannot read a service's metrics", about=self._about, error=repr(error))
        finally:
            self._idle.set()
