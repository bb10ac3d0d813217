"""Changes of checkpoints. Changes that arrive together are one transaction; the ledger judges each.

The transaction locks the rows of all its keys, in order of key, reads what the ledger compares, and then
writes all results by one statement for each table. A key has one change in a transaction; further ones come
in the next.

If this process has written all keys before, their rows are found by their places. A row that has moved is
searched by key, but in the next transaction, so that locks are always taken in one order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from holdfast.common.acts import Effect
from holdfast.common.record import reading
from holdfast.errors import HoldfastError, OperationRefused, OutcomeUnknown
from holdfast.ports.clock import Clock
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit, RunLog, Started, Timer
from holdfast.services.postgres.arrays import numbers, words
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

CHANCE = 1 << 20
"""Range of the random step to the next epoch where the server's clock is behind a key's last one."""

TRIM_EVERY = 256
"""Commits between removals of identities that have left the window."""

WRITERS = 16
"""Number of writers of the results log. Each has its own lock, and its own cursors: the cursors whose
remainder is its number. Processes with the same number wait for each other."""

OPENED_BYTES = 4 << 20
"""Bytes for which an opened state counts. Most states are smaller, but a node that takes over large ones
opens hundreds at a time, and must get them within the time of a transaction, in which this process also
unpacks them."""

PLACES_MAX = 100_000
"""The number of keys for which the places of their rows are remembered."""

LOCKED = """
id, ctid::text, key, epoch, number, recents_from, record,
(extract(epoch FROM clock_timestamp()) * 1e6)::bigint
FROM {schema}.checkpoints"""

LOCK = f"SELECT {LOCKED} WHERE key = ANY(%b::text[]) ORDER BY key FOR UPDATE"

LOCK_PLACES = f"SELECT {LOCKED} WHERE ctid = ANY(%s::tid[]) ORDER BY key FOR UPDATE"

# The epoch must not be one that was issued before and lost, by this server or its predecessor: the time makes
# it new, and a random step where clocks disagree.
INSERT = """
WITH c AS MATERIALIZED (
    SELECT * FROM unnest(%b::text[], %s::bigint[], %b::bytea[]) AS c (key, chance, record)),
new AS (
    INSERT INTO {schema}.keys (key) SELECT key FROM c ORDER BY key ON CONFLICT (key) DO NOTHING
    RETURNING id, key)
INSERT INTO {schema}.checkpoints (id, key, epoch, record)
SELECT new.id, key, greatest(
    1 + chance, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint + chance %% 1024), record
FROM new JOIN c USING (key) RETURNING key"""

WRITE = """
UPDATE {schema}.checkpoints s SET
    epoch = c.epoch, number = c.number, recents_from = c.recents_from, record = c.record,
    at = CASE WHEN c.commits THEN extract(epoch FROM clock_timestamp())::float8 ELSE s.at END,
    due = coalesce(c.due, s.due),
    timers = CASE WHEN c.timers = '' THEN s.timers ELSE c.timers END,
    state = CASE c.fate WHEN 0 THEN s.state WHEN 1 THEN c.state END,
    effects_from = CASE WHEN s.pending = 0 THEN c.number ELSE s.effects_from END,
    pending = s.pending + c.added{dropped}
FROM unnest(
    %s::tid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bool[], %s::float8[], %s::int[],
    %s::int[], %b::bytea[], %b::bytea[], %b::bytea[])
    AS c (place, id, epoch, number, recents_from, commits, due, added, fate, record, timers, state)
WHERE s.ctid = c.place AND s.id = c.id
RETURNING s.key, s.ctid::text"""

WRITE_ALONE = WRITE.replace("{dropped}", "")

# The order makes PostgreSQL use the index of ids. Without it, it may choose another index of the stream if
# statistics show few effects, and then read all dropped ones that a transaction keeps as old versions.
EFFECT = """CROSS JOIN LATERAL (
    SELECT e.ctid AS row, e.id FROM {schema}.effects e WHERE e.checkpoint = w.checkpoint AND e.id >= w.id
    ORDER BY e.id LIMIT 1) f
WHERE f.id = w.id"""

WRITE_AND_DROP = """
WITH found AS MATERIALIZED (
    SELECT f.row FROM unnest(%s::bigint[], %b::bytea[]) AS w (checkpoint, id) {effect}),
