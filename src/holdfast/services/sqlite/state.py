"""The state store in SQLite.

The ledger decides. Commits that come together are decided by one statement with the same rules for the usual
case (epoch and number are the next). The ledger itself decides the unusual ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
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

BEGUN = """
WITH k (key) AS (VALUES {rows})
SELECT json_group_array(json_array(s.key, s.epoch, s.head, s.openings, s.begun, json(s.suspects)))
FROM k CROSS JOIN checkpoints s ON s.key = k.key"""

START = """
UPDATE checkpoints SET head = c.head, openings = c.openings, begun = c.begun, suspects = c.suspects
FROM (SELECT column1 AS key, column2 AS head, column3 AS openings, column4 AS begun, column5 AS suspects
    FROM (VALUES {rows})) c
WHERE checkpoints.key = c.key"""

NEXT = "(s.epoch = c.epoch AND s.number = c.number - 1 AND s.window = c.window)"

# The places of commits that aren't just the next ones; and below 0, of those next ones whose checkpoint acts.
UNUSUAL = f"""
WITH c (place, key, epoch, number, window) AS (VALUES {{rows}})
SELECT group_concat(iif({NEXT}, -1 - c.place, c.place))
FROM c LEFT JOIN checkpoints s ON s.key = c.key LEFT JOIN acting a ON a.checkpoint = s.id
WHERE c.place IS NOT NULL AND ({NEXT} AND a.checkpoint IS NULL) IS NOT TRUE"""  # noqa: S608

APPLY = """
WITH c (key, number, id, log, past, window, head, parked, done, skipped, keep, version, state)
AS (VALUES {rows})
UPDATE checkpoints SET
    number = c.number, commit_id = c.id, at = ?, log = c.log, past = c.past, window = c.window,
    openings = CASE WHEN c.head = '' THEN 0 WHEN c.head = checkpoints.head THEN openings ELSE 1 END,
    begun = CASE WHEN c.head = checkpoints.head THEN begun ELSE epoch END,
    head = c.head, parked = c.parked,
    done = checkpoints.done + c.done, skipped = min(checkpoints.skipped + c.skipped, 9007199254740991),
    state = iif(c.keep, checkpoints.state, c.state),
    state_version = iif(c.state IS NULL, checkpoints.state_version, c.version)
FROM c WHERE checkpoints.key = c.key"""

DROP_EFFECTS = """
WITH d (key, id) AS (VALUES {rows})
DELETE FROM effects WHERE rowid IN (
    SELECT e.rowid FROM d CROSS JOIN checkpoints s ON s.key = d.key
    CROSS JOIN effects e ON e.checkpoint = s.id AND e.id = d.id)"""

REFUSE_EFFECT = """
UPDATE effects SET refused = ? WHERE checkpoint = (SELECT id FROM checkpoints WHERE key = ?) AND id = ?"""

ADD_EFFECTS = """
WITH e (
    key, number, place, id, target, target_key, body, cause, at, not_before, hops, refused, traceparent)
AS (VALUES {rows})
INSERT INTO effects (
    checkpoint, number, place, id, target, key, body, cause, at, not_before, hops, refused, traceparent)
SELECT s.id, e.number, e.place, e.id, e.target, e.target_key, e.body, e.cause, e.at, e.not_before, e.hops,
    e.refused, e.traceparent
