"""A node's membership: it joins, renews and leaves, and a dead node's membership ends early."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from holdfast.cluster.host import Host
from holdfast.cluster.view import View
from holdfast.common.protocol import Probe, UnknownMember
from holdfast.common.protocol_versions import OUR_VERSIONS, no_common_version
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, HoldfastError, MembershipLost, OutcomeUnknown, Retry, Unavailable
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.cluster.lease import Lease

SILENCE_S = 15.0
"""Seconds for which the coordinator counts as silent after a failed renewal: the next one may take as
long."""


class Membership:
    """This node's membership and its view of the others. ``load`` returns the load that the node reports.

    A node that has lost its membership joins again; ``joined`` is set while it is a member."""

    def __init__(self, host: Host, load: Callable[[], Load]) -> None:
        self._host = host
        self._coordinator, self._peer, self._clock = host.coordinator, host.peer, host.clock
        self._limits, self._tasks, self._log = host.limits, host.tasks, host.log
        self.load = load
        self._address = ""
        self._lease = Lease(host.limits.ttl_s, -1e18)
        self._backoff = Backoff(host.limits.ttl_s / 20, host.limits.ttl_s)
        self._left = False
        self._silent_until = -math.inf
        self._cut_off = False
        self.renew_now = asyncio.Event()
        self.joined = asyncio.Event()
        self.id = ""
        self.misfit = ""
        """The reason why the node can't join: a living member has no protocol version in common with it; ""
        without one."""
        self._view = View(host)
        host.news.on_left.append(self._member_left)

    @property
    def view(self) -> dict[str, Member]:
        """The living members by id, with this node."""
        return self._view.members

    @property
    def alive(self) -> bool:
        """True while the membership may be trusted. After its deadline the node starts nothing new."""
        return self.joined.is_set() and self._lease.holds(self._clock.monotonic())

    @property
    def stands(self) -> bool:
        """True while ``alive``, and after that while the coordinator is silent, because the membership may
        still stand. Use it only for actions that the state store checks anyway. False for a node that was
        paused, until the coordinator answers: it hasn't asked the coordinator lately."""
        return self.alive or (self.joined.is_set() and self._clock.monotonic() < self._silent_until)

    def cut_off(self) -> None:
        """Note that another node has opened a stream of this one: the coordinator is silent only for this
        node. ``stands`` is then False until the coordinator answers."""
        if not self.alive and not self._cut_off:
            self._cut_off = True
            self._silent_until = -math.inf
            self._log.warning("node cut off from the coordinator", member=self.id)

    async def start(self, address: str) -> None:
        """Join under ``address`` and keep the membership alive."""
        self._address = address
        await self._join()
        self._tasks.repeat(self._renew, self._clock, self._log)
        self._view.start()
        self._tasks.repeat(self._watch_neighbour, self._clock, self._log)

    async def leave(self) -> None:
        """End the membership, which frees all its claims."""
        self._left = True
        self.joined.clear()
        try:
            await self._coordinator.leave(self.id)
        except HoldfastError as error:
            self._log.warning("cannot leave", error=str(error), fix="none: the membership lapses by itself")

    def _has_left(self) -> bool:
        return self._left

    def _me(self) -> Member:
        return Member(self.id, self._host.name, self._address, self.load())

    async def _join(self) -> None:
        tries = 0
        while True:
            self.id = self._clock.new_id()
            if tries:  # the previous try may have taken effect, and other nodes may have given it streams
                self._host.news.lost()
            sent_at = self._clock.monotonic()
            try:
                await self._reach_self()
                await self._coordinator.join(self._me(), self._limits.ttl_s)
                self._lease = Lease(self._limits.ttl_s, sent_at)
                await self._fit_in()
                break
            except HoldfastError as error:
                if error.retry is Retry.NEVER:
                    raise
                tries += 1
                self._log.warning("cannot join", error=str(error))
                await self._clock.sleep(self._backoff.delay_s(tries, self._clock.random()))
        self._has_joined()

    def _has_joined(self) -> None:
        self._host.stats.memberships += 1
        self.joined.set()
        self._log.info("joined", member=self.id, address=self._address)

    async def _reach_self(self) -> None:
        """Check that this node can be reached at its own address: an unreachable node must own no stream."""
        try:
            reply = await self._peer.call(self._address, Probe(self.id), self._limits.peer_timeout_s)
        except OutcomeUnknown as error:
            raise Unavailable(f"no answer from this node's own address {self._address}: {error}") from error
        if isinstance(reply, UnknownMember):
            raise ConfigError(
                f"another node answers at {self._address}; set advertise to an address of this node"
            )

    async def _fit_in(self) -> None:
        """Read the members, and leave again if one of them has no protocol version in common: the two
        couldn't forward messages to each other. Two nodes that join at once see each other this way."""
        await self._view.refresh_quietly()  # the membership is valid without an answer too
        self.misfit = ""
        for member in self.view.values():
            theirs = member.load.speaks
            if not member.foreign and OUR_VERSIONS.common(theirs) is None:
                self.misfit = f"node {member.name} lives: {no_common_version(theirs, OUR_VERSIONS)}"
                await self._coordinator.leave(self.id)
                raise Unavailable(self.misfit)

    async def _renew(self) -> None:
        while True:
            await self._clock.wait(self.renew_now, self._limits.renew_s)
            self.renew_now.clear()
            if self._has_left():
                return
            sent_at = self._clock.monotonic()
            try:
                await self._coordinator.renew(self._me(), self._limits.ttl_s)
                self._lease = self._lease.renewed(sent_at)
                self._silent_until, self._cut_off = -math.inf, False
                if not self.joined.is_set() and not self._has_left():
                    self._has_joined()  # an I/O error ended the join after it took effect
                await self.refresh()
            except MembershipLost:
                if self._has_left():
                    return
                self._log.warning("membership lost", member=self.id, fix="none: the node joins again")
                self.joined.clear()
                self._cut_off = False
                self._host.news.lost()
                await self._join()
            except HoldfastError as error:
                if error.retry in (Retry.SAFE, Retry.SAME) and not self._cut_off:
                    self._silent_until = self._clock.monotonic() + SILENCE_S
                self._log.warning("cannot renew the membership", error=str(error))

    async def _watch_neighbour(self) -> None:
        """Hold a connection to the next member in the ring of ids. If it breaks, probe that member."""
        while True:
            self._view.changed.clear()
            neighbour = self._neighbour()
            if neighbour is None:
                await self._view.changed.wait()
                continue
            gone = self._tasks.spawn(self._peer.gone(neighbour.address, neighbour.id))
            changed = self._tasks.spawn(self._view.changed.wait())
            if gone is None or changed is None:
                return
            await asyncio.wait((gone, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if not gone.done():
                gone.cancel()
                continue
            await self.suspect(neighbour.id)
            if neighbour.id in self.view:  # it is alive: avoid a hot loop
                await self._clock.sleep(self._limits.renew_s)

    def _neighbour(self) -> Member | None:
        others = sorted(name for name, member in self.view.items() if name != self.id and not member.foreign)
        if not others:
            return None
        after = [member for member in others if member > self.id]
        return self.view[after[0] if after else others[0]]

    def _member_left(self, member: str) -> None:
        if member == self.id:
            self.renew_now.set()  # the answer says whether it is true

    async def refresh(self) -> None:
        """Read the living members and their loads. Raises the coordinator's errors."""
        await self._view.refresh()

    async def suspect(self, member: str) -> None:
        """Probe a member after a failed connection, and evict it if its process has ended."""
        if member != self.id:
            await self._view.suspect(member)
