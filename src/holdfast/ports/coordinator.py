"""The coordinator: memberships, claims and their changes, used only for liveness and routes.

It may lose everything at any time. Nothing wrong is committed then, because the state store fences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import ClaimLost, MembershipLost
from holdfast.rules.cluster.placement import Load, Member

__all__ = ["Change", "Claim", "Coordinator", "Load", "Member"]


class Claim(msgspec.Struct, frozen=True):
    """A membership's mark on a key. ``version`` grows with every change of the key's claim."""

    key: str
    member: str
    version: int


class Change(msgspec.Struct, frozen=True):
    """A change of the members or of a claim. ``claim`` is the new claim, or one without a member if it was
    released."""

    kind: Literal["joined", "left", "claim"]
    member: Member | None = None
    claim: Claim | None = None


def membership_lost(member: str) -> MembershipLost:
    """Return the error for a membership that isn't alive."""
    return MembershipLost(f"membership {member} is not known: lapsed, evicted or forgotten; join again")


def claim_lost(claim: Claim) -> ClaimLost:
    """Return the error for a claim that has changed."""
    return ClaimLost(f"{claim.key}: the claim of {claim.member}, version {claim.version}, has changed")


def read_member(record: bytes, decode: Callable[[bytes], Member]) -> Member | None:
    """Return a member; None for an unreadable record, so that the others are still listed."""
    try:
        return decode(record)
    except UNREADABLE:
        return None


class Coordinator(Protocol):
    """Memberships and claims."""

    async def join(self, member: Member, ttl_s: float) -> None:
        """Register a new membership that lives for ``ttl_s`` from now unless renewed."""

    async def renew(self, member: Member, ttl_s: float) -> None:
        """Renew the membership and publish its load. Raises MembershipLost if it isn't known or has ended."""

    async def leave(self, member: str) -> None:
        """End the caller's own membership; its claims become free."""

    async def evict(self, member: str) -> bool:
        """End the membership of a dead node; return True if this call ended it."""

    async def members(self) -> list[Member]:
        """Return the living members, in order of id."""

    async def lookup(self, key: str) -> Claim | None:
        """Return the claim of a living membership on ``key``; None if it is free."""

    async def claim(self, key: str, member: str) -> Claim:
        """Claim ``key`` for a membership if it is free. Returns the present claim, which may be another
        member's. Raises MembershipLost if ``member`` isn't alive."""

    async def transfer(self, claim: Claim, to: str) -> Claim:
        """Transfer a claim to ``to`` if it is unchanged. Raises ClaimLost if it has changed, and
        MembershipLost if ``to`` isn't alive; then nothing changed."""

    async def release(self, claim: Claim) -> bool:
        """Free the key if the claim is unchanged; else change nothing and return False."""

    async def claims(self, member: str | None = None) -> list[Claim]:
        """Return the claims of living members, in order of key; only claims of ``member`` if given."""

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        """Return changes after the number ``after``, waiting up to ``wait_s`` for the first, and the number
        to go on from. ``after=-1`` gives the present number at once. Changes may be lost when the coordinator
        loses or deletes them: a number lower than ``after`` means to start again."""

    async def close(self) -> None:
        """Close all connections."""
