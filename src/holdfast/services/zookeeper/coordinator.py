"""The coordinator in ZooKeeper.

A membership is a session, and its claims are ephemeral znodes of that session. When the session ends, the
servers remove all of them in one step. One more session, without a membership, reads, watches and sends
requests.
"""

from __future__ import annotations

import asyncio

from holdfast.errors import MembershipLost, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Member, membership_lost
from holdfast.ports.meter import Meter
from holdfast.services.zookeeper import claims, layout, requests
from holdfast.services.zookeeper.address import ZooKeeperAddress
from holdfast.services.zookeeper.changes import ChangeFeed
from holdfast.services.zookeeper.membership import ZooKeeperMembership, end_steps
from holdfast.services.zookeeper.records import Request, decode_path, decode_service
from holdfast.services.zookeeper.session import ZooKeeperSession, check_files

SESSION_S = 10.0
"""Timeout of the session that holds no membership."""

ASKED_TOGETHER = 64


class ZooKeeperCoordinator:
    """Memberships and claims in a ZooKeeper ensemble, in a layout that other programs can read and join.

    Raises ConfigError if files for TLS can't be read; :meth:`join` raises it if the servers give no sessions
    of ``ttl_s``, and any call if they don't let this user in."""

    def __init__(self, address: ZooKeeperAddress, clock: Clock, meter: Meter) -> None:
        check_files(address)
        self._address = address
        self._clock = clock
        self._meter = meter
        self._opened: asyncio.Task[ZooKeeperSession] | None = None
        self._feed: ChangeFeed | None = None
        self._joined: dict[str, ZooKeeperMembership] = {}
        self._foreign: dict[str, None] = {}
        """Keys that another program has claimed."""
        self._asking = asyncio.Semaphore(ASKED_TOGETHER)
        self._closed = False

    # --- memberships

    async def join(self, member: Member, ttl_s: float) -> None:
        self._joined = {name: mine for name, mine in self._joined.items() if not mine.over}
        mine = ZooKeeperMembership(member, self._address, ttl_s, self._clock, self._meter, self._serve)
        await mine.join()
        self._joined[member.id] = mine

    async def renew(self, member: Member, ttl_s: float) -> None:
        mine = self._mine(member.id)
        try:
            if mine is None:
                raise membership_lost(member.id)
            with mine.living():
                await mine.renew(member, ttl_s)
        except MembershipLost:
            # The membership has lapsed here. While no server can be reached, it isn't known whether its
            # claims are lost: then Unavailable is raised instead.
            await (await self._session()).sync()
            raise

    async def leave(self, member: str) -> None:
        mine = self._joined.pop(member, None)
        if mine is not None:
            await mine.leave()

    async def evict(self, member: str) -> bool:
        session = await self._session()
        await session.sync()
        path = layout.member(member)
        found = await session.get_or_none(path)
        if found is None:
            return False
        try:
            await session.commit(end_steps(member, decode_path(path, found[0])))
        except MembershipLost:
            return False
        return True

    async def members(self) -> list[Member]:
        session = await self._session()
        await session.sync()
        paths = [f"{layout.SERVICES}/{name}" for name in await session.children(layout.SERVICES)]
        found = zip(paths, await session.get_all(paths), strict=True)
        living = [decode_service(path, answer[0]) for path, answer in found if answer is not None]
        return sorted(living, key=lambda member: member.id)

    # --- claims

    async def lookup(self, key: str) -> Claim | None:
        session = await self._session()
        await session.sync()
        standing = await claims.read(session, key)
        if standing is None:
            return None
        mine = self._mine(standing.claim.member)
        if mine is not None:
            mine.keys.add(key)
        self._see(standing.claim)
        return standing.claim

    async def claim(self, key: str, member: str) -> Claim:
        mine = self._mine(member)
        if mine is not None:
            with mine.living():
                claim = await claims.claim(mine, key, self._clock)
        else:
            async with self._asking:
                claim = await requests.ask(await self._session(), self._clock, member, Request(key))
        self._see(claim)
        return claim

    async def transfer(self, claim: Claim, to: str) -> Claim:
        mine = self._mine(to)
        if mine is not None:
            with mine.living():
                moved = await claims.take(mine, claim, self._clock)
        else:
            async with self._asking:
                request = Request(claim.key, claim)
                moved = await requests.ask(await self._session(), self._clock, to, request)
        self._forget(claim, but=to)
        return moved

    async def release(self, claim: Claim) -> bool:
        released = await claims.release(await self._session(), claim, self._clock)
        self._forget(claim)
        return released

    async def claims(self, member: str | None = None) -> list[Claim]:
        session = await self._session()
        await session.sync()
        mine = self._mine(member) if member is not None else None
        keys = sorted(mine.keys) if mine is not None else layout.keys(await session.children(layout.TASKS))
        standing = await claims.read_all(session, keys)
        return [found.claim for found in standing if member in (None, found.claim.member)]

    # --- changes

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        session = await self._session()
        if self._feed is None:
            self._feed = ChangeFeed(
                session, self._clock, claims.read_all, concerns=self._concerns, see=self._see
            )
        return await self._feed.watch(after, wait_s)

    async def close(self) -> None:
        self._closed = True
        if self._feed is not None:
            await self._feed.close()
        ending = [mine.end() for mine in self._joined.values()]
        self._joined = {}
        if self._opened is not None:
            await asyncio.wait([self._opened])
            if not _failed(self._opened):
                ending.append(self._opened.result().close())
            self._opened = None
        await asyncio.gather(*ending)

    @property
    def sessions(self) -> list[ZooKeeperSession]:
        """The open sessions of its memberships, then its own."""
        own = [self._opened.result()] if self._opened is not None and not _failed(self._opened) else []
        return [mine.session for mine in self._joined.values()] + own

    # --- how it is done

    async def _session(self) -> ZooKeeperSession:
        """Return the session without a membership, opened at its first use, once for all who wait for it."""
        if self._closed:
            raise Unavailable("this coordinator is closed")
        if self._opened is None or _failed(self._opened):
            self._opened = asyncio.create_task(self._open())
            self._opened.add_done_callback(_failed)  # its exception is read, even if no caller waits
        return await asyncio.shield(self._opened)

    async def _open(self) -> ZooKeeperSession:
        session = ZooKeeperSession(self._address, SESSION_S, self._meter, changed=self._ring)
        await session.open()
        return session

    def _ring(self) -> None:
        if self._feed is not None:
            self._feed.ring()

    def _mine(self, member: str) -> ZooKeeperMembership | None:
        """Return a membership that was joined here and isn't known to be over."""
        mine = self._joined.get(member)
        return mine if mine is not None and not mine.over else None

    def _see(self, claim: Claim) -> None:
        """Note whether another program has the claim."""
        if claim.member.startswith(f"{layout.SERVICES}/"):
            self._foreign[claim.key] = None
        else:
            self._foreign.pop(claim.key, None)

    def _concerns(self, key: str) -> bool:
        """Return True if the end of the claim on ``key`` matters to this process."""
        return key in self._foreign or any(key in mine.keys for mine in self._joined.values())

    def _forget(self, claim: Claim, *, but: str = "") -> None:
        mine = self._mine(claim.member)
        if mine is not None and claim.member != but:
            mine.keys.discard(claim.key)

    async def _serve(self, mine: ZooKeeperMembership, path: str, request: Request) -> None:
        await requests.serve(mine, self._clock, path, request)


def _failed(task: asyncio.Task[ZooKeeperSession]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
