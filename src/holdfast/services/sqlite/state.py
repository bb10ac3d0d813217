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

from holdfast.errors import Fenced, HoldfastError, TooLarge
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.streams.rules import ledger
from holdfast.streams.rules.ledger import Checkpoint, Commit, Result, RunLog, Started
from holdfast.system.doorbell import SAFETY_S

TOPIC = "results"

EXPIRE_BATCH = 500
"""Results or checkpoints that one transaction drops, so that commits don't wait for it."""

TRIM_EVERY = 256
"""Commits between removals of identities that have left the window."""

COLUMNS = """
    key, epoch, member, number, commit_id, at, log, past, window, head, openings, begun, parked, done,
    skipped, suspects, state_version"""

SELECT = f"SELECT id, {COLUMNS}, state FROM checkpoints WHERE key = ?"  # noqa: S608

RECENT = "SELECT names FROM recents WHERE checkpoint = ? ORDER BY number DESC"

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

UNUSUAL = """
WITH c (place, key, epoch, number, window) AS (VALUES {rows})
SELECT group_concat(c.place) FROM c LEFT JOIN checkpoints s ON s.key = c.key
WHERE c.place IS NOT NULL
AND (s.epoch = c.epoch AND s.number = c.number - 1 AND s.window = c.window) IS NOT TRUE"""

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

LOGGED = "cursor, key, epoch, name, body, at"

_encode = msgspec.json.encode
_log = msgspec.json.Decoder(RunLog | None)
_past = msgspec.json.Decoder(tuple[RunLog, ...])
_suspects = msgspec.json.Decoder(tuple[Started, ...])
_names = msgspec.json.Decoder(list[str])
_begun_rows = msgspec.json.Decoder(list[tuple[str, int, str, int, int, tuple[Started, ...]]])


class SqliteState:
    """The checkpoints and results of all streams in a database."""

    def __init__(self, database: Database, clock: Clock, *, max_state_bytes: int = 16 << 20) -> None:
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
            transaction.execute(OPEN, (key, opened.epoch, opened.member))
            return opened

        return await self._database.write(open_)

    async def start(self, key: str, epoch: int, head: str) -> int:
        openings: int = await self._database.write_many(self._start_all, (key, epoch, head))
        return openings

    async def commit(self, commit: Commit) -> None:
        size = len(commit.state or b"")
        if size > self.max_state_bytes:
            raise TooLarge(
                f"{commit.key}: a state of {size} bytes is over max_state_bytes, {self.max_state_bytes}"
            )
        await self._database.write_many(self._commit_all, _prepare(commit))

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        query = f"SELECT id, {COLUMNS}, NULL FROM checkpoints WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608
        rows = await self._database.read(
            lambda connection: connection.execute(query, (after, limit)).fetchall()
        )
        return [_checkpoint(row) for row in rows]

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
        query = "SELECT key FROM checkpoints WHERE at > 0 AND at < ?"
        idle = await self._database.read(
            lambda connection: connection.execute(query, (idle_before,)).fetchall()
        )
        for begin in range(0, len(idle), EXPIRE_BATCH):
            keys = [key for (key,) in idle[begin : begin + EXPIRE_BATCH]]
            checkpoints += await self._database.write(partial(_expire, keys=keys, idle_before=idle_before))
        return results, checkpoints

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
        usual = {row[0] for row in rows}.difference(map(int, transaction.list_rows(UNUSUAL, rows)))
        if usual:
            _apply(transaction, [commits[place] for place in sorted(usual)], at)
        return [
            None if place in usual else _judge(transaction, prepared, at)
            for place, prepared in enumerate(commits)
        ]


class Prepared(NamedTuple):
    """A commit and its rows, made before the transaction so that nobody waits for that."""

    commit: Commit
    row: tuple[Any, ...]
    recent: tuple[Any, ...] | None
    results: list[tuple[Any, ...]]


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
    )  # fmt: skip


def _recent_row(commit: Commit, identities: Sequence[str]) -> tuple[Any, ...]:
    return (commit.key, commit.number, len(identities), _text(identities))