dropped AS (DELETE FROM {schema}.effects e USING found WHERE e.ctid = found.row RETURNING e.checkpoint)
""".replace("{effect}", EFFECT)
WRITE_AND_DROP += WRITE.replace("{dropped}", " - (SELECT count(*) FROM dropped d WHERE d.checkpoint = s.id)")

REFUSE = """
WITH found AS MATERIALIZED (
    SELECT f.row, w.reason
    FROM unnest(%s::bigint[], %b::bytea[], %b::bytea[]) AS w (checkpoint, id, reason) {effect})
UPDATE {schema}.effects e SET refused = found.reason FROM found WHERE e.ctid = found.row
""".replace("{effect}", EFFECT)

SEND = """
INSERT INTO {schema}.effects (checkpoint, number, place, id, record)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %b::bytea[], %b::bytea[])"""

REMEMBER = """
INSERT INTO {schema}.recents (checkpoint, number, count, names)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %b::bytea[])"""

FORGET = """
DELETE FROM {schema}.recents r USING unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS f (id, first, below)
WHERE r.checkpoint = f.id AND r.number >= f.first AND r.number < f.below"""

# The first commit whose identities aren't all outside of the window.
OLDEST = """
SELECT t.id, (
    SELECT min(number) FROM (
        SELECT r.number, sum(r.count) OVER (ORDER BY r.number DESC) - r.count AS newer
        FROM {schema}.recents r WHERE r.checkpoint = t.id AND r.number >= t.first) n
    WHERE n.newer < t.size)
FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS t (id, first, size)"""

NAMES = """
SELECT r.checkpoint, r.names FROM unnest(%s::bigint[], %s::bigint[]) AS t (id, first)
JOIN {schema}.recents r ON r.checkpoint = t.id AND r.number >= t.first ORDER BY r.checkpoint, r.number"""

EFFECTS = """
CASE WHEN s.pending > 0 THEN ARRAY(
    SELECT e.{column} FROM {schema}.effects e WHERE e.checkpoint = s.id AND e.number >= s.effects_from
    ORDER BY e.number, e.place) END"""

WHOLE = f"""
s.key, s.epoch, s.number, s.at, s.due, s.record, s.timers, s.state,
{EFFECTS.replace("{column}", "record")}, {EFFECTS.replace("{column}", "refused")}"""

LOAD = f"""
SELECT {WHOLE}, ARRAY(
    SELECT r.names FROM {{schema}}.recents r WHERE r.checkpoint = s.id AND r.number >= s.recents_from
    ORDER BY r.number)
FROM {{schema}}.checkpoints s WHERE s.key = ANY(%b::text[])"""  # noqa: S608

# Each row has an identity at least.
NEWEST = """
SELECT s.record, r.names FROM {schema}.checkpoints s
JOIN {schema}.recents r ON r.checkpoint = s.id AND r.number >= s.recents_from
WHERE s.key = %s ORDER BY r.number DESC LIMIT %s"""

# The next statement sees what earlier holders of the lock have committed.
LOCK_LOG = "SELECT pg_advisory_xact_lock(%s, %s)"

LOG = f"""
WITH log AS MATERIALIZED (
    SELECT greatest(
        (SELECT max(cursor) FROM {{schema}}.results), (SELECT last FROM {{schema}}.expired_results),
        (now * 1e6)::bigint) / {WRITERS} * {WRITERS} + %s::int AS last, now
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) clock)
INSERT INTO {{schema}}.results (cursor, stream, key, name, epoch, at, body)
SELECT log.last + r.place * {WRITERS},
    CASE WHEN strpos(r.key, '/') > 0 THEN split_part(r.key, '/', 1) ELSE '' END,
    r.key, r.name, r.epoch, log.now, r.body
FROM log, unnest(%b::text[], %b::bytea[], %s::bigint[], %b::bytea[])
    WITH ORDINALITY AS r (key, name, epoch, body, place)"""  # noqa: S608

KEEP, SET, CLEAR = range(3)
"""Kinds of changes of the state."""


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The part of a checkpoint that only the ledger reads. ``window`` is that of the last commit."""

    commit_id: str = ""
    member: str = ""
    log: RunLog | None = None
    past: tuple[RunLog, ...] = ()
    window: int = 0
    started: Started | None = None
    suspects: tuple[Started, ...] = ()
    parked: str = ""
    done: int = 0
    skipped: int = 0
    state_version: int = 0


