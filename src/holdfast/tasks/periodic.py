"""Runs functions by the clock: at the times of a cron expression in a time zone, once over all nodes."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from holdfast.common.message import check_key
from holdfast.common.record import UNREADABLE
from holdfast.common.settings import Seconds, check_settings
from holdfast.common.user_code import explain, raised_at
from holdfast.errors import ConfigError, HandlerFailed, HoldfastError, InvalidMessage
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Registry
from holdfast.tasks.order import Order, Orders
from holdfast.tasks.producer import Producer

LOOK_S = 30.0
"""The longest pause between two checks of what is due: another node may have fired, or died before it
could."""

AHEAD_S = 3600.0
"""Seconds by which the recorded time of a periodic may be ahead of this node's clock. A later time comes from
a wrong clock, and waiting for it could take years."""

FIRINGS_MAX = 1000
"""The most missed times that are caught up at once; of more, the newest ones."""

DLQ_BACKUP = "dlq-backup"
"""The name of the back-up of dead letters among an app's periodics."""

PeriodicCall = Callable[[datetime], Awaitable[None]]
"""The work at each time. If it raises HoldfastError, it is repeated as long as the window lasts."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which something is done; ``App.periodic`` describes the settings. Times up to ``since``
    (wall time) don't count."""

    name: str
    cron: str
    zone: str = "UTC"
    missed: Literal["all", "last", "skip"] = "last"
    window_s: Seconds = 3600.0
    since: float = 0.0

    def __post_init__(self) -> None:
        check_settings(f"periodic {self.name!r}", self)
        try:
            check_key(self.name, "name")
        except InvalidMessage as error:
            raise ConfigError(f"periodic {self.name!r:.100}: {error}") from None
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"periodic {self.name!r}: zone {self.zone!r} isn't a time zone; use a name"
                " such as 'Europe/Berlin'"
            ) from None
        try:
            next(CronSim(self.cron, datetime.now(UTC)))
        except StopIteration:
            raise ConfigError(
                f"periodic {self.name!r}: cron {self.cron!r} comes at no time in the next 50 years"
            ) from None
        except CronSimError as error:
            raise ConfigError(
                f"periodic {self.name!r}: cron {self.cron!r} can't be read: {error}; it has five fields, as"
                " in '30 2 * * *'"
            ) from None

    def due(self, after: float, now: float) -> list[datetime]:
        """Return the times to fire in (after, now]. Times longer ago than the window are left out."""
        times = list(takewhile(lambda moment: moment.timestamp() <= now, self._times(after, now)))
        if self.missed == "all":
            return times[-FIRINGS_MAX:]
        fresh = [moment for moment in times if moment.timestamp() > now - 2 * LOOK_S]
        return times[-1:] if self.missed == "last" else fresh[-1:]

    def next_at(self, now: float) -> float:
        """Return the next time to fire."""
        return next(self._times(now, now)).timestamp()

    def _times(self, after: float, now: float) -> Iterator[datetime]:
        """Yield the times after ``after`` and within the window. When clocks are set back, the expression's
        next time may be an hour earlier."""
        begin = max(after, now - self.window_s)
        times = CronSim(self.cron, datetime.fromtimestamp(begin, ZoneInfo(self.zone)))
        return (moment for moment in times if moment.timestamp() > begin)


class Periodic(Times, frozen=True, kw_only=True):
    """A periodic task, declared by ``App.periodic``, which describes the settings."""

    orders: Orders
    timeout_s: Seconds = 60.0


class _Fired(msgspec.Struct, frozen=True):
    """All times up to ``at`` are dealt with, and those in ``done``. Others failed, or are still to come.
    ``not_since`` is the ``since`` of a clock that was wrong, which doesn't count."""

    at: float
    done: tuple[float, ...] = ()
    not_since: float = 0.0


def _restart(fired: _Fired, at: float) -> _Fired:
    """Everything up to ``at`` is dealt with."""
    return msgspec.structs.replace(fired, at=at, done=())


_decode = msgspec.json.Decoder(_Fired).decode


