"""A node's share of its app's global limit of concurrent tasks. The shares are kept in the registry."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.cluster.host import Host
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.registry import Document, Registry
from holdfast.rules.cluster.lease import Lease
from holdfast.rules.tasks import concurrency as rules
from holdfast.rules.tasks.concurrency import DRIFT, ConcurrencyLimits, Grant, LimitShare, Witness
from holdfast.tasks.documents import CONFLICTS_MAX, change, record_in, rewritten

PREFIX = "limits/"
"""The prefix of the names of documents with limits."""

UNLIMITED = 2**31
"""The grant of a node if there is no limit."""

LEASE_S = 30.0
"""Seconds for which a grant is valid after its last renewal. The grant of a dead node is free after that."""

RENEWALS = rules.LOOKS
"""Renewals in one lease."""

LOOK_S = 0.25
"""The shortest pause between a node's reads of the limits and of what the others want."""


class _Sent(NamedTuple):
    """A write that isn't answered yet."""

    beat: int
    sent_at: float
    granted: int


class GrantHolder(Protocol):
    """The part of a node that runs the granted tasks."""

    @property
    def running(self) -> int:
        """The number of tasks that run here now."""

    def limits_changed(self) -> None:
        """Apply changed values of ``granted`` and ``until``. After this returns, no task above a lower grant
        may begin: only then the other nodes may use the rest."""


