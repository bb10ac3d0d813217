"""The state store in SQLite.

The ledger judges each change. Changes that arrive together are one read of what the ledger compares, and one
write for each table. Several changes of one key are read and written one after another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.common.acts import Effect
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged, check_state
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result, RunLog, Started, Timer
from holdfast.services.sqlite.database import Database, Transaction, last_number, number_above
from holdfast.system.doorbell import SAFETY_S

TOPIC = "results"

EXPIRE_BATCH = 500
"""Results or checkpoints that one transaction drops, so that commits don't wait for it."""

TRIM_EVERY = 256
"""Commits between removals of identities that have left the window."""

COLUMNS = """
    s.id, s.key, epoch, member, number, commit_id, at, log, past, window, head, openings, begun, parked, done,
    skipped, suspects, state_version, a.timers, a.due"""

FROM = "FROM checkpoints s LEFT JOIN acting a ON a.checkpoint = s.id"

SELECT = f"SELECT {COLUMNS}, state {FROM} WHERE s.key = ?"

LIST = f"SELECT {COLUMNS}, NULL {FROM} WHERE s.key > ? ORDER BY s.key LIMIT ?"

RECENT = "SELECT names FROM recents WHERE checkpoint = ? ORDER BY number DESC"

# Each row has an identity at least.
NEWEST = """
SELECT s.window, r.names FROM checkpoints s JOIN recents r ON r.checkpoint = s.id WHERE s.key = ?
ORDER BY r.number DESC LIMIT ?"""

EFFECTS = """
SELECT number, place, id, target, key, body, cause, at, not_before, hops, refused, traceparent
FROM effects WHERE checkpoint = ? ORDER BY number, place"""

OPEN = """
INSERT INTO checkpoints (key, epoch, member) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, member = excluded.member"""

JUDGED = """
WITH k (place, key) AS (VALUES {rows})
SELECT json_group_array(json_array(
    k.place, s.id, s.epoch, s.number, s.commit_id, s.window, s.head, s.openings, s.begun, json(s.suspects),
    s.done, s.skipped, s.state_version, a.checkpoint IS NOT NULL))
FROM k CROSS JOIN checkpoints s ON s.key = k.key LEFT JOIN acting a ON a.checkpoint = s.id"""

START = """
UPDATE checkpoints SET head = c.head, openings = c.openings, begun = c.begun, suspects = c.suspects
FROM (SELECT column1 AS id, column2 AS head, column3 AS openings, column4 AS begun, column5 AS suspects
    FROM (VALUES {rows})) c
WHERE checkpoints.id = c.id"""

WRITE = """
WITH c (id, number, commit_id, log, past, window, head, openings, begun, suspects, parked, done, skipped,
    version, keep, state)
AS (VALUES {rows})
UPDATE checkpoints SET
    number = c.number, commit_id = c.commit_id, at = ?, log = c.log, past = c.past, window = c.window,
    head = c.head, openings = c.openings, begun = c.begun, suspects = c.suspects, parked = c.parked,
    done = c.done, skipped = c.skipped, state_version = c.version,
    state = iif(c.keep, checkpoints.state, c.state)
FROM c WHERE checkpoints.id = c.id"""

DROP_EFFECTS = """
WITH d (checkpoint, id) AS (VALUES {rows})
DELETE FROM effects WHERE rowid IN (
    SELECT e.rowid FROM d CROSS JOIN effects e ON e.checkpoint = d.checkpoint AND e.id = d.id)"""

REFUSE_EFFECT = "UPDATE effects SET refused = ? WHERE checkpoint = ? AND id = ?"

ADD_EFFECTS = """
INSERT INTO effects (
    checkpoint, number, place, id, target, key, body, cause, at, not_before, hops, refused, traceparent)
SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"""

