"""The coordinator in Redis. Memberships expire by themselves, and a claim without a membership doesn't
count."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from holdfast.common.record import UNREADABLE, reading
from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Member, claim_lost, membership_lost, read_member
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.feed import ChannelFeed

SWEEP = 250
"""Claims of ended memberships that one reading of the members removes."""

PAGE = 500
"""Claims that one call reads."""

JOIN, EVICT, MEMBERS, LOOKUP, CLAIM, TRANSFER, RELEASE, CLAIMS = (
    Script.load(name, "coordinator")
    for name in ("join", "evict", "members", "lookup", "claim", "transfer", "release", "claims")
)

_encode = msgspec.json.encode
_member = msgspec.json.Decoder(Member)


class RedisCoordinator:
    """The memberships and claims in one namespace of a Redis. ``connection`` is closed with it."""

    def __init__(self, connection: RedisConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._root = f"{{{connection.address.namespace}}}:coordinator"
        self._feed = ChannelFeed(connection, self._root, f"{self._root}:changes")
        self._lapse_at = 0.0
        self._closed = False

    # --- memberships

    async def join(self, member: Member, ttl_s: float) -> None:
        await self._run(JOIN, member.id, _encode(member), _ms(ttl_s))

    async def renew(self, member: Member, ttl_s: float) -> None:
        self._lapse_at = min(self._lapse_at, self._clock.monotonic() + ttl_s)
        # One command, whatever the node owns. XX: only an existing key is prolonged.
        life = f"{self._root}:member:{member.id}"
        if await self._connection.command(life, "SET", life, _encode(member), "PX", _ms(ttl_s), "XX") is None:
            raise membership_lost(member.id)

    async def leave(self, member: str) -> None:
        await self.evict(member)

    async def evict(self, member: str) -> bool:
        return bool(await self._run(EVICT, member))

    async def members(self) -> list[Member]:
        next_ms, living = await self._run(MEMBERS, SWEEP)
        self._lapse_at = self._clock.monotonic() + (next_ms + 1) / 1000 if next_ms >= 0 else math.inf
        members = (read_member(record, _member.decode) for record in living)
        return sorted((member for member in members if member is not None), key=lambda member: member.id)

    # --- claims

    async def lookup(self, key: str) -> Claim | None:
        claim = await self._run(LOOKUP, key)
        return _claim(key, claim) if claim else None

    async def claim(self, key: str, member: str) -> Claim:
        claim = await self._run(CLAIM, key, member)
        if claim is None:
            raise membership_lost(member)
        return _claim(key, claim)

    async def transfer(self, claim: Claim, to: str) -> Claim:
        answer = await self._run(TRANSFER, claim.key, _text(claim), to)
        if answer == 0:
            raise claim_lost(claim)
        if answer == 1:
            raise membership_lost(to)
        return _claim(claim.key, answer)

    async def release(self, claim: Claim) -> bool:
        return bool(await self._run(RELEASE, claim.key, _text(claim)))

    async def claims(self, member: str | None = None) -> list[Claim]:
        found: dict[str, Claim] = {}  # a key may be seen twice while the server makes room
        cursor = b"0"
        while True:
            cursor, page = await self._run(CLAIMS, cursor, PAGE, member or "")
            for key, claim in zip(page[::2], page[1::2], strict=True):
                name = key.decode(errors="replace")
                found[name] = _claim(name, claim)
            if cursor == b"0":
                return [found[key] for key in sorted(found)]

    # --- changes

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        try:
            return await self._watch(after, wait_s)
        except Unavailable:
            if not self._closed:
                raise
            return after, []

    async def close(self) -> None:
        self._closed = True
        await self._feed.close()
        await self._connection.close()

    # --- how it is done

    async def _watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        deadline = self._clock.monotonic() + wait_s
        while True:
            rung = self._feed.rung
            await self._feed.begin()
            if after < 0 or after > self._feed.last:
                return self._feed.last, []
            messages = self._feed.after(after)
            if messages is None:
                return -1, []
            if messages:
                return self._feed.last, [change for m in messages if (change := self._change(m))]
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0:
                return after, []
            if self._lapse_at <= self._clock.monotonic():
                await self.members()  # a time to live ends silently: this reading publishes it
            else:
                await self._clock.wait(rung, min(remaining_s, self._lapse_at - self._clock.monotonic()))

    async def _run(self, script: Script, *arguments: str | bytes | int) -> Any:
        return await self._connection.script(script, (self._root,), *arguments)

    def _change(self, message: bytes) -> Change | None:
        """Return the change in a message; None if it isn't understood, as it may come from a later
        version."""
        kind, _, body = message.partition(b" ")
        try:
            if kind == b"claim":
                version, member, key = body.decode().split(" ", 2)
                return Change("claim", claim=Claim(key, member, int(version)))
            if kind == b"joined":
                self._lapse_at = 0.0  # the message doesn't hold its expiry: read it
                return Change("joined", member=_member.decode(body))
            if kind == b"left":
                return Change("left", member=_member.decode(body))
        except UNREADABLE:
            pass
        return None


def _claim(key: str, claim: bytes) -> Claim:
    with reading(f"the claim of {key} at the coordinator"):
        version, _, member = claim.decode().partition(" ")
        return Claim(key, member, int(version))


def _text(claim: Claim) -> str:
    return f"{claim.version} {claim.member}"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
