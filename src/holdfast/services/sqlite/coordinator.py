"""The coordinator in SQLite. Its time is the host's clock. The next writer ends memberships that have
lapsed."""

from __future__ import annotations

import math
import sqlite3

import msgspec

from holdfast.common.record import reading
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Load, Member, claim_lost, membership_lost, read_member
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.system.doorbell import SAFETY_S

TOPIC = "coordinator"

CHANGES_KEPT = 10_000
PRUNE_EVERY = 1_000

STANDING = """
SELECT c.key, c.member, c.version FROM claims c JOIN members m ON m.id = c.member
WHERE m.expires_at > ?"""

_encode = msgspec.msgpack.encode
_member = msgspec.msgpack.Decoder(Member)
_change = msgspec.msgpack.Decoder(Change)


class SqliteCoordinator:
    """The memberships and claims in a database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._closings = 0

    # --- memberships

    async def join(self, member: Member, ttl_s: float) -> None:
        def join(transaction: Transaction) -> None:
            self._lapse(transaction)
            transaction.execute(
                "INSERT OR REPLACE INTO members VALUES (?, ?, ?)",
                (member.id, self._clock.monotonic() + ttl_s, _encode(member)),
            )
            _note(transaction, Change("joined", member=member))

        await self._database.write(join)

    async def renew(self, member: Member, ttl_s: float) -> None:
        def renew(transaction: Transaction) -> None:
            now = self._clock.monotonic()
            renewed = transaction.execute(
                "UPDATE members SET expires_at = ?, record = ? WHERE id = ? AND expires_at > ?",
                (now + ttl_s, _encode(member), member.id, now),
            ).rowcount
            if not renewed:
                raise membership_lost(member.id)

        await self._database.write(renew)

    async def leave(self, member: str) -> None:
        await self.evict(member)

    async def evict(self, member: str) -> bool:
        def evict(transaction: Transaction) -> bool:
            self._lapse(transaction)
            return _end(transaction, member)

        return await self._database.write(evict)

    async def members(self) -> list[Member]:
        query = "SELECT record FROM members WHERE expires_at > ? ORDER BY id"
        rows = await self._database.rows(query, self._clock.monotonic())
        members = (read_member(record, _member.decode) for (record,) in rows)
        return [member for member in members if member is not None]

    # --- claims

    async def lookup(self, key: str) -> Claim | None:
        rows = await self._database.rows(f"{STANDING} AND c.key = ?", self._clock.monotonic(), key)
        return Claim(*rows[0]) if rows else None

    async def claim(self, key: str, member: str) -> Claim:
        def claim(transaction: Transaction) -> Claim:
            self._guard_lives(transaction, member)
            return self._standing(transaction, key) or _set(transaction, key, member)

        return await self._database.write(claim)

    async def transfer(self, claim: Claim, to: str) -> Claim:
        def transfer(transaction: Transaction) -> Claim:
            if self._standing(transaction, claim.key) != claim:
                raise claim_lost(claim)
            self._guard_lives(transaction, to)
            return _set(transaction, claim.key, to)

        return await self._database.write(transfer)

    async def release(self, claim: Claim) -> bool:
        def release(transaction: Transaction) -> bool:
            if self._standing(transaction, claim.key) != claim:
                return False
            _set(transaction, claim.key, "")
            return True

        return await self._database.write(release)

    async def claims(self, member: str | None = None) -> list[Claim]:
        query = f"{STANDING} AND (?2 IS NULL OR c.member = ?2) ORDER BY c.key"
        rows = await self._database.rows(query.replace("> ?", "> ?1", 1), self._clock.monotonic(), member)
        return [Claim(*row) for row in rows]

    # --- changes

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        with self._database.doorbell.listen(TOPIC) as rung:
            while True:
                rung.clear()
                first, last, lapse_at = await self._database.read(_horizon)
                now = self._clock.monotonic()
                if lapse_at <= now:
                    await self._database.write(self._lapse)
                    continue
                if after < 0 or last < after:
                    return last, []
                if after < first - 1:
                    return -1, []  # pruned: what the caller has missed is lost
                if last > after:
                    return await self._changes(after)
                remaining_s = deadline - now
                if remaining_s <= 0 or self._closings != closings:
                    return last, []
                await self._clock.wait(rung, min(remaining_s, lapse_at - now, SAFETY_S))

    async def close(self) -> None:
        self._closings += 1
        self._database.doorbell.ring_here([TOPIC])

    # --- how it is done

    async def _changes(self, after: int) -> tuple[int, list[Change]]:
        rows = await self._database.rows(
            "SELECT number, record FROM changes WHERE number > ? ORDER BY number", after
        )
        changes = []
        for number, record in rows:
            with reading(f"change {number} of the coordinator"):
                change = _change.decode(record)
            if change.claim is not None:
                change = Change("claim", claim=msgspec.structs.replace(change.claim, version=number))
            changes.append(change)
        return (rows[-1][0] if rows else -1), changes

    def _standing(self, transaction: Transaction, key: str) -> Claim | None:
        """Return the claim on a key, if its membership lives."""
        row = transaction.execute(f"{STANDING} AND c.key = ?", (self._clock.monotonic(), key)).fetchone()
        return Claim(*row) if row else None

    def _guard_lives(self, transaction: Transaction, member: str) -> None:
        query = "SELECT 1 FROM members WHERE id = ? AND expires_at > ?"
        if transaction.execute(query, (member, self._clock.monotonic())).fetchone() is None:
            raise membership_lost(member)

    def _lapse(self, transaction: Transaction) -> None:
        """End the memberships that have lapsed."""
        query = "SELECT id FROM members WHERE expires_at <= ?"
        for (member,) in transaction.execute(query, (self._clock.monotonic(),)).fetchall():
            _end(transaction, member)


def _set(transaction: Transaction, key: str, member: str) -> Claim:
    """Claim a key, or free it (no member). The change's number is the claim's version."""
    version = _note(transaction, Change("claim", claim=Claim(key, member, 0)))
    if member:
        transaction.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, member, version))
    else:
        transaction.execute("DELETE FROM claims WHERE key = ?", (key,))
    return Claim(key, member, version)


def _end(transaction: Transaction, member: str) -> bool:
    row = transaction.execute("SELECT record FROM members WHERE id = ?", (member,)).fetchone()
    if row is None:
        return False
    transaction.execute("DELETE FROM members WHERE id = ?", (member,))
    transaction.execute("DELETE FROM claims WHERE member = ?", (member,))
    known = read_member(row[0], _member.decode)
    _note(transaction, Change("left", member=known or Member(member, "", "", Load())))
    return True


def _note(transaction: Transaction, change: Change) -> int:
    number = transaction.execute("INSERT INTO changes (record) VALUES (?)", (_encode(change),)).lastrowid
    assert number is not None
    if number % PRUNE_EVERY == 0:
        transaction.execute("DELETE FROM changes WHERE number <= ?", (number - CHANGES_KEPT,))
    transaction.ring(TOPIC)
    return number


def _horizon(connection: sqlite3.Connection) -> tuple[int, int, float]:
    """Return the first and last change kept, and when the next membership lapses."""
    first, last, lapse_at = connection.execute(
        "SELECT (SELECT min(number) FROM changes),"
        " (SELECT seq FROM sqlite_sequence WHERE name = 'changes'), (SELECT min(expires_at) FROM members)"
    ).fetchone()
    return first or 0, last or 0, math.inf if lapse_at is None else lapse_at