ACT = """
WITH c (checkpoint, due, timers) AS (VALUES {rows})
INSERT INTO acting (checkpoint, due, timers)
SELECT c.checkpoint, c.due,
    coalesce(c.timers, (SELECT timers FROM acting a WHERE a.checkpoint = c.checkpoint), '[]')
FROM c WHERE c.checkpoint IS NOT NULL
ON CONFLICT (checkpoint) DO UPDATE SET due = excluded.due, timers = excluded.timers"""

STOP_ACTING = """
DELETE FROM acting WHERE checkpoint IN (VALUES {rows}) AND due = 0 AND timers = '[]'
AND NOT EXISTS (SELECT 1 FROM effects WHERE checkpoint = acting.checkpoint)"""

DUE = """
SELECT a.checkpoint, s.key FROM acting a CROSS JOIN checkpoints s ON s.id = a.checkpoint
WHERE a.due > 0 AND a.due < ? ORDER BY a.due LIMIT ?"""

LEASE = """
WITH k (checkpoint, key) AS (VALUES {rows})
UPDATE acting SET due = ? FROM k WHERE acting.checkpoint = k.checkpoint"""

IDLE = """
SELECT key FROM checkpoints WHERE at > 0 AND at < ?
AND NOT EXISTS (SELECT 1 FROM acting WHERE checkpoint = checkpoints.id)"""

ADD_RECENTS = """
INSERT INTO recents (checkpoint, number, count, names)
SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"""

# A row is deleted once newer ones hold as many identities as the window has.
TRIM = """
DELETE FROM recents WHERE checkpoint = ?1 AND number <= (
    SELECT max(number) FROM (
        SELECT number, sum(count) OVER (ORDER BY number DESC) - count AS newer FROM recents
        WHERE checkpoint = ?1)
    WHERE newer >= ?2)"""

FORGET = "DELETE FROM recents WHERE checkpoint = ?"

FORGET_OF = "DELETE FROM recents WHERE checkpoint = (SELECT id FROM checkpoints WHERE key = ?)"

LOG = """
WITH r (stream, key, name, epoch, body) AS (VALUES {rows})
INSERT INTO results (stream, key, name, epoch, body, at) SELECT r.*, ? FROM r WHERE key IS NOT NULL"""

EXPIRE_RESULTS = """
DELETE FROM results WHERE cursor IN (
    SELECT cursor FROM (SELECT cursor, at FROM results ORDER BY cursor LIMIT ?) WHERE at < ?)"""

RESTORE = """
INSERT OR IGNORE INTO checkpoints (
    key, epoch, member, number, commit_id, at, log, past, window, head, openings, begun, parked, done,
    skipped, suspects, state_version, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""

RESTORE_RESULT = """
INSERT OR IGNORE INTO results (cursor, stream, key, name, epoch, body, at) VALUES (?, ?, ?, ?, ?, ?, ?)"""

LOGGED = "cursor, key, epoch, name, body, at"

_encode = msgspec.json.encode
_log = msgspec.json.Decoder(RunLog | None)
_past = msgspec.json.Decoder(tuple[RunLog, ...])
_suspects = msgspec.json.Decoder(tuple[Started, ...])
_timers = msgspec.json.Decoder(tuple[Timer, ...])
_names = msgspec.json.Decoder(list[str])


class JudgedRow(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a checkpoint by which the ledger judges a change."""

    place: int
    id: int
    epoch: int
    number: int
    commit_id: str
    window: int
    head: str
    openings: int
    begun: int
    suspects: tuple[Started, ...]
    done: int
    skipped: int
    state_version: int
    acts: int
    """1 if the key has timers or effects, or is due."""


_judged = msgspec.json.Decoder(list[JudgedRow])


