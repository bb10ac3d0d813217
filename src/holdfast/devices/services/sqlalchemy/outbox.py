"""The outbox store in the business's own database. One thread writes, a turn a transaction; another reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from holdfast.devices.ports.outbox import (
    DeviceStatus,
    KnownDevice,
    NewCommand,
    OnResult,
    WriterSettings,
    fenced,
)
from holdfast.devices.rules import device_turn
from holdfast.devices.rules.device_queue import (
    EPOCH_MAX,
    REASONS,
    TABLE,
    Cause,
    CommandState,
    StoredCommand,
)
from holdfast.devices.rules.device_turn import Rollout, TurnRequest, TurnResult
from holdfast.devices.services.sqlalchemy import bell, schema, tables
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy.bell import NotifyListener, ring_at_commit
from holdfast.devices.services.sqlalchemy.engine import Durability
from holdfast.devices.services.sqlalchemy.records import (
    NAMED_MAX,
    PAUSE_KINDS,
    ROLLOUT_KINDS,
    SHARD_KINDS,
    STATES,
    TEXT,
    RowFilter,
    to_command,
    to_rollout,
)
from holdfast.devices.services.sqlalchemy.results import (
    TransactionEnded,
    fully_reported,
    report,
    report_again,
)
from holdfast.devices.services.sqlalchemy.rows import SqlRows
from holdfast.devices.services.sqlalchemy.schema import make_tables, store_settings
from holdfast.devices.services.sqlalchemy.statements import COLUMNS, POSTGRESQL, ROLLOUT, SQLITE
from holdfast.devices.services.sqlalchemy.statuses import read_statuses, valid_seen
from holdfast.devices.services.sqlalchemy.transaction import OutboxTransaction
from holdfast.devices.services.sqlalchemy.writer import MAKE, SqlWriter
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.extend import OWNER, Access, Clock, quick_switches

T = TypeVar("T")

UNSUCCESSFUL = (CommandState.FAILED, CommandState.EXPIRED)
UNSUCCESSFUL_SQL = "state IN ('failed', 'expired')"
"""The condition of the index of commands that operators look for."""


class SqlOutbox:
    """The outbox tables of one database.

    Args:
        url: ``sqlite:///app.db`` or ``postgresql://user@host/name``.
        clock: the node's clock.
        create: create missing tables.
        durability: ``full``: every commit is on disk before it returns; ``normal``, on SQLite, leaves that to
            the operating system, and a power failure may lose the last moments.
        busy_timeout_s: how long to wait for locks of others.
        access: who may read and write a database file that is created; None to create none.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        create: bool = True,
        durability: Durability = "full",
        busy_timeout_s: float = 10.0,
        access: Access | None = OWNER,
    ) -> None:
        self._url = engines.parse(url)
        self._clock = clock
        self._create = create
        if durability not in ("full", "normal"):
            raise ConfigError(f"durability {durability!r} must be 'full' or 'normal'")
        self._durability = durability
        self.engine = engines.connect(self._url, busy_timeout_s, access)
        self._postgresql = self._url.get_backend_name() == "postgresql"
        self._statements = POSTGRESQL if self._postgresql else SQLITE
        self._errors = DBAPIError, self.engine.dialect.loaded_dbapi.Error
        self._listener = NotifyListener(self._url, clock)
        self._failures = self._failures_raised = 0
        self._lenient = False
        self._filter = RowFilter()
        self._commit = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "holdfast-outbox-writer")
        self._reader = ThreadPoolExecutor(1, "holdfast-outbox-reader")
        # With Python's default a busy event loop keeps these threads waiting at every statement.
        quick_switches.hold()

    # --- owners of shards

    async def prepare(self, outbox: str, shards: int, settings: WriterSettings = WriterSettings()) -> None:  # noqa: B008
        def prepare(connection: Connection) -> None:
            make_tables(connection, self._url, create=self._create)
            store_settings(connection, outbox, shards, settings)

        await self._change(prepare)

    async def names(self) -> list[str]:
        named = select(tables.shard.c.outbox).distinct().order_by(tables.shard.c.outbox)
        return [row[0] for row in self._filter.valid("shard", await self._rows(named), TEXT)]

    async def writer_settings(self, outbox: str) -> WriterSettings | None:
        s = tables.setting.c
        rows = await self._rows(select(s.lanes, s.expires_in_s, s.max_body).where(s.outbox == outbox))
        return WriterSettings(*rows[0]) if rows else None

    async def describe(self) -> str:
        return await self._read(schema.describe)

    async def epochs(self, outbox: str) -> Mapping[int, int]:
        s = tables.shard.c
        rows = await self._rows(select(s.shard, s.epoch).where(s.outbox == outbox).order_by(s.shard))

        def issued(row: Sequence[Any]) -> bool:
            return row[0] in range(len(rows)) and 0 <= row[1] <= EPOCH_MAX

        return {row[0]: row[1] for row in self._filter.valid("shard", rows, SHARD_KINDS, issued)}

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        def opened(connection: Connection) -> int:
            s = tables.shard.c
            epoch = max(expect + 1, int(self._clock.wall()))
            mine = (s.outbox == outbox, s.shard == shard)
            issue = update(tables.shard).where(*mine, s.epoch == expect).values(epoch=epoch, member=member)
            if not connection.execute(issue).rowcount:
                current = connection.execute(select(s.epoch).where(*mine)).scalar_one_or_none() or 0
                raise fenced(outbox, shard, current)
            return epoch

        return await self._change(opened)

    async def known_devices(self, outbox: str, shard: int) -> list[KnownDevice]:
        h, d = tables.head.c, tables.device.c
        known = (
            select(h.device, d.seen_at, d.away)
            .distinct()
            .select_from(tables.head)
            .outerjoin(tables.device, (d.outbox == h.outbox) & (d.device == h.device))
            .where(h.outbox == outbox, h.shard == shard)
        )
        return [KnownDevice(*each) for each in valid_seen(self._filter, await self._rows(known))]

    async def in_flight(self, outbox: str, shards: Collection[int]) -> int:
        h = tables.head.c
        return await self._count(
            select(func.count()).where(h.outbox == outbox, h.shard.in_(shards), text("phase = 'out'"))
        )

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        if self._postgresql and self._failures_raised != self._failures:
            self._failures_raised = self._failures
            raise Unavailable("it failed since the last turn, and may have crashed")
        # Without answers a power failure can only take back that commands were published, and they are
        # published again. So such a turn doesn't wait for the disk. If it closes a command all the same,
        # which has expired or was given up, it is hardened.
        relaxed = not (request.answers or request.unsent or request.sweep)
        unfit: set[int] = set()
        while True:
            change = partial(self._take_turn, request=request, on_result=on_result, unfit=unfit)
            try:
                return await self._write(change, relaxed=relaxed)
            except TransactionEnded as error:
                unfit.add(error.command)  # the turn is taken again, and on_result isn't called for this one
            except (Unavailable, OutcomeUnknown):
                self._failures_raised = self._failures
                raise

    def _take_turn(
        self,
        transaction: OutboxTransaction,
        request: TurnRequest,
        on_result: OnResult | None,
        unfit: Collection[int],
    ) -> TurnResult:
        rows = self._outbox_rows(transaction, request.outbox)
        result = device_turn.take_turn(rows, request, self._clock.random)
        if on_result is not None and result.closed:
            report(transaction.connection, result.closed, on_result, unfit)
        if request.sweep:
            mine = [shard for shard in request.grants if shard not in result.lost]
            report_again(transaction.connection, request.outbox, mine, on_result, unfit)
        if result.closed:
            transaction.harden()
        return result

    def _outbox_rows(self, transaction: OutboxTransaction, outbox: str) -> SqlRows:
        return SqlRows(transaction, outbox, self._statements, self._filter)

    async def pending_briefs(self, outbox: str, shards: Collection[int], limit: int) -> list[StoredCommand]:
        c, b = tables.command.c, tables.brief.c
        due = select(b.command).where(b.outbox == outbox, b.shard.in_(shards)).limit(limit).subquery()
        closed = select(text(COLUMNS)).select_from(tables.command).join(due, due.c.command == c.id)

        def read(connection: Connection) -> list[StoredCommand]:
            found = [to_command(row) for row in connection.execute(closed)]
            with self._commit:  # SQLite shows a commit before it is on disk
                return found

        return await self._read(read)

    async def confirm_briefs(self, outbox: str, sent: Sequence[StoredCommand]) -> None:
        b, c = tables.brief.c, tables.command.c
        # The brief of a later end stays, because the command may have been retried and closed again. A brief
        # whose time fits no end is spoilt and goes, because it would be sent again and again.
        is_end = select(c.id).where(c.id == b.command, c.closed_at == b.closed_at).exists()
        forget = delete(tables.brief).where(
            b.command == bindparam("number"), (b.closed_at == bindparam("at")) | ~is_end
        )
        ends = [{"number": each.id, "at": each.closed_at} for each in sent]
        # Relaxed: after a power failure the briefs are sent again.
        await self._change(lambda connection: connection.execute(forget, ends), relaxed=True)

    async def next_due(self, outbox: str, shards: Sequence[int]) -> float | None:
        h = tables.head.c
        dues = [
            select(func.min(h.due))
            .where(h.outbox == outbox, h.shard == shard, text(phases))
            .scalar_subquery()
            for shard in shards
            for phases in ("phase = 'out'", "phase IN ('waiting', 'held')")
        ]
        if not dues:
            return None
        [row] = await self._rows(select(*dues))
        return min((due for due in row if due is not None), default=None)

    async def wait_for_arrival(self, outbox: str, timeout_s: float) -> None:
        await self._listener.wait(outbox, timeout_s)

    # --- sources

    async def add(self, commands: Sequence[NewCommand]) -> list[int]:
        return await self._change(lambda connection: SqlWriter(connection).add(commands))

    async def fill(
        self, outbox: str, shard: int, epoch: int, source: str, cursor: str, commands: Sequence[NewCommand]
    ) -> None:
        def fill(transaction: OutboxTransaction) -> None:
            current = self._outbox_rows(transaction, outbox).epochs([shard]).get(shard, 0)
            if current != epoch:
                raise fenced(outbox, shard, current)
            connection = transaction.connection
            c = tables.cursor.c
            mine = (c.outbox == outbox, c.source == source)
            if not connection.execute(update(tables.cursor).where(*mine).values(cursor=cursor)).rowcount:
                row = {"outbox": outbox, "source": source, "cursor": cursor}
                connection.execute(insert(tables.cursor), row)
            SqlWriter(connection).add(commands)

        await self._write(fill)

    async def cursor(self, outbox: str, source: str) -> str | None:
        c = tables.cursor.c
        rows = await self._rows(select(c.cursor).where(c.outbox == outbox, c.source == source))
        return rows[0][0] if rows else None

    async def count_waiting(self, outbox: str, limit: int) -> int:
        c = tables.command.c
        some = select(c.id).where(c.outbox == outbox, text("state = 'scheduled'")).limit(limit).subquery()
        return await self._count(select(func.count()).select_from(some))

    # --- operators

    async def commands(
        self,
        outbox: str,
        *,
        after: int = 0,
        limit: int = 100,
        state: CommandState | None = None,
        device: str = "",
        newest: bool = False,
    ) -> list[StoredCommand]:
        c = tables.command.c
        listed = select(text(COLUMNS)).select_from(tables.command).where(c.outbox == outbox)
        if state is not None:
            listed = listed.where(c.state == state.value)
            if state in UNSUCCESSFUL:
                listed = listed.where(text(UNSUCCESSFUL_SQL))  # without it SQLite doesn't use the index
        if device:
            listed = listed.where(c.device == device)
        return [to_command(row) for row in await self._rows(_page(listed, c.id, after, limit, newest=newest))]

    async def command(self, command: int) -> StoredCommand | None:
        found = select(text(COLUMNS)).select_from(tables.command).where(tables.command.c.id == command)
        for read in map(to_command, await self._rows(found)):
            if read.spoilt:
                raise InvalidMessage(read.spoilt, "command")
            return read
        return None

    async def retry(self, command: int) -> bool:
        values = {"spent": 0, "expires_at": None, "closed_at": None, "answer": None, "reason": ""}
        c, r = tables.command.c, tables.rollout.c
        aborted = select(r.id).where(r.id == c.rollout, r.aborted).exists()
        newer = tables.command.alias()
        n = newer.c
        same = (n.outbox == c.outbox) & (n.supersede_key == c.supersede_key) & (n.device == c.device)
        replaced = select(n.id).where(same, n.id > c.id).exists()
        return await self._write(
            lambda transaction: self._operate(
                transaction, command, Cause.RETRY, values, fully_reported(), ~aborted, ~replaced
            )
        )

    async def cancel(self, command: int) -> bool:
        now = self._clock.wall()
        values = {"closed_at": now, "reason": REASONS[Cause.CANCEL], "untold": 0}
        return await self._write(
            lambda transaction: self._operate(transaction, command, Cause.CANCEL, values)
        )

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        return await self._change(
            lambda connection: SqlWriter(connection).cancel(
                outbox, device=device, supersede_key=supersede_key
            )
        )

    async def pause(self, outbox: str, device: str = "") -> None:
        now = self._clock.wall()
        await self._change(lambda connection: SqlWriter(connection).pause(outbox, device, now))

    async def resume(self, outbox: str, device: str = "") -> bool:
        return await self._change(lambda connection: SqlWriter(connection).resume(outbox, device))

    async def paused(self, outbox: str) -> Mapping[str, float]:
        p = tables.pause.c
        found = select(p.device, p.paused_at).where(p.outbox == outbox).order_by(p.device)
        rows = await self._rows(found)
        timed = {row[0] for row in self._filter.valid("pause", rows, PAUSE_KINDS)}
        # A pause with an invalid time holds all the same.
        return {device: at if device in timed else 0.0 for device, at in rows if isinstance(device, str)}

    def _operate(
        self,
        transaction: OutboxTransaction,
        command: int,
        cause: Cause,
        values: dict[str, Any],
        *only: ColumnElement[bool],
    ) -> bool:
        """Change the state of a command if the table of states allows it, also in its rollout's counts, and
        mark it for its dispatcher. Return whether it was changed."""
        c = tables.command.c
        moves = {state: after for (state, each), after in TABLE.items() if each is cause}
        [target] = set(moves.values())
        change = (
            update(tables.command)
            .where(c.id == command, c.state.in_([state.value for state in moves]), *only)
            .values(state=target.value, **values)
            .returning(c.outbox, *(c[name] for name in COLUMNS.split(", ")))
        )
        connection = transaction.connection
        row = connection.execute(change).one_or_none()
        if row is None:
            return False
        outbox, changed = row[0], to_command(row[1:])
        rows = self._outbox_rows(transaction, outbox)
        if changed.rollout is not None:
            rows.save_rollouts({changed.rollout: (0, 1 if target is CommandState.FAILED else -1)})
        if changed.closed_at is not None:
            rows.save_briefs([changed])
        mark = {"outbox": outbox, "shard": changed.shard, "device": changed.device, "lane": changed.lane}
        connection.execute(insert(tables.arrival), mark)
        ring_at_commit(connection, outbox)
        return True

    async def counts(self, outbox: str) -> Mapping[CommandState, int]:
        c = tables.command.c
        counted = select(c.state, func.count()).where(c.outbox == outbox).group_by(c.state)
        unknown = select(c.id, c.state).where(c.outbox == outbox, c.state.not_in([*STATES])).limit(NAMED_MAX)

        def count(connection: Connection) -> Mapping[CommandState, int]:
            found = dict(map(tuple, connection.execute(counted)))
            if found.keys() - STATES.keys():
                self._filter.valid("command", connection.execute(unknown), [(int,), (str,)], lambda _: False)
            return {state: found[state] for state in CommandState if state in found}

        return await self._read(count)

    async def devices(
        self, outbox: str, *, after: str = "", limit: int = 100, device: str = ""
    ) -> list[DeviceStatus]:
        return await self._read(
            partial(read_statuses, rows=self._filter, outbox=outbox, after=after, limit=limit, device=device)
        )

    async def rollouts(
        self, outbox: str, *, after: int = 0, limit: int = 100, newest: bool = False
    ) -> list[Rollout]:
        r = tables.rollout.c
        listed = select(text(ROLLOUT)).select_from(tables.rollout).where(r.outbox == outbox)
        rows = await self._rows(_page(listed, r.id, after, limit, newest=newest))
        return [to_rollout(row) for row in self._filter.valid("rollout", rows, ROLLOUT_KINDS)]

    async def abort(self, outbox: str, rollout: int) -> bool:
        r = tables.rollout.c
        running = (r.id == rollout, r.outbox == outbox, ~r.aborted, r.done + r.failed < r.total)

        def abort(connection: Connection) -> bool:
            changed = connection.execute(update(tables.rollout).where(*running).values(aborted=True)).rowcount
            if changed:
                ring_at_commit(connection, outbox)
            return bool(changed)

        return await self._change(abort)

    async def now(self) -> float:
        return await self._read(bell.clock)

    async def delete_closed(self, outbox: str, before: float, limit: int, *, archive: bool = False) -> int:
        def delete_old(connection: Connection) -> int:
            c, kept = tables.command.c, tables.archive.c
            old = (
                select(c.id)
                .where(c.outbox == outbox, c.closed_at.is_not(None), c.closed_at < before, fully_reported())
                .order_by(c.closed_at)
                .limit(limit)
                .with_for_update(skip_locked=True, of=tables.command)
            )
            ids = connection.execute(old).scalars().all()
            if archive and ids:
                row = select(*(c[column.name] for column in kept)).where(c.id.in_(ids))
                connection.execute(insert(tables.archive).from_select([*kept], row))
            if ids:
                connection.execute(delete(tables.command).where(c.id.in_(ids)))
            return len(ids)

        return await self._change(delete_old)

    async def close(self) -> None:
        await self._listener.close()
        for thread in (self._writer, self._reader):
            await asyncio.to_thread(thread.shutdown)
        await asyncio.to_thread(self.engine.dispose)
        quick_switches.release()

    # --- transactions

    async def _change(self, change: Callable[[Connection], T], *, relaxed: bool = False) -> T:
        return await self._write(lambda transaction: change(transaction.connection), relaxed=relaxed)

    async def _write(self, change: Callable[[OutboxTransaction], T], *, relaxed: bool = False) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._writer, self._transact, change, relaxed)
        return await asyncio.shield(running)

    def _transact(self, change: Callable[[OutboxTransaction], T], relaxed: bool) -> T:
        committing = False
        try:
            with self._connect() as connection:
                transaction = engines.begin(connection, self._durability, relaxed=relaxed)
                try:
                    result = change(transaction)
                    committing = True
                    with self._commit:
                        transaction.commit()
                except (*self._errors, TransactionEnded):
                    connection.invalidate()
                    raise
                return result
        except self._errors as error:
            self._failures += 1
            raise self._named(error, committing=committing) from error

    def _named(self, error: Exception, *, committing: bool = False) -> HoldfastError:
        # Another program may have stored any bytes as a text in SQLite. From now on they can be read.
        self._lenient |= engines.UNREADABLE in str(error)
        return engines.convert_error(error, self._url, committing=committing)

    def _connect(self) -> Connection:
        connection = self.engine.connect()
        if self._lenient:
            engines.read_anything(connection)
        return connection

    async def _rows(self, query: Select[Any]) -> Sequence[Sequence[Any]]:
        return await self._read(lambda connection: connection.execute(query).all())

    async def _count(self, query: Select[int]) -> int:
        return await self._read(lambda connection: connection.execute(query).scalar_one())

    async def _read(self, query: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read_now, query)

    def _read_now(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._connect() as connection:
                return query(connection)
        except DBAPIError as error:
            self._failures += 1
            if engines.lacks_tables(error):
                raise ConfigError(
                    f"{engines.redacted(self._url)}: the outbox's tables can't be read"
                    f" ({str(error.orig).strip()}): {MAKE}; and let this user read them"
                ) from error
            raise self._named(error) from error


def _page(listed: Select[Any], number: Any, after: int, limit: int, *, newest: bool) -> Select[Any]:
    """Return a page of rows by their ids, from either end."""
    if after or not newest:
        listed = listed.where(number < after if newest else number > after)
    return listed.order_by(number.desc() if newest else number).limit(limit)