class ConcurrencyLimiter:
    """The limit on how many tasks of an app may run on this node.

    Without a global limit, nothing is written, and the limits are only watched. With one, the node's grant is
    renewed while the node wants or runs tasks. A grant that can't be renewed is valid until its lease ends;
    if the limit is strict, running tasks end with it. A node applies new limits as soon as it has read them.

    Set ``holder`` before the start.

    Args:
        member: returns the name of this node's grant; called once, at the start. No other node may ever have
            the same name.
    """

    def __init__(
        self,
        registry: Registry,
        app: str,
        host: Host,
        *,
        member: Callable[[], str],
        lease_s: float = LEASE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._registry = registry
        self._name = document_name(app)
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._new_member = member
        self.holder: GrantHolder
        self._lease_s = lease_s
        self._look_s = look_s
        self._backoff = Backoff(look_s, lease_s / RENEWALS)
        self._lease = Lease(lease_s, -math.inf, DRIFT)
        self._witness = Witness()
        self._woken = asyncio.Event()
        self._writing = asyncio.Lock()
        self._member = ""
        self._wants = 0
        self._known = False
        self._left = False
        self._version = 0
        self._limits = ConcurrencyLimits()
        self._document: Document | None = None
        self._granted = 0
        self._told = 0, math.inf
        self._beat = 0
        self._sent: _Sent | None = None
        self._renewals: dict[int, float] = {}

    @property
    def granted(self) -> int:
        """The number of tasks that may run here at once. After it fell, more may still run for a while."""
        if not self._known or self._left:
            return 0
        if not self._limits.maximum:
            return self._limits.per_node or UNLIMITED
        return self._granted if self._lease.holds(self._clock.monotonic()) else 0

    @property
    def until(self) -> float:
        """Until when running tasks may go on (monotonic seconds), unless this is extended in time: others may
        use the grant after that. Infinite without a strict limit."""
        strict = self._limits.maximum and self._limits.strict and self._lease.sent_at > -math.inf
        return self._lease.deadline if strict else math.inf

    @property
    def limits(self) -> ConcurrencyLimits:
        """The app's limits and the grants of all nodes, as last read."""
        return self._limits

    def start(self) -> None:
        """Start to watch the limits, and to ask for the wanted grant."""
        self._member = self._new_member()
        self._tasks.repeat(self._keep, self._clock, self._log)
        self._tasks.repeat(self._watch, self._clock, self._log)

    def want(self, number: int) -> None:
        """Set how many tasks could run here at once, including the running ones."""
        self._wants = number
        if self._limits.maximum:
            self._woken.set()

    async def leave(self) -> None:
        """Give the grant back at once, because nothing runs here any more."""
        self._left = True
        try:
            async with self._writing:
                await change(
                    self._registry,
                    self._clock,
                    self._name,
                    ConcurrencyLimits,
                    lambda limits: rules.leave(limits, self._member),
                )
        except HoldfastError as error:
            self._log.warning(
                "cannot give grant back",
                error=str(error),
            )

    # --- the loops

    async def _keep(self) -> None:
        """Keep the wanted grant, renewed in time."""
        failures = 0
        while not self._left:
            self._woken.clear()
            try:
                await self._renew()
                failures = 0
                pause_s = self._pause_s()
            except HoldfastError as error:
                failures += 1
                self._log.warning("cannot renew grant", error=str(error))
                pause_s = self._backoff.delay_s(failures, self._clock.random())
            self._tell()
            await self._clock.sleep(pause_s)
            if not failures:
                await self._clock.wait(self._woken, self._rest_s())
            self._tell()

    async def _watch(self) -> None:
        """Read the document when others change it."""
        failures = 0
        while not self._left:
            try:
                version = self._version
                wait_s = self._lease_s / rules.LOOKS - 2 * self._look_s if self._known else 0.0
                self._see(await self._registry.changed(self._name, version, wait_s), version)
                failures = 0
                pause_s = self._pause_s()
                if self._version != version:
                    self._woken.set()
            except HoldfastError as error:
                failures += 1
                self._log.warning("cannot read limits", error=str(error))
                pause_s = self._backoff.delay_s(failures, self._clock.random())
            self._tell()
            await self._clock.sleep(pause_s)

    def _pause_s(self) -> float:
        return self._look_s * (0.5 + self._clock.random())

    def _rest_s(self) -> float | None:
        """Return the time until the next renewal, or until the grant ends."""
        if not self._limits.maximum or self._member not in self._limits.grants:
            return None
        now = self._clock.monotonic()
        due = [at for at in (self._renewal_at(), self._lease.deadline) if at > now]
        return min(due) - now if due else self._lease_s / RENEWALS

    def _renewal_at(self) -> float:
        return self._lease.sent_at + self._lease_s / RENEWALS

    # --- one look

    async def _renew(self) -> None:
        """Write this node's new grant, unless the present one is the same or almost the same."""
        if not self._known:
            await self._read()
        for _ in range(CONFLICTS_MAX):
            if self._left or not self._limits.maximum:
                return
            share = rules.share(
                self._limits,
                self._member,
                self._asked(),
                self.holder.running,
                lapsed=self._witness.lapsed(),
                beat=self._beat + 1,
                lease_s=self._lease_s,
            )
            if not self._is_worth_it(share):
                self._granted = share.granted
                return
            async with self._writing:
                if self._has_left() or await self._write(share):
                    return
            await self._clock.sleep(self._pause_s() / 4)
        raise Unavailable(f"{self._name}: {CONFLICTS_MAX} others wrote first")

    def _asked(self) -> int:
        """Return how much to ask for. Between renewals, the present grant is kept unless others want it."""
        own = self._limits.grants.get(self._member)
        if own is None or self._is_due() or rules.others_starve(self._limits, self._member):
            return self._wants
        return max(self._wants, own.count)

    def _is_due(self) -> bool:
        return self._clock.monotonic() >= self._renewal_at()

    def _is_worth_it(self, share: LimitShare) -> bool:
        own, new = self._limits.grants.get(self._member), share.limits.grants.get(self._member)
        if self._sent is not None:
            return True  # only another write shows whether that one took effect
        if own is None or new is None:
            return own is not new
        return self._is_due() or new.count != own.count or new.wants > max(own.wants, new.count)

    async def _write(self, share: LimitShare) -> bool:
        """Replace the document that was read last. If it has changed meanwhile, read the new one and return
        False."""
        if share.granted < self._granted:
            self._granted = share.granted
            self._tell()
        self._beat += 1
        expect = self._version
        sent = self._sent = _Sent(self._beat, self._clock.monotonic(), share.granted)
        try:
            body = rewritten(self._document, self._limits, share.limits)
            written = await self._registry.put(self._name, body, expect)
        except OutcomeUnknown:
            written = None
        except HoldfastError:
            if self._sent is sent:
                self._sent = None  # nothing happened
            raise
        else:
            if written is None and self._sent is sent:
                self._sent = None
        if written is None:
            await self._read()
        else:
            self._see(written, expect)
        return written is not None or self._lease.sent_at == sent.sent_at

    async def _read(self) -> None:
        known = self._version
        self._see(await self._registry.get(self._name), known)

    def _see(self, document: Document | None, known: int) -> None:
        """Take a document as the present one, unless a newer one is known. ``known`` is the version that was
        known when it was asked for. An older one than that shows that the registry has lost writes, as no
        version is used twice."""
        version = document.version if document else 0
        if self._known and version == self._version:
            self._witness.see(self._limits, self._clock.monotonic())
            return
        has_lost = self._known and version < self._version
        if has_lost and known != self._version:
            return
        limits = record_in(document, ConcurrencyLimits)
        self._known, self._version, self._limits, self._document = True, version, limits, document
        self._witness.see(limits, self._clock.monotonic())
        own = limits.grants.get(self._member)
        if has_lost:
            self._fall_back(own)
        if not limits.maximum:  # tasks that begin now need no grant
            self._lease = Lease(self._lease_s, -math.inf, DRIFT)
        sent, self._sent = self._sent, None  # if it isn't in this version, it can't take effect
        if sent is not None and own is not None and own.beat == sent.beat:
            self._granted = sent.granted
            self._lease = self._lease.renewed(sent.sent_at)
            self._note_renewal(sent)

    def _note_renewal(self, sent: _Sent) -> None:
        self._renewals = {
            beat: at
            for beat, at in self._renewals.items()
            if Lease(self._lease_s, at, DRIFT).holds(sent.sent_at)
        }
        self._renewals[sent.beat] = sent.sent_at

    def _fall_back(self, own: Grant | None) -> None:
        """Reduce the grant to what the registry still has. Others count its lease from the last renewal that
        was not lost."""
        self._granted = min(self._granted, own.count if own else 0)
        if own is not None and own.beat in self._renewals:
            self._lease = Lease(self._lease_s, self._renewals[own.beat], DRIFT)

    def _has_left(self) -> bool:
        return self._left

    def _tell(self) -> None:
        telling = self.granted, self.until
        if telling != self._told:
            self._told = telling
            self.holder.limits_changed()


def document_name(app: str) -> str:
    """Return the name of the registry's document with an app's limits."""
    return f"{PREFIX}{app}"