class SqliteState:
    """The checkpoints and results of all streams in a database."""

    def __init__(self, database: Database, clock: Clock, *, max_state_bytes: int = 8 << 20) -> None:
        self.max_state_bytes = max_state_bytes
        self._database = database
        self._clock = clock
        self._closings = 0

    # --- checkpoints

    async def peek(self, key: str) -> Checkpoint | None:
        return await self._database.read(lambda connection: _peek(connection, key))

    async def now(self, key: str) -> float:
        return self._clock.wall()

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        def open_(transaction: Transaction) -> Checkpoint:
            standing = _load(transaction.connection, key)
            opened = ledger.open_(standing, key, expect, member)
            if standing is None:
                # The first epoch is above the last cursor, because a restore lifts cursors above every epoch
                # ever issued, also of keys that it didn't bring back.
                last_cursor = last_number(transaction.connection, "results")
                opened = msgspec.structs.replace(opened, epoch=last_cursor + 1)
            transaction.execute(OPEN, (key, opened.epoch, opened.member))
            return opened

        return await self._database.write(open_)

    async def start(self, key: str, epoch: int, head: str) -> int:
        openings: int = await self._database.write_many(self._start_all, (key, epoch, head))
        return openings

    async def commit(self, commit: Commit) -> None:
        check_state(commit, self.max_state_bytes)
        await self._database.write_many(self._commit_all, _prepare(commit))

    async def identities(self, key: str, limit: int) -> list[str]:
        rows = await self._database.rows(NEWEST, key, limit)
        known = [name for _, names in reversed(rows) for name in _names.decode(names)]
        return known[-min(limit, rows[0][0]) :] if rows else []

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        return [_checkpoint(row) for row in await self._database.rows(LIST, after, limit)]

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        # Mostly nothing is due: the write lock is for when something is.
        if not await self._database.rows(DUE, before, limit):
            return []
        return await self._database.write(partial(_lease, before=before, limit=limit, lease_s=lease_s))

    # --- results

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        query = f"SELECT {LOGGED} FROM results WHERE cursor > ? ORDER BY cursor LIMIT ?"  # noqa: S608
        parameters: tuple[Any, ...] = (after, limit)
        if stream:
            query = f"SELECT {LOGGED} FROM results WHERE stream = ? AND cursor > ? ORDER BY cursor LIMIT ?"  # noqa: S608
            parameters = (stream, after, limit)
        with self._database.doorbell.listen(TOPIC) as rung:
            while True:
                rung.clear()
                rows = await self._database.rows(query, *parameters, confirmed=True)
                remaining_s = deadline - self._clock.monotonic()
                if rows or remaining_s <= 0 or self._closings != closings:
                    return [_logged(row) for row in rows]
                await self._clock.wait(rung, min(remaining_s, SAFETY_S))

    async def result(self, key: str, name: str) -> Logged | None:
        query = f"SELECT {LOGGED} FROM results WHERE key = ? AND name = ? ORDER BY cursor DESC LIMIT 1"  # noqa: S608
        rows = await self._database.rows(query, key, name, confirmed=True)
        return _logged(rows[0]) if rows else None

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        results = checkpoints = 0
        while dropped := await self._database.write(
            lambda transaction: transaction.execute(EXPIRE_RESULTS, (EXPIRE_BATCH, results_before)).rowcount
        ):
            results += dropped
        idle = await self._database.rows(IDLE, idle_before)
        for begin in range(0, len(idle), EXPIRE_BATCH):
            keys = [key for (key,) in idle[begin : begin + EXPIRE_BATCH]]
            checkpoints += await self._database.write(partial(_expire, keys=keys, idle_before=idle_before))
        return results, checkpoints

    # --- transfer

    async def stored(self, keys: Sequence[str]) -> list[Checkpoint]:
        def load(connection: sqlite3.Connection) -> list[Checkpoint]:
            connection.execute("BEGIN")  # all of it of one moment
            try:
                return [found for key in keys if (found := _load(connection, key)) is not None]
            finally:
                connection.execute("COMMIT")

        return await self._database.read(load)

    async def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            check_state(checkpoint, self.max_state_bytes)

        def restore(transaction: Transaction) -> None:
            for checkpoint in checkpoints:
                _restore(transaction, checkpoint)

        await self._database.write(restore)

    async def last_cursor(self) -> int:
        return await self._database.read(lambda connection: last_number(connection, "results"))

    async def restore_results(self, results: Sequence[Logged], above: int = 0) -> None:
        rows = [
            (r.cursor, r.key[: max(r.key.find("/"), 0)], r.key, r.result.name, r.epoch, r.result.body, r.at)
            for r in results
        ]

        def restore(transaction: Transaction) -> None:
            transaction.connection.executemany(RESTORE_RESULT, rows)
            number_above(transaction.connection, "results", above)
            transaction.ring(TOPIC)

        await self._database.write(restore)

    async def close(self) -> None:
        self._closings += 1
        self._database.doorbell.ring_here([TOPIC])

    def _start_all(
        self, transaction: Transaction, asked: Sequence[tuple[str, int, str]]
    ) -> list[int | HoldfastError]:
        answers: list[Any] = [None] * len(asked)
        for rows in _rounds(transaction, [key for key, _, _ in asked]):
            written = []
            for place, row in rows.items():
                key, epoch, head = asked[place]
                try:
                    after = ledger.start(_compared(row, key), key, epoch, head)
                except Fenced as error:
                    answers[place] = error
                    continue
                assert row is not None
                assert after.started is not None
                started, suspects = after.started, _text(after.suspects)
                answers[place] = started.openings
                written.append((row.id, started.head, started.openings, started.epoch, suspects))
            transaction.change_rows(START, written)
        return answers

    def _commit_all(
        self, transaction: Transaction, commits: Sequence[PreparedCommit]
    ) -> list[HoldfastError | None]:
        at = self._clock.wall()
        answers: list[HoldfastError | None] = [None] * len(commits)
        for rows in _rounds(transaction, [prepared.commit.key for prepared in commits]):
            accepted = []
            for place, row in rows.items():
                try:
                    after = _after(transaction, commits[place].commit, row, at)
                except Fenced as error:
                    answers[place] = error
                    continue
                if after is not None:
                    assert row is not None
                    accepted.append(AcceptedCommit(commits[place], row, after))
            if accepted:
                _write(transaction, accepted, at)
        return answers


