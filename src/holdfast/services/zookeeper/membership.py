"""A membership that was joined here: its session, its znodes, and a watch for requests of other members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from kazoo.exceptions import NoNodeError

from holdfast.errors import ConfigError, HoldfastError, MembershipLost, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member, membership_lost
from holdfast.ports.meter import Meter
from holdfast.services.zookeeper import changes, layout
from holdfast.services.zookeeper.address import ZooKeeperAddress
from holdfast.services.zookeeper.expiry import LapseTimer
from holdfast.services.zookeeper.records import LogEntry, Request, decode_request, encode_service
from holdfast.services.zookeeper.session import REFUSALS, TransactionStep, ZooKeeperSession, create, delete

RETRY_S = 1.0
RECONNECT_S = 2.0

Serve = Callable[["ZooKeeperMembership", str, Request], Awaitable[None]]


class ZooKeeperMembership:
    """One membership and its session, which end together.

    ``path`` is its znode in /services. ``keys`` are the keys that it may have claimed, and perhaps some more.
    ``serve`` does what other members request."""

    def __init__(
        self,
        member: Member,
        address: ZooKeeperAddress,
        ttl_s: float,
        clock: Clock,
        meter: Meter,
        serve: Serve,
    ) -> None:
        self.member = member
        self.path = ""
        self.keys: set[str] = set()
        self.over = False
        self.session = ZooKeeperSession(address, ttl_s, meter, changed=self._ring, lost=self._lose)
        self._ttl_s = ttl_s
        self._clock = clock
        self._serve = serve
        self._rung = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[str] = set()
        self._lapse: LapseTimer | None = None

    async def join(self) -> None:
        """Open the session and publish the member. Raises ConfigError where the servers give no such
        sessions, and Unavailable: then the session ends, at the latest after ``ttl_s``."""
        begun_at = self._clock.monotonic()
        try:
            await self.session.open()
            self._check_timeout()
            data = encode_service(self.member, self._clock.wall())
            self.path = await self.session.create(layout.WORKER, data, sequence=True)
            exists = Unavailable(f"there is a membership {self.member.id} already; join under a new id")
            appear = create(layout.member(self.member.id), self.path.encode(), exists)
            entry = LogEntry("joined", path=self.path, member=self.member)
            await changes.noted(self.session, await self.session.commit([appear, *changes.note(entry)]))
        except OutcomeUnknown as error:
            await self.end()  # and with it the znodes that it may have made
            raise Unavailable(str(error)) from error
        except BaseException:
            await self.end()
            raise
        self._lapse = LapseTimer(self._clock, begun_at + self._ttl_s, self._let_lapse)
        self._lapse.start()
        self._spawn(self._listen())

    async def renew(self, member: Member, ttl_s: float) -> None:
        """Publish the load, and live for ``ttl_s`` from now; if this process dies, for the session's timeout.
        Raises MembershipLost, and Unavailable while the connection is interrupted: after a while, because a
        new connection soon shows whether the session is lost."""
        await self.session.until_connected(RECONNECT_S)
        if self.over:
            raise membership_lost(member.id)
        sent_at = self._clock.monotonic()
        try:
            stat = await self.session.set(self.path, encode_service(member, self._clock.wall()))
        except NoNodeError:
            stat = None
        if stat is None or stat.ephemeralOwner != self.session.id:
            self._lose()
            raise membership_lost(member.id)
        self.member = member
        assert self._lapse is not None
        self._lapse.put_off(sent_at + ttl_s)

    async def leave(self) -> None:
        """End the session with all its claims, and report that. Raises an error if it couldn't be
        reported."""
        try:
            if not self.over:
                await self.session.commit(end_steps(self.member.id, self.path))
        except MembershipLost:
            pass
        finally:
            await self.end()

    async def end(self) -> None:
        """End the session. Its znodes disappear, at once if a server can be reached."""
        self._lose()
        if self._lapse is not None:
            self._lapse.cancel()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        await self.session.close()

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Guard an action that needs a living membership: raises MembershipLost if it is over before or after
        the action."""
        if self.over:
            raise membership_lost(self.member.id)
        try:
            yield
        except (Unavailable, OutcomeUnknown) as error:
            if self.over:
                raise membership_lost(self.member.id) from error
            raise

    # --- how it is done

    def _check_timeout(self) -> None:
        given_s = self.session.timeout_s
        if abs(given_s - self._ttl_s) < 0.001:
            return
        limit, setting = (
            ("no less", "minSessionTimeout") if given_s > self._ttl_s else ("no more", "maxSessionTimeout")
        )
        raise ConfigError(
            f"ttl_s is {self._ttl_s:g}, but these ZooKeeper servers give sessions {limit} than {given_s:g} s:"
            f" set ttl_s to {given_s:g}, or change {setting} at the servers"
        )

    def _lose(self) -> None:
        """Note that the membership is over. Any thread may call it."""
        self.over = True
        self.session.post(self._ring)

    def _let_lapse(self) -> None:
        self._lose()
        self.session.stop()

    def _ring(self) -> None:
        self._rung.set()

    async def _listen(self) -> None:
        """Serve requests when the bell rings. End when the bell is gone, because this membership was
        evicted."""
        inbox = layout.member(self.member.id)
        while not self.over:
            self._rung.clear()
            patience_s = None
            try:
                await self.session.get(inbox, self._ring)
                await self._serve_requests()
            except NoNodeError:
                break
            except HoldfastError:
                patience_s = RETRY_S
            await self._clock.wait(self._rung, patience_s)
        await self.end()

    async def _serve_requests(self) -> None:
        prefix = f"{layout.basename(self.path)}."
        for name in await self.session.children(layout.REQUESTS):
            if name.startswith(prefix) and name not in self._serving:
                self._serving.add(name)
                self._spawn(self._serve_request(name))

    async def _serve_request(self, name: str) -> None:
        path = f"{layout.REQUESTS}/{name}"
        try:
            with contextlib.suppress(*REFUSALS, HoldfastError):
                data, stat = await self.session.get(path)
                if stat.version == 0:
                    await self._serve(self, path, decode_request(path, data))
        finally:
            self._serving.discard(name)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def end_steps(member: str, path: str) -> list[TransactionStep]:
    """Return the steps that end a membership, known by its id and its znode."""
    gone = membership_lost(member)
    left = changes.note(LogEntry("left", path=path))
    return [delete(layout.member(member), gone), delete(path, gone), *left]