encode = msgspec.json.encode
_kept = msgspec.json.Decoder(LedgerRecord)
_timers = msgspec.json.Decoder(tuple[Timer, ...])
_names = msgspec.json.Decoder(list[str])
_effect = msgspec.msgpack.Decoder(Effect)
encode_effect = msgspec.msgpack.encode


class Undecided(Enum):
    """``AGAIN``: nothing was decided; repeat the change."""

    AGAIN = "again"


class OpenCall(NamedTuple):
    """``chance`` is below ``CHANCE``."""

    key: str
    expect: int
    member: str
    chance: int


class StartCall(NamedTuple):
    """A head's handler is about to run."""

    key: str
    epoch: int
    head: str


class CommitCall(NamedTuple):
    """A commit, and the encoded parts of its rows, made before the transaction to keep that short."""

    key: str
    commit: Commit
    names: bytes
    timers: bytes
    """Empty where the stored ones are kept."""
    results: list[tuple[bytes, bytes]]
    effects: list[tuple[int, bytes, bytes]]
    dropped: list[bytes]
    refused: list[tuple[bytes, bytes]]


StateCall = OpenCall | StartCall | CommitCall


class LockedRow(NamedTuple):
    """The row of a checkpoint that a transaction has locked."""

    id: int
    place: str
    key: str
    epoch: int
    number: int
    recents_from: int
    kept: LedgerRecord
    now_us: int

    def checkpoint(self, recent: tuple[str, ...] = ()) -> Checkpoint:
        """Return the checkpoint, as far as the ledger compares it."""
        return _checkpoint(self.key, self.epoch, self.number, self.kept, recent=recent)


class CheckpointRow(NamedTuple):
    """One row of ``WRITE``."""

    place: str
    id: int
    epoch: int
    number: int
    recents_from: int
    commits: bool
    due: float | None
    added: int
    fate: int
    record: bytes
    timers: bytes
    state: bytes