class PreparedCommit(NamedTuple):
    """A commit, and the parts of its rows that are encoded before the transaction, to keep that short."""

    commit: Commit
    log: str
    past: str
    names: str
    results: list[tuple[Any, ...]]
    acts: bool
    """Whether it changes effects, timers, or the time when its key is due."""


class AcceptedCommit(NamedTuple):
    """A commit that the ledger accepted: the row before, and the checkpoint after."""

    prepared: PreparedCommit
    row: JudgedRow
    after: Checkpoint


def _prepare(commit: Commit) -> PreparedCommit:
    c = commit
    stream = c.key[: max(c.key.find("/"), 0)]
    return PreparedCommit(
        c,
        log=_text(c.log),
        past=_text(c.past),
        names=_text(c.identities) if c.window and c.identities else "",
        results=[(stream, c.key, result.name, c.epoch, result.body) for result in c.results],
        acts=bool(c.due or c.timers is not None or c.effects or c.dropped or c.refused),
    )


def _rounds(transaction: Transaction, keys: Sequence[str]) -> Iterator[dict[int, JudgedRow | None]]:
    """Yield the rows of keys by the places of the keys, in as many rounds as a key has places. Each round is
    read when the one before is written."""
    left: Sequence[int] = range(len(keys))
    while left:
        places: dict[str, int] = {}
        for place in left:
            places.setdefault(keys[place], place)
        texts = transaction.texts(JUDGED, [(place, key) for key, place in places.items()])
        found = {row.place: row for text in texts for row in _judged.decode(text)}
        yield {place: found.get(place) for place in places.values()}
        left = [place for place in left if places[keys[place]] != place]


