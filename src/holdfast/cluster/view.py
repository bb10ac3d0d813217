"""The living members from the view of one process: read from the coordinator, watched, and probed when
suspect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.cluster.host import Host
from holdfast.common.protocol import Probe, UnknownMember
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, NobodyThere, OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Member

WATCH_WAIT_S = 5.0
PROBES = 2


class View:
    """The living members by id. It reports changes of members and claims to the host's ``news``.

    ``changed`` is set when members join or leave; the code that waits for it clears it. ``on_left`` is called
    with the last known record of each member that has ended; again when the coordinator reports how it
    ended."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._coordinator, self._clock, self._log = host.coordinator, host.clock, host.log
        self._backoff = Backoff(host.limits.ttl_s / 20, host.limits.ttl_s)
        self._suspects: dict[str, None] = {}
        self.changed = asyncio.Event()
        self.on_left: list[Callable[[Member], None]] = []
        self.members: dict[str, Member] = {}

    def start(self) -> None:
        """Start to watch."""
        self._host.tasks.repeat(self._watch, self._clock, self._log)

    async def _watch(self) -> None:
        after, failures = -1, 0
        while True:
            try:
                number, changes = await self._coordinator.watch(after, WATCH_WAIT_S)
                failures = 0
            except HoldfastError as error:
                failures += 1
                self._log.debug("watch failed", error=str(error))
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                continue
            if after < 0 or number < after:
                changes = []
                self._host.tasks.spawn(self.refresh_quietly())
                self._host.news.missed()
            after = number
            for change in changes:
                if change.kind == "joined" and change.member is not None:
                    self._set(change.member)
                elif change.kind == "left" and change.member is not None:
                    self._drop(change.member.id)
                    self._notify_left(change.member)
                elif change.kind == "claim" and change.claim is not None:
                    self._host.news.claimed(change.claim)

    async def refresh_quietly(self) -> None:
        """Read the members as ``refresh`` does, and only log a failure."""
        try:
            await self.refresh()
        except HoldfastError as error:
            self._log.debug("cannot read members", error=str(error))

    async def refresh(self) -> None:
        """Read the living members and their loads. Raises the coordinator's errors."""
        before = list(self.members)
        members = await self._coordinator.members()
        living = {member.id for member in members}
        for known in before:  # a member that joined meanwhile may be missing in the answer
            if known not in living:
                self._drop(known)
        for member in members:
            self._set(member)

    def _set(self, member: Member) -> None:
        if member.id not in self.members:
            self.changed.set()
        self.members[member.id] = member

    def _drop(self, member: str) -> None:
        if (known := self.members.pop(member, None)) is not None:
            self.changed.set()
            self._notify_left(known)
            self._host.news.left(member)

    def _notify_left(self, member: Member) -> None:
        for notify in self.on_left:
            notify(member)

    async def suspect(self, member: str) -> None:
        """Probe a member after a failed connection, and evict it if its process has ended."""
        suspected = self.members.get(member)
        if suspected is None or suspected.foreign or member in self._suspects:
            return
        self._suspects[member] = None
        try:
            if await self._is_gone(suspected):
                await self._coordinator.evict(member)
                self._host.stats.evictions += 1
                self._log.warning("dead node evicted", node=suspected.name, member=member)
                self._drop(member)
        except HoldfastError as error:
            self._log.warning("cannot evict a dead node", member=member, error=str(error))
        finally:
            del self._suspects[member]

    async def _is_gone(self, member: Member) -> bool:
        """Return whether there is evidence that the process has ended. Silence isn't evidence, and a living
        process refused a refused request. The membership of a silent process ends at its TTL."""
        for _ in range(PROBES):
            try:
                reply = await self._host.peer.call(
                    member.address, Probe(member.id), self._host.limits.peer_timeout_s
                )
            except NobodyThere:
                return True
            except OutcomeUnknown:
                continue  # perhaps a pooled connection broke with the process: try again
            except Unavailable:
                return False
            return isinstance(reply, UnknownMember)
        return False
