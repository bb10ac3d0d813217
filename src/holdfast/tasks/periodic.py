"""Tasks that a clock sends: at the times of a cron expression in a time zone, once over all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from holdfast.errors import ConfigError, HandlerFailed, HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Registry
from holdfast.tasks.producer import Order, Producer

LOOK_S = 30.0
"""How often the clock is looked at, at least: another node may have fired, or died before it could."""

FIRINGS_MAX = 1000
"""Missed times that are caught up at once; of more, the newest."""

Orders = Callable[[datetime], Sequence[Order]]


class Periodic(msgspec.Struct, frozen=True, kw_only=True):
    """What ``App.periodic`` declares; see there."""

    name: str
    cron: str
    orders: Orders
    zone: str = "UTC"
    missed: Literal["all", "last", "skip"] = "last"
    window_s: float = 3600.0

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"periodic {self.name!r}: zone {self.zone!r} is no time zone; use a name"
                " such as 'Europe/Berlin'"
            ) from None
        try:
            CronSim(self.cron, datetime.now(UTC))
        except CronSimError as error:
            raise ConfigError(
                f"periodic {self.name!r}: cron {self.cron!r} can't be read: {error}; it has five fields, as"
                " in '30 2 * * *'"
            ) from None
        if self.missed not in ("all", "last", "skip"):
            raise ConfigError(f"periodic {self.name!r}: missed is {self.missed!r}; it is all, last or skip")
        if not self.window_s > 0:
            raise ConfigError(f"periodic {self.name!r}: window_s must be above 0")

    def due(self, after: float, now: float) -> list[datetime]:
        """The times to fire, in (after, now]; what is longer ago than the window is past."""
        times = list(takewhile(lambda moment: moment.timestamp() <= now, self._times(after, now)))
        if self.missed == "all":
            return times[-FIRINGS_MAX:]
        fresh = [moment for moment in times if moment.timestamp() > now - 2 * LOOK_S]
        return times[-1:] if self.missed == "last" else fresh[-1:]

    def next_at(self, now: float) -> float:
        """The next time to fire."""
        return next(self._times(now, now)).timestamp()

    def _times(self, after: float, now: float) -> Iterator[datetime]:
        """The times after that, and within the window. In an hour that comes twice the expression's next
        time may lie an hour back."""
        begin = max(after, now - self.window_s)
        times = CronSim(self.cron, datetime.fromtimestamp(begin, ZoneInfo(self.zone)))
        return (moment for moment in times if moment.timestamp() > begin)


class _Fired(msgspec.Struct, frozen=True):
    at: float


_decode = msgspec.json.Decoder(_Fired).decode


class Scheduler:
    """Fires what an app declares. Each node has one, and ``leads`` says which of them is at it. Were it
    two, the traces of what they send follow from its time, so that nothing runs twice."""

    def __init__(
        self,
        app: str,
        periodics: Mapping[str, Periodic],
        registry: Registry,
        producer: Producer,
        clock: Clock,
        log: Any,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._app = app
        self._periodics = periodics
        self._registry = registry
        self._producer = producer
        self._clock = clock
        self._log = log
        self._leads = leads

    async def run(self) -> None:
        """Fire for ever."""
        while self._periodics:
            now = self._clock.wall()
            if self._leads():
                for periodic in self._periodics.values():
                    try:
                        await self._look(periodic, now)
                    except HoldfastError as error:
                        self._log.warning("could not fire", periodic=periodic.name, error=str(error))
            next_at = min(periodic.next_at(now) for periodic in self._periodics.values())
            await self._clock.sleep(min(LOOK_S, max(0.0, next_at - self._clock.wall()) + 0.001))

    async def _look(self, periodic: Periodic, now: float) -> None:
        name = f"periodic/{self._app}/{periodic.name}"
        document = await self._registry.get(name)
        if document is None:  # declared just now: what was before is nobody's
            await self._registry.put(name, msgspec.json.encode(_Fired(now)), 0)
            return
        last = _decode(document.body).at
        for moment in periodic.due(last, now):
            await self._fire(periodic, moment)
        if now > last:
            await self._registry.put(name, msgspec.json.encode(_Fired(now)), document.version)

    async def _fire(self, periodic: Periodic, moment: datetime) -> None:
        try:
            orders = await asyncio.to_thread(periodic.orders, moment)
        except Exception as error:  # tried again for as long as the window lasts
            raise HandlerFailed(f"its orders failed: {error!r}") from error
        stamp = moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        named = [
            order
            if order.trace_id or order.dedupe
            else msgspec.structs.replace(order, trace_id=f"{periodic.name}-{stamp}-{number}")
            for number, order in enumerate(orders)
        ]
        await self._producer.send(named)
        self._log.info("fired", periodic=periodic.name, at=moment.isoformat(), tasks=len(named))