def _compared(row: JudgedRow | None, key: str, recent: tuple[str, ...] = ()) -> Checkpoint | None:
    """Return a checkpoint as far as the ledger compares it; None for a key without a row."""
    if row is None:
        return None
    return Checkpoint(
        key,
        row.epoch,
        row.number,
        row.commit_id,
        recent=recent,
        state_version=row.state_version,
        started=Started(row.head, row.openings, row.begun) if row.openings else None,
        suspects=row.suspects,
        done=row.done,
        skipped=row.skipped,
    )


def _after(transaction: Transaction, commit: Commit, row: JudgedRow | None, at: float) -> Checkpoint | None:
    """Return the checkpoint after a commit; identities are in it only if the window changes."""
    changes_window = row is not None and row.window not in (0, commit.window)
    recent = _recent(transaction.connection, row.id, row.window) if row and changes_window else ()
    return ledger.commit(_compared(row, commit.key, recent), commit, at)


def _write(transaction: Transaction, commits: Sequence[AcceptedCommit], at: float) -> None:
    """Write commits of different keys."""
    transaction.change_rows(WRITE, [_row(*accepted) for accepted in commits], at)
    recents = []
    for prepared, row, after in commits:
        commit, names, count = prepared.commit, prepared.names, len(prepared.commit.identities)
        if commit.window != row.window:
            transaction.execute(FORGET, (row.id,))
            names, count = _text(after.recent) if after.recent else "", len(after.recent)
        if names:
            recents.append((row.id, commit.number, count, names))
    transaction.change_rows(ADD_RECENTS, recents)
    for prepared, row, _ in commits:
        if prepared.commit.window and prepared.commit.number % TRIM_EVERY == 0:
            transaction.execute(TRIM, (row.id, prepared.commit.window))
    acting = [(prepared.commit, row.id) for prepared, row, _ in commits if prepared.acts or row.acts]
    if acting:
        _act(transaction, acting)
    if results := [result for prepared, _, _ in commits for result in prepared.results]:
        transaction.change_rows(LOG, results, at)
        transaction.ring(TOPIC)


def _row(prepared: PreparedCommit, row: JudgedRow, after: Checkpoint) -> tuple[Any, ...]:
    c, started = prepared.commit, after.started or Started("", 0)
    keep = c.state is None and not c.clear_state
    return (
        row.id, after.number, after.commit_id, prepared.log, prepared.past, c.window, started.head,
        started.openings, started.epoch, _text(after.suspects), after.parked, after.done, after.skipped,
        after.state_version, keep, c.state,
    )  # fmt: skip


def _act(transaction: Transaction, commits: Sequence[tuple[Commit, int]]) -> None:
    """Write the effects, the timers and the due times of commits; each comes with its checkpoint's id."""
    transaction.change_rows(DROP_EFFECTS, [(id_, dropped) for c, id_ in commits for dropped in c.dropped])
    for c, id_ in commits:
        for refused in c.refused:
            transaction.execute(REFUSE_EFFECT, (refused.reason, id_, refused.id))
    _add_effects(transaction, [(id_, effect) for c, id_ in commits for effect in c.effects])
    timers = [(id_, c.due, None if c.timers is None else _text(c.timers)) for c, id_ in commits]
    transaction.change_rows(ACT, timers)
    transaction.change_rows(STOP_ACTING, [(id_,) for c, id_ in commits if not c.due])


def _add_effects(transaction: Transaction, effects: Sequence[tuple[int, Effect]]) -> None:
    rows = [(id_, *msgspec.structs.astuple(effect)) for id_, effect in effects]
    transaction.change_rows(ADD_EFFECTS, rows)


