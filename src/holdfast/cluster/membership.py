"""A node's membership: how it is joined, renewed and left, and how it ends early on evidence of death."""

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
"""How long the coordinator counts as silent after a renewal that failed. The next renewal may take that
long."""


class Membership:
    """This node's membership and its view of the others. ``load`` returns the load that the node reports.

    When the membership is lost, the node joins again, and ``joined`` is set again once that is done."""

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
        """Why the node can't join while a member lives that it couldn't call; empty if there is none."""
        self._view = View(host)
        host.news.on_left.append(self._member_left)

    @property
    def view(self) -> dict[str, Member]:
        """The living members by id, with this node."""
        return self._view.members

    @property
    def alive(self) -> bool:
        """True while the membership may be trusted; past its deadline nothing new is started."""
        return self.joined.is_set() and self._lease.holds(self._clock.monotonic())

    @property
    def stands(self) -> bool:
        """True while ``alive``, and after that while the coordinator doesn't answer, because nobody has said
        that the membership is over. Use it only for actions that the state store checks anyway. A node that
        was paused hasn't asked the coordinator lately, so this is False until the coordinator answers."""
        return self.alive or (self.joined.is_set() and self._clock.monotonic() < self._silent_until)

    def cut_off(self) -> None:
        """Note that another node has opened a stream of this one, so the coordinator is silent for this node
        alone. ``stands`` is then False until the coordinator answers."""
        if not self.alive and not self._cut_off:
            self._cut_off = True
            self._silent_until = -math.inf
            self._log.warning("others reach the coordinator; waiting for its answer", member=self.id)

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
            self._log.warning("could not leave; the membership lapses by itself", error=str(error))

    def _has_left(self) -> bool:
        return self._left

    def _me(self) -> Member:
        return Member(self.id, self._host.name, self._address, self.load())

    async def _join(self) -> None:
        tries = 0
        while True:
            self.id = self._clock.new_id()
            if tries:  # the try before may have taken effect, and streams been given to this node since
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
                self._log.warning("can't join yet", error=str(error))
                await self._clock.sleep(self._backoff.delay_s(tries, self._clock.random()))
        self._has_joined()

    def _has_joined(self) -> None:
        self._host.stats.memberships += 1
        self.joined.set()
        self._log.info("joined", member=self.id, address=self._address)

    async def _reach_self(self) -> None:
        """Check that this node can be reached at its own address: one that others can't reach must not own
        anything."""
        try:
            reply = await self._peer.call(self._address, Probe(self.id), self._limits.peer_timeout_s)
        except OutcomeUnknown as error:
            raise Unavailable(f"no answer from this node's own address {self._address}: {error}") from error
        if isinstance(reply, UnknownMember):
            raise ConfigError(
                f"another node answers at {self._address}; set advertise to an address that reaches this node"
            )

    async def _fit_in(self) -> None:
        """Read the members, and leave again if one of them can't be called: neither could forward anything to
        the other. Of two that join at once, each sees the other this way."""
        await self._view.refresh_quietly()  # the membership is valid, whether or not this is answered
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
                    self._has_joined()  # an I/O error had ended the join after it took effect
                await self.refresh()
            except MembershipLost:
                if self._has_left():
                    return
                self._log.warning("membership lost; joining again", member=self.id)
                self.joined.clear()
                self._cut_off = False
                self._host.news.lost()
                await self._join()
            except HoldfastError as error:
                if error.retry in (Retry.SAFE, Retry.SAME) and not self._cut_off:
                    self._silent_until = self._clock.monotonic() + SILENCE_S
                self._log.warning("could not renew", error=str(error))

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
            if neighbour.id in self.view:  # it is alive after all: avoid a hot loop
                await self._clock.sleep(self._limits.renew_s)

    def _neighbour(self) -> Member | None:
        others = sorted(name for name, member in self.view.items() if name != self.id and not member.foreign)
        if not others:
            return None
        after = [member for member in others if member > self.id]
        return self.view[after[0] if after else others[0]]

    def _member_left(self, member: str) -> None:
        if member == self.id:
            self.renew_now.set()  # find out at once

    async def refresh(self) -> None:
        """Read the living members and their loads. Raises what the coordinator raises."""
        await self._view.refresh()

    async def suspect(self, member: str) -> None:
        """Probe a member whose connection failed, and evict it if its process is gone."""
        if member != self.id:
            await self._view.suspect(member)
