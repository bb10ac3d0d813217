"""The coordinator: memberships, claims and their changes. For liveness and routes only.

It may lose everything at any time; nothing wrong is committed, because the state store fences.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from holdfast.cluster.rules.placement import Load, Member

__all__ = ["Change", "Claim", "Coordinator", "Load", "Member"]


class Claim(msgspec.Struct, frozen=True):
    """A membership's mark on a key. ``version`` grows with every change of the key's claim."""

    key: str
    member: str
    version: int


class Change(msgspec.Struct, frozen=True):
    """Something changed. ``claim`` carries the new claim, or one without member when it was released."""

    kind: Literal["joined", "left", "claim"]
    member: Member | None = None
    claim: Claim | None = None


class Coordinator(Protocol):
    """Memberships and claims."""

    async def join(self, member: Member, ttl_s: float) -> None:
        """Register a new membership that lives for ``ttl_s`` from now unless renewed."""

    async def renew(self, member: Member, ttl_s: float) -> None:
        """Prolong and publish the load. Raises MembershipLost if the membership isn't known or lapsed."""

    async def leave(self, member: str) -> None:
        """End an own membership; its claims become free."""

    async def evict(self, member: str) -> bool:
        """End another's membership on evidence of its death; True if this call ended it."""

    async def members(self) -> list[Member]:
        """The living, in order of id."""

    async def lookup(self, key: str) -> Claim | None:
        """The claim of a living membership on ``key``, or None: free."""

    async def claim(self, key: str, member: str) -> Claim:
        """Claim ``key`` for a membership if it is free; returns the claim that stands afterwards,
        which may be another's. Raises MembershipLost if ``member`` doesn't live."""

    async def transfer(self, claim: Claim, to: str) -> Claim:
        """Hand a claim over if it still stands exactly so. Raises ClaimLost if not, MembershipLost if
        ``to`` doesn't live; then nothing changed."""

    async def release(self, claim: Claim) -> bool:
        """Free the key if the claim still stands exactly so; else change nothing and return False."""

    async def claims(self, member: str | None = None) -> list[Claim]:
        """Claims of the living, in order of key; only those of ``member`` if given."""

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        """Changes after the number ``after``, waiting up to ``wait_s`` for the first, and the number to
        go on from. ``after=-1`` gives the present number at once. Changes may be lost when the
        coordinator forgets or prunes: a number lower than ``after`` means start again."""

    async def close(self) -> None:
        """Release connections."""
