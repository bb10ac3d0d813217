"""The coordinator in memory. It can also lose everything, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Member, claim_lost, membership_lost
from holdfast.system.bell import Bell


@dataclass(slots=True)
class _Membership:
    member: Member
    expires_at: float


class MemoryCoordinator:
    """One coordinator, for all nodes. Change number ``n`` is ``changes[n - 1]``.

    ``log`` gets every change; share one list between services to have one order of all events.
    """

    def __init__(self, clock: Clock, *, log: list[Any] | None = None) -> None:
        self.log: list[Any] = [] if log is None else log
        self.changes: list[Change] = []
        self._clock = clock
        self._bell = Bell(clock)
        self._closings = 0
        self._memberships: dict[str, _Membership] = {}
        self._claims: dict[str, Claim] = {}
        self._versions: dict[str, int] = {}

    # --- memberships

    async def join(self, member: Member, ttl_s: float) -> None:
        self._lapse()
        self._memberships[member.id] = _Membership(member, self._clock.monotonic() + ttl_s)
        self._change(Change("joined", member=member))

    async def renew(self, member: Member, ttl_s: float) -> None:
        self._guard_lives(member.id)
        self._memberships[member.id] = _Membership(member, self._clock.monotonic() + ttl_s)

    async def leave(self, member: str) -> None:
        self._end(member)

    async def evict(self, member: str) -> bool:
        self._lapse()
        return self._end(member)

    async def members(self) -> list[Member]:
        self._lapse()
        return [self._memberships[i].member for i in sorted(self._memberships)]

    # --- claims

    async def lookup(self, key: str) -> Claim | None:
        return self._standing(key)

    async def claim(self, key: str, member: str) -> Claim:
        self._guard_lives(member)
        return self._standing(key) or self._set(key, member)

    async def transfer(self, claim: Claim, to: str) -> Claim:
        if not self._may_transfer(claim):
            raise claim_lost(claim)
        self._guard_target(to)
        return self._set(claim.key, to)

    async def release(self, claim: Claim) -> bool:
        if not self._may_release(claim):
            return False
        self._set(claim.key, "")
        return True

    async def claims(self, member: str | None = None) -> list[Claim]:
        standing = (self._standing(key) for key in sorted(self._claims))
        return [c for c in standing if c and member in (None, c.member)]

    # --- changes

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        while True:
            self._lapse()
            number = len(self.changes)
            if after < 0 or number < after:
                return number, []
            remaining_s = deadline - self._clock.monotonic()
            if number > after or remaining_s <= 0 or self._closings != closings:
                return number, self.changes[after:]
            await self._bell.wait(min(remaining_s, self._next_lapse_s()))

    async def close(self) -> None:
        self._closings += 1
        self._bell.ring()

    def forget(self) -> None:
        """Lose everything, like a server that restarts without its data: numbers start again."""
        self._memberships.clear()
        self._claims.clear()
        self._versions.clear()
        self.changes.clear()
        self._bell.ring()

    # --- the rules, one each

    def _may_transfer(self, claim: Claim) -> bool:
        return self._standing(claim.key) == claim

    def _may_release(self, claim: Claim) -> bool:
        return self._standing(claim.key) == claim

    def _guard_target(self, to: str) -> None:
        self._guard_lives(to)

    def _guard_lives(self, member: str) -> None:
        self._lapse()
        if member not in self._memberships:
            raise membership_lost(member)

    def _standing(self, key: str) -> Claim | None:
        """Return the claim on a key, if its membership lives."""
        self._lapse()
        claim = self._claims.get(key)
        return claim if claim and claim.member in self._memberships else None

    # --- how it is done

    def _set(self, key: str, member: str) -> Claim:
        version = self._versions[key] = self._versions.get(key, 0) + 1
        claim = Claim(key, member, version)
        if member:
            self._claims[key] = claim
        else:
            self._claims.pop(key, None)
        self._change(Change("claim", claim=claim))
        return claim

    def _end(self, member: str) -> bool:
        membership = self._memberships.pop(member, None)
        if membership:
            self._claims = {key: claim for key, claim in self._claims.items() if claim.member != member}
            self._change(Change("left", member=membership.member))
        return membership is not None

    def _lapse(self) -> None:
        now = self._clock.monotonic()
        for member in [i for i, m in self._memberships.items() if m.expires_at <= now]:
            self._end(member)

    def _next_lapse_s(self) -> float:
        soonest = min((m.expires_at for m in self._memberships.values()), default=float("inf"))
        return soonest - self._clock.monotonic()

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        self.log.append(change)
        self._bell.ring()
