"""Claims under the bare ids of one stream, where other programs know streams by these: ``/tasks/cam-1``.

Its users are teams whose older programs claim streams by bare ids and run beside nodes for a while.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError
from holdfast.ports.coordinator import Change, Claim, Coordinator, Member


class OneStream:
    """A coordinator for the keys of one ``stream``, which it passes to ``below`` without the stream's name.

    Raises ConfigError for a key of another stream."""

    def __init__(self, below: Coordinator, stream: str) -> None:
        self._below = below
        self._prefix = f"{stream}/"

    async def join(self, member: Member, ttl_s: float) -> None:
        await self._below.join(member, ttl_s)

    async def renew(self, member: Member, ttl_s: float) -> None:
        await self._below.renew(member, ttl_s)

    async def leave(self, member: str) -> None:
        await self._below.leave(member)

    async def evict(self, member: str) -> bool:
        return await self._below.evict(member)

    async def members(self) -> list[Member]:
        return await self._below.members()

    async def lookup(self, key: str) -> Claim | None:
        claim = await self._below.lookup(self._bare(key))
        return self._full(claim) if claim is not None else None

    async def claim(self, key: str, member: str) -> Claim:
        return self._full(await self._below.claim(self._bare(key), member))

    async def transfer(self, claim: Claim, to: str) -> Claim:
        return self._full(await self._below.transfer(self._bared(claim), to))

    async def release(self, claim: Claim) -> bool:
        return await self._below.release(self._bared(claim))

    async def claims(self, member: str | None = None) -> list[Claim]:
        return [self._full(claim) for claim in await self._below.claims(member)]

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        number, changes = await self._below.watch(after, wait_s)
        return number, [self._full_change(change) for change in changes]

    async def close(self) -> None:
        await self._below.close()

    def _bare(self, key: str) -> str:
        if not key.startswith(self._prefix):
            raise ConfigError(
                f"coordinator_url names the stream {self._prefix[:-1]!r}, but {key!r} is of another: leave"
                " ?stream= out of the URL, or declare that stream alone"
            )
        return key.removeprefix(self._prefix)

    def _bared(self, claim: Claim) -> Claim:
        return msgspec.structs.replace(claim, key=self._bare(claim.key))

    def _full(self, claim: Claim) -> Claim:
        return msgspec.structs.replace(claim, key=self._prefix + claim.key)

    def _full_change(self, change: Change) -> Change:
        if change.claim is None:
            return change
        return msgspec.structs.replace(change, claim=self._full(change.claim))