def _apply(transaction: Transaction, commits: Sequence[Prepared], at: float) -> None:
    """Apply commits, of different keys, that the ledger accepts and whose window is the standing one."""
    transaction.change_rows(APPLY, [prepared.row for prepared in commits], at)
    transaction.change_rows(ADD_RECENT, [prepared.recent for prepared in commits if prepared.recent])
    for commit, *_ in commits:
        if commit.window and commit.number % TRIM_EVERY == 0:
            transaction.execute(TRIM, (commit.key, commit.window))
    _publish(transaction, commits, at)


def _judge(transaction: Transaction, prepared: Prepared, at: float) -> HoldfastError | None:
    """Let the ledger decide one commit, and write down what it says."""
    commit = prepared.commit
    try:
        after = ledger.commit(_load(transaction.connection, commit.key), commit, at)
    except Fenced as error:
        return error
    if after is not None:
        transaction.change_rows(APPLY, [prepared.row], at)
        if commit.clear_suspects:
            transaction.execute(CLEAR_SUSPECTS, (commit.key,))
        transaction.execute(FORGET, (commit.key,))
        if after.recent:
            transaction.change_rows(ADD_RECENT, [_recent_row(commit, after.recent)])
        _publish(transaction, [prepared], at)
    return None


def _publish(transaction: Transaction, commits: Sequence[Prepared], at: float) -> None:
    rows = [row for prepared in commits for row in prepared.results]
    if rows:
        transaction.change_rows(LOG, rows, at)
        transaction.ring(TOPIC)


def _expire(transaction: Transaction, keys: Sequence[str], idle_before: float) -> int:
    expired = 0
    for key in keys:
        standing = _peek(transaction.connection, key)
        if standing is not None and 0 < standing.at < idle_before:
            transaction.execute(FORGET, (key,))
            transaction.execute("DELETE FROM checkpoints WHERE key = ?", (key,))
            left = ledger.expire(standing)
            transaction.execute(
                "INSERT INTO checkpoints (key, epoch, member, number, commit_id) VALUES (?, ?, ?, ?, ?)",
                (left.key, left.epoch, left.member, left.number, left.commit_id),
            )
            expired += 1
    return expired


def _begun(transaction: Transaction, keys: Iterable[str]) -> dict[str, Checkpoint]:
    """Return the parts of these checkpoints that say which heads were begun."""
    found = {}
    for text in transaction.texts(BEGUN, [(key,) for key in keys]):
        for key, epoch, head, openings, begun, suspects in _begun_rows.decode(text):
            started = Started(head, openings, begun) if openings else None
            found[key] = Checkpoint(key, epoch, started=started, suspects=suspects)
    return found


def _load(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """The whole checkpoint."""
    row = connection.execute(SELECT, (key,)).fetchone()
    return (
        msgspec.structs.replace(_checkpoint(row), recent=_recent(connection, row[0], row[9])) if row else None
    )


def _peek(connection: sqlite3.Connection, key: str) -> Checkpoint | None:
    """The checkpoint without ``recent``."""
    row = connection.execute(SELECT, (key,)).fetchone()
    return _checkpoint(row) if row else None


def _recent(connection: sqlite3.Connection, checkpoint: int, window: int) -> tuple[str, ...]:
    newest_first: list[str] = []
    for (names,) in connection.execute(RECENT, (checkpoint,)):
        if len(newest_first) >= window:
            break
        newest_first += reversed(_names.decode(names))
    return tuple(reversed(newest_first[:window]))


def _checkpoint(row: Sequence[Any]) -> Checkpoint:
    (_, key, epoch, member, number, commit_id, at, log, past, _, head, openings, begun, parked, done,
     skipped, suspects, version, state) = row  # fmt: skip
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
    )


def _logged(row: Sequence[Any]) -> Logged:
    cursor, key, epoch, name, body, at = row
    return Logged(cursor, key, epoch, Result(name, body), at)


def _text(value: object) -> str:
    return _encode(value).decode()