class StateChanges:
    """Applies changes to the checkpoints of one database."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self.places: dict[str, str] = {}
        self._log_lock = log_lock(database.address.schema)
        self._writer = zlib.crc32(clock.new_id().encode()) % WRITERS
        sql = database.sql
        self._lock, self._lock_places, self._insert = sql(LOCK), sql(LOCK_PLACES), sql(INSERT)
        self._write, self._write_and_drop = sql(WRITE_ALONE), sql(WRITE_AND_DROP)
        self._refuse, self._send, self._remember = sql(REFUSE), sql(SEND), sql(REMEMBER)
        self._forget, self._oldest, self._names = sql(FORGET), sql(OLDEST), sql(NAMES)
        self._newest = sql(NEWEST)
        self._whole, self._lock_log, self._log = sql(LOAD), sql(LOCK_LOG), sql(LOG)

    async def apply(self, connection: Connection, changes: Sequence[StateCall]) -> Sequence[Any]:
        """Decide changes; returns the answers, in order. They are valid only once the transaction is
        committed."""
        first: dict[str, int] = {}
        for place, change in enumerate(changes):
            first.setdefault(change.key, place)
        locked, unknown = await self._lock_all(connection, list(first))
        answers: list[Any] = [Undecided.AGAIN] * len(changes)
        asked = [(first[key], changes[first[key]]) for key in first if key not in unknown]
        committing = [(change, locked[change.key]) for _, change in asked
                      if isinstance(change, CommitCall) and change.key in locked]  # fmt: skip
        recent = await self._recents(connection, committing)
        oldest = await self._trimmed(connection, committing)
        work = StateWrites()
        for place, change in asked:
            try:
                answers[place] = work.decide(
                    change, locked.get(change.key), recent.get(change.key, ()), oldest.get(change.key)
                )
            except HoldfastError as error:
                answers[place] = error
        await self.write(connection, work)
        opened = await self.load(connection, work.opened) if work.opened else {}
        for place, change in asked:
            if answers[place] is Undecided.AGAIN:
                answers[place] = opened.get(change.key, Undecided.AGAIN)
        return _Answers(self, answers, work)

    def learn(self, key: str, place: str) -> None:
        """Remember where the row of a key is."""
        self.places.pop(key, None)
        self.places[key] = place
        if len(self.places) > PLACES_MAX:
            del self.places[next(iter(self.places))]

    async def _lock_all(
        self, connection: Connection, keys: Sequence[str]
    ) -> tuple[dict[str, LockedRow], set[str]]:
        """Lock the rows of keys; returns them by key, and the keys to search again."""
        places = [self.places.get(key, "") for key in keys]
        if known := all(places):
            rows = await connection.execute(self._lock_places, (words(places),), binary=True)
        else:
            rows = await connection.execute(self._lock, (list(keys),), binary=True)
        locked = {}
        for id_, place, key, epoch, number, recents_from, record, now_us in await rows.fetchall():
            locked[key] = LockedRow(
                id_, place, key, epoch, number, recents_from, _kept_of(key, record), now_us
            )
        missing = {key for key in keys if key not in locked} if known else set()
        for key in missing:
            del self.places[key]
        return locked, missing

    async def _recents(
        self, connection: Connection, committing: Sequence[tuple[CommitCall, LockedRow]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the identities of keys whose window changes."""
        changed = {
            row.id: row
            for change, row in committing
            if row.kept.window and change.commit.window != row.kept.window
        }
        if not changed:
            return {}
        found: dict[str, list[str]] = {row.key: [] for row in changed.values()}
        firsts = [row.recents_from for row in changed.values()]
        rows = await connection.execute(self._names, (numbers(changed), numbers(firsts)), binary=True)
        for id_, names in await rows.fetchall():
            found[changed[id_].key] += _names.decode(names)
        return {row.key: tuple(found[row.key][-row.kept.window :]) for row in changed.values()}

    async def _trimmed(
        self, connection: Connection, committing: Sequence[tuple[CommitCall, LockedRow]]
    ) -> dict[str, int]:
        """Return the first commit whose identities are kept, for keys whose old identities are to be removed
        now."""
        due = {
            row.id: row
            for change, row in committing
            if change.commit.window == row.kept.window and row.kept.window and not row.number % TRIM_EVERY
        }
        if not due:
            return {}
        firsts = [row.recents_from for row in due.values()]
        sizes = [row.kept.window for row in due.values()]
        rows = await connection.execute(
            self._oldest, (numbers(due), numbers(firsts), numbers(sizes)), binary=True
        )
        return {due[id_].key: oldest for id_, oldest in await rows.fetchall() if oldest is not None}

    async def write(self, connection: Connection, work: StateWrites) -> None:
        """Write all decided changes."""
        if work.rows:
            columns = list(zip(*work.rows, strict=True))
            parameters = (
                words(columns[0]), *map(numbers, columns[1:9]), *map(list, columns[9:]),
            )  # fmt: skip
            if work.dropped:
                dropped = list(zip(*work.dropped, strict=True))
                parameters = (numbers(dropped[0]), list(dropped[1]), *parameters)
            query = self._write_and_drop if work.dropped else self._write
            work.written = await connection.execute(query, parameters)
        for query, rows, counts in (
            (self._refuse, work.refused, 1),
            (self._send, work.effects, 3),
            (self._forget, work.forgotten, 3),
            (self._remember, work.remembered, 3),
        ):
            if rows:
                columns = list(zip(*rows, strict=True))
                await connection.execute(
                    query, (*map(numbers, columns[:counts]), *map(list, columns[counts:]))
                )
        if work.inserted:
            keys, chances, records = zip(*sorted(work.inserted), strict=True)
            inserted = await connection.execute(
                self._insert, (list(keys), numbers(chances), list(records)), binary=True
            )
            work.opened += [key for (key,) in await inserted.fetchall()]
        if work.results:
            keys, names, epochs, bodies = zip(*work.results, strict=True)
            await self.lock_log(connection)
            await connection.execute(
                self._log, (self._writer, list(keys), list(names), numbers(epochs), list(bodies))
            )

    async def lock_log(self, connection: Connection) -> None:
        """Take this writer's lock of the results log, until the end of the transaction."""
        await connection.execute(self._lock_log, (self._log_lock, self._writer))

    async def newest(self, connection: Connection, key: str, limit: int) -> list[str]:
        """Return the newest identities of a key, oldest first."""
        rows = await (await connection.execute(self._newest, (key, limit), binary=True)).fetchall()
        known = [name for _, names in reversed(rows) for name in _names.decode(names)]
        return known[-min(limit, _kept_of(key, rows[0][0]).window) :] if rows else []

    async def load(self, connection: Connection, keys: Sequence[str]) -> dict[str, Checkpoint]:
        """Return all of these checkpoints, by key."""
        rows = await connection.execute(self._whole, (list(keys),), binary=True)
        return {row[0]: whole(row) for row in await rows.fetchall()}