def _restore(transaction: Transaction, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, unless its key has one. Its window is as large as its identities are many; the next
    commit sets the window."""
    c, started = checkpoint, checkpoint.started or Started("", 0)
    row = transaction.execute(
        RESTORE,
        (
            c.key, c.epoch, c.member, c.number, c.commit_id, c.at, _text(c.log), _text(c.past), len(c.recent),
            started.head, started.openings, started.epoch, c.parked, c.done, c.skipped, _text(c.suspects),
            c.state_version, c.state,
        ),
    ).fetchone()  # fmt: skip
    if row is None:
        return
    [id_] = row
    if c.recent:
        transaction.change_rows(ADD_RECENTS, [(id_, c.number, len(c.recent), _text(c.recent))])
    if c.acts:
        transaction.change_rows(ACT, [(id_, c.due, _text(c.timers))])
    _add_effects(transaction, [(id_, effect) for effect in c.effects])


def _expire(transaction: Transaction, keys: Sequence[str], idle_before: float) -> int:
    expired = 0
    for key in keys:
        standing = _load(transaction.connection, key)
        if standing is not None and ledger.may_expire(standing, idle_before):
            transaction.execute(FORGET_OF, (key,))
            transaction.execute("DELETE FROM checkpoints WHERE key = ?", (key,))
            left = ledger.expire(standing)
            transaction.execute(
                "INSERT INTO checkpoints (key, epoch, member, number, commit_id) VALUES (?, ?, ?, ?, ?)",
                (left.key, left.epoch, left.member, left.number, left.commit_id),
            )
            expired += 1
    return expired


def _lease(transaction: Transaction, before: float, limit: int, lease_s: float) -> list[str]:
    """Lease due keys, as :func:`holdfast.rules.streams.ledger.lease_due` does."""
    rows = transaction.execute(DUE, (before, limit)).fetchall()
    if rows:
        transaction.change_rows(LEASE, rows, before + lease_s)
    return [key for _, key in rows]


def _load(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """Return the whole checkpoint. The caller is in a transaction."""
    row = connection.execute(SELECT, (key,)).fetchone()
    if row is None:
        return None
    standing = msgspec.structs.replace(_checkpoint(row), recent=_recent(connection, row[0], row[9]))
    if not _acts(row):
        return standing
    effects = tuple(Effect(*effect) for effect in connection.execute(EFFECTS, (row[0],)))
    return msgspec.structs.replace(standing, effects=effects)


def _peek(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """Return the checkpoint; ``recent`` may be empty."""
    row = connection.execute(SELECT, (key,)).fetchone()
    if row is None or not _acts(row):
        return _checkpoint(row) if row else None
    connection.execute("BEGIN")  # checkpoint and effects are to be of one moment
    try:
        return _load(connection, key)
    finally:
        connection.execute("COMMIT")


def _recent(connection: sqlite3.Connection, checkpoint: int, window: int) -> tuple[str, ...]:
    newest_first: list[str] = []
    for (names,) in connection.execute(RECENT, (checkpoint,)):
        if len(newest_first) >= window:
            break
        newest_first += reversed(_names.decode(names))
    return tuple(reversed(newest_first[:window]))


def _checkpoint(row: Sequence[Any]) -> Checkpoint:
    (_, key, epoch, member, number, commit_id, at, log, past, _, head, openings, begun, parked, done,
     skipped, suspects, version, timers, due, state) = row  # fmt: skip
    return Checkpoint(
        key=key,
        epoch=epoch,
        number=number,
        commit_id=commit_id,
        log=_log.decode(log),
        past=_past.decode(past),
        state=state,
        state_version=version,
        started=Started(head, openings, begun) if openings else None,
        suspects=_suspects.decode(suspects),
        parked=parked,
        done=done,
        skipped=skipped,
        member=member,
        at=at,
        timers=_timers.decode(timers) if timers else (),
        due=due or 0.0,
    )


def _acts(row: Sequence[Any]) -> bool:
    """Return True if there are timers or effects, or the key is to be due."""
    return row[-2] is not None


def _logged(row: Sequence[Any]) -> Logged:
    cursor, key, epoch, name, body, at = row
    return Logged(cursor, key, epoch, Result(name, body), at)


def _text(value: object) -> str:
    return _encode(value).decode()