class Scheduler:
    """Makes the calls that are due, each separately: one that hangs or fails doesn't delay others. Each node
    has a scheduler, and ``leads`` returns whether this node makes a call now. Calls must be safe to repeat,
    because two nodes may lead for a moment."""

    def __init__(
        self,
        app: str,
        periodics: Sequence[tuple[Times, PeriodicCall]],
        registry: Registry,
        clock: Clock,
        log: Any,
        *,
        leads: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._periodics = periodics
        self._registry = registry
        self._clock = clock
        self._log = log
        self._leads = leads

    async def run(self) -> None:
        """Fire periodics when they are due, without end."""
        await asyncio.gather(*(self.keep(times, call) for times, call in self._periodics))

    @property
    def names(self) -> set[str]:
        """Return the names of what is declared."""
        return {times.name for times, _ in self._periodics}

    async def keep(self, times: Times, call: PeriodicCall, led_as: str = "") -> None:
        """Make one call when it is due, without end, while this node leads it, by its name or that of
        ``led_as``."""
        while True:
            now = self._clock.wall()
            if self._leads(led_as or times.name):
                try:
                    await self._look(times, call, now)
                except HoldfastError as error:
                    self._log.warning("cannot run periodic", periodic=times.name, error=str(error))
                except Exception as error:  # noqa: BLE001 - others go on
                    self._log.exception("cannot run periodic", periodic=times.name, error=repr(error))
            await self._clock.sleep(min(LOOK_S, max(0.0, times.next_at(now) - self._clock.wall()) + 0.001))

    async def _look(self, times: Times, call: PeriodicCall, now: float) -> None:
        name = f"periodic/{self._app}/{times.name}"
        document = await self._registry.get(name)
        if document is None and not times.since:  # declared just now: earlier times don't count
            await self._registry.put(name, msgspec.json.encode(_Fired(now)), 0)
            return
        version = document.version if document else 0
        try:
            fired = _decode(document.body) if document else _Fired(0.0)
        except UNREADABLE as error:
            self._log.warning("bad record of periodic", name=name, error=str(error))
            await self._registry.put(name, msgspec.json.encode(_Fired(now)), version)
            return
        if fired.at > now + AHEAD_S:
            self._log.warning(
                "record of periodic ahead of clock",
                periodic=times.name,
                ahead_s=fired.at - now,
            )
            await self._registry.put(name, msgspec.json.encode(_restart(fired, now)), version)
            return
        since = times.since if times.since != fired.not_since else 0.0
        if since > now + AHEAD_S:
            self._log.warning(
                "periodic set by wrong clock",
                periodic=times.name,
                ahead_s=since - now,
            )
            await self._registry.put(name, msgspec.json.encode(_Fired(now, not_since=since)), version)
            return
        last = max(fired.at, since)
        done, failures = await self._fire(times, call, times.due(last, now), fired.done)
        after = msgspec.structs.replace(fired, at=last, done=done) if failures else _restart(fired, now)
        if now > last and after != fired:
            await self._registry.put(name, msgspec.json.encode(after), version)
        if failures:
            raise failures[0]

    async def _fire(
        self, times: Times, call: PeriodicCall, due: Sequence[datetime], known: Collection[float]
    ) -> tuple[tuple[float, ...], list[Exception]]:
        """Make a call at each time that isn't ``known`` as done. Return the times that are done by now, and
        the failures: a failure keeps no later time back."""
        done, failures = list[float](), list[Exception]()
        for moment in due:
            if moment.timestamp() not in known:
                try:
                    await call(moment)
                except Exception as error:  # noqa: BLE001 - raised once all are tried
                    failures.append(error)
                    continue
                self._log.info("periodic fired", periodic=times.name, at=moment.isoformat())
            done.append(moment.timestamp())
        return tuple(done), failures


class PeriodicSender:
    """The call of a periodic: it sends its tasks. Their task ids follow from the time, so that none runs
    twice."""

    def __init__(self, periodic: Periodic, producer: Producer, clock: Clock) -> None:
        self._periodic = periodic
        self._producer = producer
        self._clock = clock
        self._thread: threading.Thread | None = None

    async def __call__(self, moment: datetime) -> None:
        """Send the tasks of the time ``moment``. Raises HandlerFailed if the user's function fails or hangs,
        and what ``send`` raises."""
        periodic = self._periodic
        stamp = moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        named = [
            order
            if order.task_id or order.dedupe
            else msgspec.structs.replace(order, task_id=f"{periodic.name}-{stamp}-{number}")
            for number, order in enumerate(await self._ask(moment))
        ]
        await self._producer.send(named)

    async def _ask(self, moment: datetime) -> Sequence[Order]:
        """Call the user's function in a separate thread. A thread that hangs can't be ended, and a pool would
        wait for it. Until it has ended, the function isn't called again."""
        if self._thread is not None and self._thread.is_alive():
            raise HandlerFailed(f"its function still hangs{_place(self._thread)}")
        asked = Future[Sequence[Order]]()
        answered = asyncio.Event()
        answer = asyncio.wrap_future(asked)

        def hear(answer: asyncio.Future[Sequence[Order]]) -> None:
            answer.exception()  # read, or asyncio would log an error that comes too late
            answered.set()

        answer.add_done_callback(hear)

        def ask() -> None:
            try:
                asked.set_result(_checked(self._periodic.orders(moment)))
            except BaseException as error:  # noqa: BLE001 - user code
                at = raised_at(explain(error))
                asked.set_exception(HandlerFailed(f"its function failed: {error!r} ({at})"))

        self._thread = threading.Thread(target=ask, name=f"periodic-{self._periodic.name}", daemon=True)
        self._thread.start()
        if not await self._clock.wait(answered, self._periodic.timeout_s):
            raise HandlerFailed(
                f"its function takes longer than timeout_s = {self._periodic.timeout_s:g}"
                f"{_place(self._thread)}"
            )
        self._thread = None  # it may take a moment to end
        return answer.result()


def _checked(orders: Sequence[Order]) -> list[Order]:
    for order in orders:
        if not isinstance(order, Order):
            raise TypeError(f"it returned a {type(order).__name__}; it must return a list of holdfast.Order")
    return list(orders)


def _place(thread: threading.Thread) -> str:
    """Return where a thread is at this moment, in words."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    code = frame.f_code
    return f", in {code.co_qualname} ({code.co_filename}, line {frame.f_lineno})"