class StateWrites:
    """The writes that a transaction has to make."""

    def __init__(self) -> None:
        self.rows: list[CheckpointRow] = []
        self.dropped: list[tuple[int, bytes]] = []
        self.refused: list[tuple[int, bytes, bytes]] = []
        self.effects: list[tuple[int, int, int, bytes, bytes]] = []
        self.forgotten: list[tuple[int, int, int]] = []
        self.remembered: list[tuple[int, int, int, bytes]] = []
        self.inserted: list[tuple[str, int, bytes]] = []
        self.results: list[tuple[str, bytes, int, bytes]] = []
        self.opened: list[str] = []
        self.written: Any = None

    def decide(
        self, change: StateCall, locked: LockedRow | None, recent: tuple[str, ...], oldest: int | None
    ) -> int | Undecided | None:
        """Note the writes of a change; returns its answer, or ``AGAIN`` for an opening, whose answer is read
        later. Raises Fenced."""
        standing = locked.checkpoint(recent) if locked else None
        if isinstance(change, OpenCall):
            after = ledger.open_(standing, change.key, change.expect, change.member)
            if locked is None:
                self.inserted.append((change.key, change.chance, encoded(keep(after, 0))))
                return Undecided.AGAIN
            epoch = max(after.epoch + change.chance, locked.now_us + change.chance % 1024)
            self._put(locked, msgspec.structs.replace(after, epoch=epoch), locked.kept.window)
            self.opened.append(change.key)
            return Undecided.AGAIN
        if isinstance(change, StartCall):
            after = ledger.start(standing, change.key, change.epoch, change.head)
            assert locked is not None
            assert after.started is not None
            self._put(locked, after, locked.kept.window)
            return after.started.openings
        committed = ledger.commit(standing, change.commit, 0.0)
        if committed is not None:
            assert locked is not None
            self._commit(change, locked, committed, oldest)
        return None

    def _commit(self, change: CommitCall, locked: LockedRow, after: Checkpoint, oldest: int | None) -> None:
        c, id_, kept_from = change.commit, locked.id, locked.recents_from
        record = encoded(keep(after, c.window))
        if c.window != locked.kept.window:
            self.forgotten.append((id_, kept_from, c.number))
            kept_from = c.number
            if after.recent:
                self.remembered.append((id_, c.number, len(after.recent), encode(after.recent)))
        else:
            if oldest is not None and oldest > kept_from:
                self.forgotten.append((id_, kept_from, oldest))
                kept_from = oldest
            if c.window and c.identities:
                self.remembered.append((id_, c.number, len(c.identities), change.names))
        self.dropped += [(id_, dropped) for dropped in change.dropped]
        self.refused += [(id_, *refused) for refused in change.refused]
        self.effects += [(id_, c.number, *effect) for effect in change.effects]
        self.results += [(c.key, name, c.epoch, body) for name, body in change.results]
        fate = SET if c.state is not None else CLEAR if c.clear_state else KEEP
        self.rows.append(
            CheckpointRow(
                locked.place, id_, after.epoch, after.number, kept_from, True, c.due, len(c.effects), fate,
                record, change.timers, c.state or b"",
            )
        )  # fmt: skip

    def _put(self, locked: LockedRow, after: Checkpoint, window: int) -> None:
        """Note a row of which only epoch and record change."""
        self.rows.append(
            CheckpointRow(
                locked.place, locked.id, after.epoch, after.number, locked.recents_from, False, None, 0, KEEP,
                encoded(keep(after, window)), b"", b"",
            )
        )  # fmt: skip


class _Answers(Sequence[Any]):
    """The answers of a transaction, valid once it is committed."""

    def __init__(self, changes: StateChanges, answers: list[Any], work: StateWrites) -> None:
        self._changes = changes
        self._answers = answers
        self._work: StateWrites | None = work

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, place: Any) -> Any:
        if self._work is not None:
            self._settle(self._work)
        return self._answers[place]

    def _settle(self, work: StateWrites) -> None:
        """Remember where the rows are now, and check that all were written."""
        self._work = None
        if work.written is None:
            return
        result = work.written.pgresult
        written = result.ntuples if result is not None else 0
        for row in range(written):
            self._changes.learn(result.get_value(row, 0).decode(), result.get_value(row, 1).decode())
        if written != len(work.rows):
            error = OutcomeUnknown(f"{len(work.rows)} checkpoints were to be written, not {written}")
            self._answers = [error] * len(self._answers)


