"""The coordinator in PostgreSQL. Its time is the database's clock. The next call that changes something ends
lapsed memberships; watchers make such calls."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.common.record import reading
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Load, Member, claim_lost, membership_lost, read_member
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

TOPIC = "coordinator"

PAGE = 5_000
"""The most changes that one look returns."""

ROOM_BYTES = 2**20
"""Rebuild threshold of the tables of members and changes: four times the last size plus 1 MiB."""

COORDINATE = """
SELECT verdict, holder, given FROM {schema}.coordinate(
    %b::text[], %b::text[], %b::float8[], %b::bytea[], %b::text[], %b::bigint[], %b::text[])"""

MEMBERS = "SELECT record FROM {schema}.members WHERE expires_at > statement_timestamp() ORDER BY id"

LOOKUP = "SELECT key, member, version FROM {schema}.claims_on(%b::text[])"

CLAIMS = """
SELECT c.key, c.member, c.version FROM {schema}.claims AS c JOIN {schema}.members AS m ON m.id = c.member
WHERE m.expires_at > statement_timestamp() {which} ORDER BY c.key"""

# The row of the number itself comes first, if it is still there. Reads members before changes, in the order
# in which the function that rebuilds both tables locks them.
LOOK = """
SELECT s.lapse_s, s.untidy, c.number, c.kind, c.member, c.key, c.record
FROM (
    SELECT extract(epoch FROM min(m.expires_at) - statement_timestamp())::float8 AS lapse_s,
        (SELECT pg_relation_size('{schema}.members') > 4 * k.members_bytes + %(room)s
            OR pg_relation_size('{schema}.changes') > 4 * k.changes_bytes + %(room)s
         FROM {schema}.coordinator AS k) AS untidy
    FROM {schema}.members AS m
) AS s LEFT JOIN (
    SELECT * FROM {schema}.changes
    WHERE number >= CASE
        WHEN %(after)s >= 0 THEN %(after)s ELSE (SELECT max(number) FROM {schema}.changes) END
    ORDER BY number LIMIT %(page)s
) AS c ON true ORDER BY c.number"""

TIDY = "SELECT {schema}.tidy_coordinator()"

_encode = msgspec.json.encode
_member = msgspec.json.Decoder(Member)


class _Request(NamedTuple):
    """A request to the function ``coordinate``; see the migration that makes it."""

    kind: str
    id: str = ""
    ttl_s: float = 0.0
    record: bytes = b""
    key: str = ""
    version: int = 0
    heir: str = ""


class _Answer(NamedTuple):
    verdict: str
    holder: str
    version: int


class _WatchPage(NamedTuple):
    """The result of one look of a watcher. ``number``: the change from where to go on, or -1 if some were
    missed. ``lapse_s``: seconds until the next membership lapses, or None. ``untidy``: the tables
    should be rebuilt."""

    number: int
    changes: list[Change]
    lapse_s: float | None
    untidy: bool


class PostgresCoordinator:
    """The memberships and claims in a database."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self._database = database
        self._lane = database.lane("membership")
        self._clock = clock
        self._closings = 0
        self._coordinate, self._members, self._lookup = map(database.sql, (COORDINATE, MEMBERS, LOOKUP))
        self._claims = database.sql(CLAIMS.replace("{which}", ""))
        self._claims_of = database.sql(CLAIMS.replace("{which}", "AND c.member = %s"))
        self._look, self._tidy = map(database.sql, (LOOK, TIDY))

    # --- memberships

    async def join(self, member: Member, ttl_s: float) -> None:
        await self._ask(_Request("join", member.id, ttl_s, _encode(member)))

    async def renew(self, member: Member, ttl_s: float) -> None:
        answer = await self._lane.run_once(
            self._run, _Request("renew", member.id, ttl_s, _encode(member)), writes=True
        )
        if answer.verdict == "lost":
            raise membership_lost(member.id)

    async def leave(self, member: str) -> None:
        await self.evict(member)

    async def evict(self, member: str) -> bool:
        return (await self._ask(_Request("evict", member))).verdict == "done"

    async def members(self) -> list[Member]:
        rows = await self._lane.rows(self._members)
        members = (read_member(record, _member.decode) for (record,) in rows)
        return [member for member in members if member is not None]

    # --- claims

    async def lookup(self, key: str) -> Claim | None:
        return await self._lane.run_once(self._find, key, writes=False)

    async def claim(self, key: str, member: str) -> Claim:
        answer = await self._ask(_Request("claim", member, key=key))
        if answer.verdict == "lost":
            raise membership_lost(member)
        return Claim(key, answer.holder, answer.version)

    async def transfer(self, claim: Claim, to: str) -> Claim:
        answer = await self._ask(
            _Request("transfer", claim.member, key=claim.key, version=claim.version, heir=to)
        )
        if answer.verdict == "changed":
            raise claim_lost(claim)
        if answer.verdict == "lost":
            raise membership_lost(to)
        return Claim(claim.key, answer.holder, answer.version)

    async def release(self, claim: Claim) -> bool:
        answer = await self._ask(_Request("release", claim.member, key=claim.key, version=claim.version))
        return answer.verdict == "done"

    async def claims(self, member: str | None = None) -> list[Claim]:
        query, parameters = (self._claims, None) if member is None else (self._claims_of, (member,))
        return [Claim(*row) for row in await self._lane.rows(query, parameters)]

    # --- changes

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        with self._database.bells.listen(TOPIC) as rung:
            while True:
                rung.clear()
                look = await self._see(after)
                if look.untidy:
                    await self._rebuild()
                if look.lapse_s is not None and look.lapse_s <= 0:
                    await self._ask(_Request("lapse"))
                    continue
                remaining_s = deadline - self._clock.monotonic()
                if after < 0 or look.number != after or remaining_s <= 0 or self._closings != closings:
                    return look.number, look.changes
                lapse_s = SAFETY_S if look.lapse_s is None else look.lapse_s
                await self._clock.wait(rung, min(remaining_s, lapse_s, SAFETY_S))

    async def close(self) -> None:
        self._closings += 1
        self._database.bells.ring_here([TOPIC])

    # --- how it is done

    async def _ask(self, request: _Request) -> _Answer:
        """Make a request, and wake watchers if it changed something."""
        answer = await self._lane.run_once(self._run, request, writes=True)
        if answer.verdict == "done":
            self._database.bells.ring([TOPIC])
        return answer

    async def _run(self, connection: Connection, requests: Sequence[_Request]) -> list[_Answer]:
        columns = [list(column) for column in zip(*requests, strict=True)]
        rows = await connection.execute(self._coordinate, columns, binary=True)
        return [_Answer(*row) for row in await rows.fetchall()]

    async def _find(self, connection: Connection, keys: Sequence[str]) -> list[Claim | None]:
        rows = await connection.execute(self._lookup, (list(set(keys)),), binary=True)
        found = {row[0]: Claim(*row) for row in await rows.fetchall()}
        return [found.get(key) for key in keys]

    async def _see(self, after: int) -> _WatchPage:
        asked = {"after": after, "page": PAGE, "room": ROOM_BYTES}
        rows = await self._lane.rows(self._look, asked)
        lapse_s, untidy = rows[0][:2]
        entries = [row[2:] for row in rows if row[2] is not None]
        first = entries[0][0] if entries else 0
        if after < 0:
            return _WatchPage(first, [], lapse_s, untidy)
        if first != after:  # what the caller has missed is lost
            return _WatchPage(-1, [], lapse_s, untidy)
        changes = [change for row in entries[1:] if (change := _change(*row)) is not None]
        return _WatchPage(entries[-1][0] if entries else 0, changes, lapse_s, untidy)

    async def _rebuild(self) -> None:
        with contextlib.suppress(HoldfastError):  # another process does so, or a later call will
            await self._lane.run_once(self.tidy_up, None, writes=True)

    async def tidy_up(self, connection: Connection, asked: Sequence[None]) -> Sequence[None]:
        """Make the tables small again."""
        await connection.execute(self._tidy)
        return asked


def _change(number: int, kind: str, member: str, key: str, record: bytes | None) -> Change | None:
    """Return the change; None if it isn't understood, as it may come from a later version."""
    if kind == "claim":
        return Change("claim", claim=Claim(key, member, number))
    if kind == "left":
        known = read_member(record or b"", _member.decode)
        return Change("left", member=known or Member(member, "", "", Load()))
    if kind == "joined" and record is not None:
        with reading(f"change {number} of the coordinator"):
            return Change("joined", member=_member.decode(record))
    return None