FROM e CROSS JOIN checkpoints s ON s.key = e.key"""

ACT = """
WITH c (key, due, timers) AS (VALUES {rows})
INSERT INTO acting (checkpoint, due, timers)
SELECT s.id, c.due, coalesce(c.timers, (SELECT timers FROM acting WHERE checkpoint = s.id), '[]')
FROM c CROSS JOIN checkpoints s ON s.key = c.key WHERE true
ON CONFLICT (checkpoint) DO UPDATE SET due = excluded.due, timers = excluded.timers"""

ACT_NO_MORE = """
WITH c (key) AS (VALUES {rows})
DELETE FROM acting WHERE checkpoint IN (SELECT s.id FROM c CROSS JOIN checkpoints s ON s.key = c.key)
AND due = 0 AND timers = '[]' AND NOT EXISTS (SELECT 1 FROM effects WHERE checkpoint = acting.checkpoint)"""

DUE = """
SELECT a.checkpoint, s.key FROM acting a CROSS JOIN checkpoints s ON s.id = a.checkpoint
WHERE a.due > 0 AND a.due < ? ORDER BY a.due LIMIT ?"""

LEASE = """
WITH k (checkpoint, key) AS (VALUES {rows})
UPDATE acting SET due = ? FROM k WHERE acting.checkpoint = k.checkpoint"""

IDLE = """
SELECT key FROM checkpoints WHERE at > 0 AND at < ?
AND NOT EXISTS (SELECT 1 FROM acting WHERE checkpoint = checkpoints.id)"""

CLEAR_SUSPECTS = "UPDATE checkpoints SET suspects = '[]' WHERE key = ?"

ADD_RECENT = """
WITH c (key, number, count, names) AS (VALUES {rows})
INSERT INTO recents (checkpoint, number, count, names)
SELECT s.id, c.number, c.count, c.names FROM c CROSS JOIN checkpoints s ON s.key = c.key"""

# A row goes once newer ones hold as many identities as the window has.
TRIM = """
DELETE FROM recents WHERE checkpoint = (SELECT id FROM checkpoints WHERE key = ?1) AND number <= (
    SELECT max(number) FROM (
        SELECT number, sum(count) OVER (ORDER BY number DESC) - count AS newer FROM recents
        WHERE checkpoint = (SELECT id FROM checkpoints WHERE key = ?1))
    WHERE newer >= ?2)"""

FORGET = "DELETE FROM recents WHERE checkpoint = (SELECT id FROM checkpoints WHERE key = ?)"

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

RESTORE_RECENT = "INSERT INTO recents (checkpoint, number, count, names) VALUES (?, ?, ?, ?)"

RESTORE_ACTING = "INSERT INTO acting (checkpoint, due, timers) VALUES (?, ?, ?)"

RESTORE_EFFECT = """
INSERT INTO effects (
    checkpoint, number, place, id, target, key, body, cause, at, not_before, hops, refused, traceparent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

RESTORE_RESULT = """
INSERT OR IGNORE INTO results (cursor, stream, key, name, epoch, body, at) VALUES (?, ?, ?, ?, ?, ?, ?)"""

LOGGED = "cursor, key, epoch, name, body, at"

_encode = msgspec.json.encode
_log = msgspec.json.Decoder(RunLog | None)
_past = msgspec.json.Decoder(tuple[RunLog, ...])
_suspects = msgspec.json.Decoder(tuple[Started, ...])
_timers = msgspec.json.Decoder(tuple[Timer, ...])
_names = msgspec.json.Decoder(list[str])
_begun_rows = msgspec.json.Decoder(list[tuple[str, int, str, int, int, tuple[Started, ...]]])


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
        rows = await self._database.read(
            lambda connection: connection.execute(NEWEST, (key, limit)).fetchall()
        )
        known = [name for _, names in reversed(rows) for name in _names.decode(names)]
        return known[-min(limit, rows[0][0]) :] if rows else []

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        rows = await self._database.read(
            lambda connection: connection.execute(LIST, (after, limit)).fetchall()
        )
        return [_checkpoint(row) for row in rows]

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        # Mostly nothing is due: the write lock is for when something is.
        if not await self._database.read(
            lambda connection: connection.execute(DUE, (before, limit)).fetchall()
        ):
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
                rows = await self._database.read(
                    lambda connection: connection.execute(query, parameters).fetchall(), confirmed=True
                )
                remaining_s = deadline - self._clock.monotonic()
                if rows or remaining_s <= 0 or self._closings != closings:
                    return [_logged(row) for row in rows]
                await self._clock.wait(rung, min(remaining_s, SAFETY_S))

    async def result(self, key: str, name: str) -> Logged | None:
        query = f"SELECT {LOGGED} FROM results WHERE key = ? AND name = ? ORDER BY cursor DESC LIMIT 1"  # noqa: S608
        row = await self._database.read(
            lambda connection: connection.execute(query, (key, name)).fetchone(), confirmed=True
        )
        return _logged(row) if row else None

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        results = checkpoints = 0
        while dropped := await self._database.write(
            lambda transaction: transaction.execute(EXPIRE_RESULTS, (EXPIRE_BATCH, results_before)).rowcount
        ):
            results += dropped
        idle = await self._database.read(
            lambda connection: connection.execute(IDLE, (idle_before,)).fetchall()
        )
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
        """Count heads that came together, in order; the ledger decides each."""
        standing = _begun(transaction, {key for key, _, _ in asked})
        answers: list[int | HoldfastError] = []
        for key, epoch, head in asked:
            try:
                standing[key] = checkpoint = ledger.start(standing.get(key), key, epoch, head)
            except Fenced as error:
                answers.append(error)
            else:
                assert checkpoint.started is not None
                answers.append(checkpoint.started.openings)
        rows = [
            (c.key, c.started.head, c.started.openings, c.started.epoch, _text(c.suspects))
            for c in standing.values()
            if c.started is not None
        ]
        if rows:
            transaction.change_rows(START, rows)
        return answers

    # --- commits

    def _commit_all(
        self, transaction: Transaction, commits: Sequence[Prepared]
    ) -> list[HoldfastError | None]:
        """Decide commits that came together, in order; the usual ones all at once."""
        at = self._clock.wall()
        first: dict[str, int] = {}
        for place, prepared in enumerate(commits):
            first.setdefault(prepared.commit.key, place)
        rows = [
            (place, key, commit.epoch, commit.number, commit.window)
            for key, place in first.items()
            for commit in [commits[place].commit]
            if not commit.clear_suspects
        ]
        told = {int(place) for place in transaction.list_rows(UNUSUAL, rows)}
        usual = [row[0] for row in rows if row[0] not in told]
        if usual:
            acting = [commits[place].commit for place in usual if commits[place].acts or -1 - place in told]
            _apply(transaction, [commits[place] for place in usual], acting, at)
        applied = set(usual)
        return [
            None if place in applied else _judge(transaction, prepared, at)
            for place, prepared in enumerate(commits)
        ]


class Prepared(NamedTuple):
    """A commit and its rows, made before the transaction so that nobody waits for that."""

    commit: Commit
    row: tuple[Any, ...]
    recent: tuple[Any, ...] | None
    results: list[tuple[Any, ...]]
    acts: bool
    """Whether it says anything of effects, timers, or when its key is due."""


def _prepare(commit: Commit) -> Prepared:
    c, keep = commit, commit.state is None and not commit.clear_state
    stream = c.key[: max(c.key.find("/"), 0)]
    return Prepared(
        commit,
        row=(
            c.key, c.number, c.id, _text(c.log), _text(c.past), c.window, c.starting, c.parked,
            c.done, c.skipped, keep, c.state_version, c.state,
        ),
        recent=_recent_row(c, c.identities) if c.window and c.identities else None,
        results=[(stream, c.key, result.name, c.epoch, result.body) for result in c.results],
        acts=bool(c.due or c.timers is not None or c.effects or c.dropped or c.refused),
    )  # fmt: skip


def _recent_row(commit: Commit, identities: Sequence[str]) -> tuple[Any, ...]:
    return (commit.key, commit.number, len(identities), _text(identities))


def _apply(
    transaction: Transaction, commits: Sequence[Prepared], acting: Sequence[Commit], at: float
) -> None:
    """Apply commits, of different keys, that the ledger accepts and whose window is the standing one.
    ``acting`` are those of them whose checkpoint acts, or is to act."""
    transaction.change_rows(APPLY, [prepared.row for prepared in commits], at)
    transaction.change_rows(ADD_RECENT, [prepared.recent for prepared in commits if prepared.recent])
    for commit, *_ in commits:
        if commit.window and commit.number % TRIM_EVERY == 0:
            transaction.execute(TRIM, (commit.key, commit.window))
    if acting:
        _act(transaction, acting)
    _publish(transaction, commits, at)


def _judge(transaction: Transaction, prepared: Prepared, at: float) -> HoldfastError | None:
    """Let the ledger decide one commit, and write down what it says."""
    commit = prepared.commit
    try:
        before = _load(transaction.connection, commit.key)
        after = ledger.commit(before, commit, at)
    except Fenced as error:
        return error
    if after is not None:
        transaction.change_rows(APPLY, [prepared.row], at)
        if commit.clear_suspects:
            transaction.execute(CLEAR_SUSPECTS, (commit.key,))
        transaction.execute(FORGET, (commit.key,))
        if after.recent:
            transaction.change_rows(ADD_RECENT, [_recent_row(commit, after.recent)])
        if prepared.acts or (before is not None and before.acts):
            _act(transaction, [commit])
        _publish(transaction, [prepared], at)
    return None


def _act(transaction: Transaction, commits: Sequence[Commit]) -> None:
    """Write down what commits, of different keys, say of effects, timers, and when their keys are due."""
    transaction.change_rows(DROP_EFFECTS, [(c.key, id_) for c in commits for id_ in c.dropped])
    for c in commits:
        for refused in c.refused:
            transaction.execute(REFUSE_EFFECT, (refused.reason, c.key, refused.id))
    effects = [(c.key, *msgspec.structs.astuple(effect)) for c in commits for effect in c.effects]
    transaction.change_rows(ADD_EFFECTS, effects)
    acts = [(c.key, c.due, None if c.timers is None else _text(c.timers)) for c in commits]
    transaction.change_rows(ACT, acts)
    transaction.change_rows(ACT_NO_MORE, [(c.key,) for c in commits if not c.due])


def _publish(transaction: Transaction, commits: Sequence[Prepared], at: float) -> None:
    rows = [row for prepared in commits for row in prepared.results]
    if rows:
        transaction.change_rows(LOG, rows, at)
        transaction.ring(TOPIC)


def _restore(transaction: Transaction, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, unless there is one. Its window is as large as what is in it: the next commit says
    how large it is to be."""
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
    if c.recent:
        transaction.execute(RESTORE_RECENT, (row[0], c.number, len(c.recent), _text(c.recent)))
    if c.acts:
        transaction.execute(RESTORE_ACTING, (row[0], c.due, _text(c.timers)))
    for effect in c.effects:
        transaction.execute(RESTORE_EFFECT, (row[0], *msgspec.structs.astuple(effect)))


def _expire(transaction: Transaction, keys: Sequence[str], idle_before: float) -> int:
    expired = 0
    for key in keys:
        standing = _load(transaction.connection, key)
        if standing is not None and ledger.may_expire(standing, idle_before):
            transaction.execute(FORGET, (key,))
            transaction.execute("DELETE FROM checkpoints WHERE key = ?", (key,))
            left = ledger.expire(standing)
            transaction.execute(
                "INSERT INTO checkpoints (key, epoch, member, number, commit_id) VALUES (?, ?, ?, ?, ?)",
                (left.key, left.epoch, left.member, left.number, left.commit_id),
            )
            expired += 1
    return expired


def _lease(transaction: Transaction, before: float, limit: int, lease_s: float) -> list[str]:
    """Hand out keys that are due, as :func:`holdfast.rules.streams.ledger.lease_due` says."""
    rows = transaction.execute(DUE, (before, limit)).fetchall()
    if rows:
        transaction.change_rows(LEASE, rows, before + lease_s)
    return [key for _, key in rows]


def _begun(transaction: Transaction, keys: Iterable[str]) -> dict[str, Checkpoint]:
    """Return the parts of these checkpoints that say which heads were begun."""
    found = {}
    for text in transaction.texts(BEGUN, [(key,) for key in keys]):
        for key, epoch, head, openings, begun, suspects in _begun_rows.decode(text):
            started = Started(head, openings, begun) if openings else None
            found[key] = Checkpoint(key, epoch, started=started, suspects=suspects)
    return found


def _load(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """The whole checkpoint. The caller is in a transaction."""
    row = connection.execute(SELECT, (key,)).fetchone()
    if row is None:
        return None
    standing = msgspec.structs.replace(_checkpoint(row), recent=_recent(connection, row[0], row[9]))
    if not _acts(row):
        return standing
    effects = tuple(Effect(*effect) for effect in connection.execute(EFFECTS, (row[0],)))
    return msgspec.structs.replace(standing, effects=effects)


def _peek(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """The checkpoint; ``recent`` may be empty."""
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