def prepare(commit: Commit) -> CommitCall:
    """Encode the parts of a commit's rows."""
    c = commit
    return CommitCall(
        c.key,
        c,
        names=encode(c.identities) if c.window and c.identities else b"",
        timers=b"" if c.timers is None else encode(c.timers),
        results=[(result.name.encode(), result.body) for result in c.results],
        effects=[(effect.place, effect.id.encode(), encode_effect(effect)) for effect in c.effects],
        dropped=[id_.encode() for id_ in c.dropped],
        refused=[(refused.id.encode(), refused.reason.encode()) for refused in c.refused],
    )


def bytes_of(change: StateCall) -> int:
    """Return the bytes that a change writes (state, results, effects, identities and timers), or the estimate
    of what an opening reads."""
    if isinstance(change, OpenCall):
        return OPENED_BYTES
    if not isinstance(change, CommitCall):
        return 0
    bodies = [body for _, body in change.results] + [record for _, _, record in change.effects]
    return len(change.commit.state or b"") + len(change.names) + len(change.timers) + sum(map(len, bodies))


def whole(row: Sequence[Any]) -> Checkpoint:
    """Return a checkpoint from a row of ``WHOLE``, after which its recent identities may stand."""
    key, epoch, number, at, due, record, timers, state, effects, refused, *names = row
    kept = _kept_of(key, record)
    with reading(f"the checkpoint of {key}"):
        recent = [name for each in (names[0] if names else ()) for name in _names.decode(each)]
        return msgspec.structs.replace(
            _checkpoint(
                key, epoch, number, kept, recent=tuple(recent[-kept.window :] if kept.window else ())
            ),
            at=at,
            due=due,
            state=state,
            timers=_timers.decode(timers) if timers else (),
            effects=tuple(_effects(effects or (), refused or ())),
        )


def left_of(key: str, at: float, timers: bytes, record: bytes, idle_before: float) -> bytes | None:
    """Return the rest of the record of a checkpoint that expires; None if it must not. The checkpoint has no
    pending effects, and is never due."""
    standing = whole((key, 0, 0, at, 0.0, record, timers, None, None, None))
    if not ledger.may_expire(standing, idle_before):
        return None
    return encode(keep(ledger.expire(standing), 0))


def _effects(records: Iterable[bytes], reasons: Iterable[bytes | None]) -> Iterator[Effect]:
    for record, reason in zip(records, reasons, strict=True):
        effect = _effect.decode(record)
        yield effect if reason is None else msgspec.structs.replace(effect, refused=reason.decode())


def _kept_of(key: str, record: bytes) -> LedgerRecord:
    with reading(f"the checkpoint of {key}"):
        return _kept.decode(record)


def _checkpoint(
    key: str, epoch: int, number: int, kept: LedgerRecord, *, recent: tuple[str, ...]
) -> Checkpoint:
    return Checkpoint(
        key,
        epoch,
        number,
        kept.commit_id,
        kept.log,
        kept.past,
        recent,
        state_version=kept.state_version,
        started=kept.started,
        suspects=kept.suspects,
        parked=kept.parked,
        done=kept.done,
        skipped=kept.skipped,
        member=kept.member,
    )


def keep(after: Checkpoint, window: int) -> LedgerRecord:
    """Return the part of a checkpoint that is stored in its record."""
    return LedgerRecord(
        after.commit_id,
        after.member,
        after.log,
        after.past,
        window,
        after.started,
        after.suspects,
        after.parked,
        after.done,
        after.skipped,
        after.state_version,
    )


def log_lock(schema: str) -> int:
    """Return the first half of the locks of a schema's results log; the second is the writer's number."""
    return zlib.crc32(f"holdfast {schema} results".encode()) >> 1


def encoded(kept: LedgerRecord) -> bytes:
    """Encode a record. Raises OperationRefused for a text that can't be stored."""
    try:
        return encode(kept)
    except UnicodeEncodeError as error:
        raise OperationRefused(f"a text holds what UTF-8 can't carry: {error}") from error
