"""The outbox store in the business's own database. One thread writes, a turn a transaction; another reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from holdfast.devices.ports.outbox import Adding, DeviceStatus, KnownDevice, NewCommand, OnResult
from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules import device_turn
from holdfast.devices.rules.device_queue import (
    EPOCH_MAX,
    REASONS,
    TABLE,
    Cause,
    CommandState,
    HeadPhase,
    StoredCommand,
)
from holdfast.devices.rules.device_turn import Rollout, TurnRequest, TurnResult
from holdfast.devices.services.sqlalchemy import bell, tables
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy.bell import NotifyListener, ring_at_commit
from holdfast.devices.services.sqlalchemy.engine import Durability
from holdfast.devices.services.sqlalchemy.migrations import steps
from holdfast.devices.services.sqlalchemy.rows import (
    COLUMNS,
    HEAD_KINDS,
    KINDS,
    KNOWN_KINDS,
    NAMED_MAX,
    PAUSE_KINDS,
    PHASES,
    POSTGRESQL,
    ROLLOUT,
    ROLLOUT_KINDS,
    SHARD_KINDS,
    SQLITE,
    STATES,
    TEXT,
    Sound,
    SqlRows,
    entry,
    has_phase,
    to_rollout,
)
from holdfast.devices.services.sqlalchemy.transaction import OutboxTransaction
from holdfast.devices.services.sqlalchemy.writer import MAKE, SqlWriter
from holdfast.errors import ConfigError, Fenced, HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.extend import OWNER, Access, Clock, get_logger, quick_switches
from holdfast.extend.tools import kind_and_place, run_user_code

T = TypeVar("T")

WAITING_MAX = 1000

ENDED_BADLY = (CommandState.FAILED, CommandState.EXPIRED)
ENDED_BADLY_SQL = "state IN ('failed', 'expired')"
"""What operators look for among a million that went well: it has an index."""

TELL_MAX = 200
"""Closed commands that a sweep tells again."""

MAKING = 0x686F6C64
"""The advisory lock under which PostgreSQL's tables are made."""

MADE = "a node makes them if its user may, or make them by a migration"
HELP = (
    "let a user who may make its tables: as SQL in holdfast/devices/services/sqlalchemy/migrations, or by"
    " Alembic"
)

log = get_logger(__name__)


class SqlOutbox:
    """The outbox tables of one database.

    Args:
        url: ``sqlite:///app.db`` or ``postgresql://user@host/name``.
        clock: the node's clock.
        create: make the tables if they are missing.
        durability: ``full``: every commit is on disk before it counts; ``normal``, on SQLite, leaves that to
            the operating system, and a power failure may take the last moments back.
        busy_timeout_s: how long to wait for locks of others.
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
        self._engine = engines.connect(self._url, busy_timeout_s, access)
        self._postgresql = self._url.get_backend_name() == "postgresql"
        self._statements = POSTGRESQL if self._postgresql else SQLITE
        self._errors = DBAPIError, self._engine.dialect.loaded_dbapi.Error
        self._listener = NotifyListener(self._url, clock)
        self._failures = self._failures_told = 0
        self._lenient = False
        self._sound = Sound()
        self._commit = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "holdfast-outbox-writer")
        self._reader = ThreadPoolExecutor(1, "holdfast-outbox-reader")
        # For all of the process: with the default a busy event loop keeps these waiting at every statement.
        quick_switches.hold()

    # --- the owner of a shard

    async def prepare(self, outbox: str, shards: int, adding: Adding = Adding()) -> None:  # noqa: B008
        await self._change(partial(self._prepare, outbox=outbox, shards=shards, adding=adding))

    def _prepare(self, connection: Connection, outbox: str, shards: int, adding: Adding) -> None:
        if self._postgresql:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
        lacks = _lacks(connection)
        if lacks.named:
            if not self._create:
                raise ConfigError(f"{engines.shown(self._url)} has no {', '.join(lacks.named)}: {HELP}")
            try:
                for number in lacks.migrations:
                    # First, or the table of rollouts would be made anew and be empty.
                    for step in steps(number, connection):
                        connection.execute(step)
                absent = [tables.metadata.tables[name] for name in _lacks(connection).tables]
                tables.metadata.create_all(connection, absent)
            except DBAPIError as error:
                if engines.passes(error):
                    raise
                raise ConfigError(f"the outbox can't be made ({error.orig}): {HELP}") from error
        standing = _shards(connection, outbox)
        if not standing:
            rows = [{"outbox": outbox, "shard": shard} for shard in range(shards)]
            connection.execute(insert(tables.shard), rows)
        elif standing != shards:
            raise ConfigError(f"outbox {outbox!r} has {standing} shards; set shards to that, not {shards}")
        connection.execute(delete(tables.setting).where(tables.setting.c.outbox == outbox))
        connection.execute(insert(tables.setting), {"outbox": outbox, **msgspec.structs.asdict(adding)})

    async def names(self) -> list[str]:
        named = select(tables.shard.c.outbox).distinct().order_by(tables.shard.c.outbox)
        rows = await self._read(lambda connection: connection.execute(named).all())
        return [row[0] for row in self._sound.only("shard", rows, (TEXT,))]

    async def adding(self, outbox: str) -> Adding | None:
        return await self._read(partial(self._adding, outbox=outbox))

    def _adding(self, connection: Connection, outbox: str) -> Adding | None:
        s = tables.setting.c
        row = connection.execute(
            select(s.lanes, s.expires_in_s, s.max_body).where(s.outbox == outbox)
        ).one_or_none()
        return None if row is None else Adding(*row)

    async def describe(self) -> str:
        def describe(connection: Connection) -> str:
            name = "PostgreSQL" if self._postgresql else "SQLite"
            version = ".".join(map(str, connection.dialect.server_version_info or ()))
            lacks = _lacks(connection)
            if not lacks.named:
                return f"{name} {version}; all tables are there"
            some = len(lacks.tables) < len(tables.metadata.tables)
            which = ", ".join(lacks.named) if some else "tables yet"
            return f"{name} {version}; no {which}: {MADE}"

        return await self._read(describe)

    async def epochs(self, outbox: str) -> Mapping[int, int]:
        return await self._read(partial(self._epochs, outbox=outbox))

    def _epochs(self, connection: Connection, outbox: str) -> Mapping[int, int]:
        s = tables.shard.c
        rows = connection.execute(select(s.shard, s.epoch).where(s.outbox == outbox).order_by(s.shard)).all()

        def issued(row: Sequence[Any]) -> bool:
            return row[0] in range(len(rows)) and 0 <= row[1] <= EPOCH_MAX

        return {row[0]: row[1] for row in self._sound.only("shard", rows, SHARD_KINDS, issued)}

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        def opened(connection: Connection) -> int:
            s = tables.shard.c
            epoch = max(expect + 1, int(self._clock.wall()))
            mine = (s.outbox == outbox, s.shard == shard)
            issue = update(tables.shard).where(*mine, s.epoch == expect).values(epoch=epoch, member=member)
            if not connection.execute(issue).rowcount:
                standing = connection.execute(select(s.epoch).where(*mine)).scalar_one_or_none() or 0
                raise _fenced(outbox, shard, standing)
            return epoch

        return await self._change(opened)

    async def known(self, outbox: str, shard: int) -> list[KnownDevice]:
        h, d = tables.head.c, tables.device.c
        known = (
            select(h.device, d.seen_at, d.away)
            .distinct()
            .select_from(tables.head)
            .outerjoin(tables.device, (d.outbox == h.outbox) & (d.device == h.device))
            .where(h.outbox == outbox, h.shard == shard)
        )
        rows = await self._read(lambda connection: connection.execute(known).all())
        return [KnownDevice(device, at, away) for device, at, away in self._seen(rows)]

    def _seen(self, rows: Sequence[Sequence[Any]]) -> list[tuple[str, float | None, bool]]:
        """Rows of device, seen_at and away. One whose time is spoilt was never seen."""
        sound = {row[0] for row in self._sound.only("device", rows, KNOWN_KINDS)}
        return [
            (device, at if device in sound else None, bool(away))
            for device, at, away in rows
            if isinstance(device, str)
        ]

    async def in_flight(self, outbox: str, shards: Collection[int]) -> int:
        h = tables.head.c
        out = select(func.count()).where(h.outbox == outbox, h.shard.in_(shards), text("phase = 'out'"))
        return await self._read(lambda connection: connection.execute(out).scalar_one())

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        if self._postgresql and self._failures_told != self._failures:
            self._failures_told = self._failures
            raise Unavailable("it failed since the last turn, and may have crashed")
        # Where nothing has been answered, all that a power failure could take back is that something was
        # published: then it is published again. So the devices needn't wait for the disk. A turn that closes
        # something all the same, for it has expired or was given up, is hardened.
        relaxed = not (request.answers or request.unsent or request.sweep)
        unfit: set[int] = set()
        while True:
            change = partial(self._turn, request=request, on_result=on_result, unfit=unfit)
            try:
                return await self._write(change, relaxed=relaxed)
            except TransactionEnded as error:
                unfit.add(error.command)  # the turn is taken again, without telling of this one
            except (Unavailable, OutcomeUnknown):
                self._failures_told = self._failures
                raise

    def _turn(
        self,
        transaction: OutboxTransaction,
        request: TurnRequest,
        on_result: OnResult | None,
        unfit: Collection[int],
    ) -> TurnResult:
        rows = self._rows(transaction, request.outbox)
        result = device_turn.take_turn(rows, request, self._clock.random)
        if on_result is not None and result.closed:
            self._tell(transaction.connection, result.closed, on_result, unfit)
        if request.sweep:
            mine = [shard for shard in request.grants if shard not in result.lost]
            self._tell_again(transaction.connection, request.outbox, mine, on_result, unfit)
        if result.closed:
            transaction.harden()
        return result

    def _rows(self, transaction: OutboxTransaction, outbox: str) -> SqlRows:
        return SqlRows(transaction, outbox, self._statements, self._sound)

    def _tell(
        self,
        connection: Connection,
        closed: Sequence[StoredCommand],
        on_result: OnResult,
        unfit: Collection[int],
    ) -> set[int]:
        """Call the business, within the transaction; returns for which commands that failed: these a sweep
        tells again. Only if something fails are they told one by one. Of those in ``unfit`` it isn't told."""
        failed = {each.id for each in closed if each.id in unfit}
        fit = [each for each in closed if each.id not in unfit]
        if fit and not _told(connection, fit, on_result):
            failed |= {each.id for each in fit if len(fit) == 1 or not _told(connection, [each], on_result)}
        if not failed:
            return failed
        c = tables.command.c
        again = update(tables.command).where(c.id.in_(failed)).values(untold=func.coalesce(c.untold, 0) + 1)
        connection.execute(again)
        return failed

    def _tell_again(
        self,
        connection: Connection,
        outbox: str,
        shards: Sequence[int],
        on_result: OnResult | None,
        unfit: Collection[int],
    ) -> None:
        c = tables.command.c
        untold = (
            select(text(COLUMNS))
            .select_from(tables.command)
            .where(c.outbox == outbox, c.shard.in_(shards), text("untold IS NOT NULL"))
            .order_by(c.untold)
            .limit(TELL_MAX)
        )
        closed = [entry(row) for row in connection.execute(untold)]
        failed = self._tell(connection, closed, on_result, unfit) if on_result else set()
        told = [each.id for each in closed if each.id not in failed]
        if told:
            connection.execute(update(tables.command).where(c.id.in_(told)).values(untold=None))

    async def briefs(self, outbox: str, shards: Collection[int], limit: int) -> list[StoredCommand]:
        c, b = tables.command.c, tables.brief.c
        due = select(b.command).where(b.outbox == outbox, b.shard.in_(shards)).limit(limit).subquery()
        closed = select(text(COLUMNS)).select_from(tables.command).join(due, due.c.command == c.id)

        def read(connection: Connection) -> list[StoredCommand]:
            found = [entry(row) for row in connection.execute(closed)]
            with self._commit:  # SQLite shows a commit before it is hardened
                return found

        return await self._read(read)

    async def briefed(self, outbox: str, told: Sequence[StoredCommand]) -> None:
        b, c = tables.brief.c, tables.command.c
        # Not a later end: the command may have been retried and closed again. But what is spoilt, and so no
        # end of the command at all, or it would be told again and again.
        is_end = select(c.id).where(c.id == b.command, c.closed_at == b.closed_at).exists()
        forget = delete(tables.brief).where(
            b.command == bindparam("number"), (b.closed_at == bindparam("at")) | ~is_end
        )
        ends = [{"number": each.id, "at": each.closed_at} for each in told]

        # What a power failure takes back of it is told again.
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
        row = await self._read(lambda connection: connection.execute(select(*dues)).one())
        return min((due for due in row if due is not None), default=None)

    async def arrived(self, outbox: str, timeout_s: float) -> None:
        await self._listener.wait(outbox, timeout_s)

    # --- sources

    async def add(self, commands: Sequence[NewCommand]) -> list[int]:
        return await self._change(lambda connection: SqlWriter(connection).add(commands))

    async def fill(
        self, outbox: str, shard: int, epoch: int, source: str, cursor: str, commands: Sequence[NewCommand]
    ) -> None:
        def fill(transaction: OutboxTransaction) -> None:
            standing = self._rows(transaction, outbox).epochs([shard]).get(shard, 0)
            if standing != epoch:
                raise _fenced(outbox, shard, standing)
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
        found = select(c.cursor).where(c.outbox == outbox, c.source == source)
        return await self._read(lambda connection: connection.execute(found).scalar_one_or_none())

    async def waiting(self, outbox: str, limit: int) -> int:
        c = tables.command.c
        some = select(c.id).where(c.outbox == outbox, text("state = 'scheduled'")).limit(limit).subquery()
        counted = select(func.count()).select_from(some)
        return await self._read(lambda connection: connection.execute(counted).scalar_one())

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
        if after or not newest:
            listed = listed.where(c.id < after if newest else c.id > after)
        if state is not None:
            listed = listed.where(c.state == state.value)
            if state in ENDED_BADLY:
                listed = listed.where(text(ENDED_BADLY_SQL))  # or SQLite wouldn't see its index
        if device:
            listed = listed.where(c.device == device)
        listed = listed.order_by(c.id.desc() if newest else c.id).limit(limit)
        return await self._read(lambda connection: [entry(row) for row in connection.execute(listed)])

    async def command(self, command: int) -> StoredCommand | None:
        found = select(text(COLUMNS)).select_from(tables.command).where(tables.command.c.id == command)

        def one(connection: Connection) -> StoredCommand | None:
            row = connection.execute(found).one_or_none()
            return entry(row) if row else None

        read = await self._read(one)
        if read is not None and read.spoilt:
            raise InvalidMessage(read.spoilt, "command")
        return read

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
                transaction, command, Cause.RETRY, values, _all_told(), ~aborted, ~replaced
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
        rows = await self._read(lambda connection: connection.execute(found).all())
        timed = {row[0] for row in self._sound.only("pause", rows, PAUSE_KINDS)}
        # It is paused, whenever that began.
        return {device: at if device in timed else 0.0 for device, at in rows if isinstance(device, str)}

    def _operate(
        self,
        transaction: OutboxTransaction,
        command: int,
        cause: Cause,
        values: dict[str, Any],
        *only: ColumnElement[bool],
    ) -> bool:
        """Change one command where the table of states allows it, in its rollout's count too, and leave word
        for its dispatcher."""
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
        outbox, changed = row[0], entry(row[1:])
        rows = self._rows(transaction, outbox)
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
                self._sound.only(
                    "command", connection.execute(unknown), (KINDS[0], KINDS[4]), lambda _: False
                )
            return {state: found[state] for state in CommandState if state in found}

        return await self._read(count)

    async def devices(
        self, outbox: str, *, after: str = "", limit: int = 100, device: str = ""
    ) -> list[DeviceStatus]:
        return await self._read(
            partial(self._devices, outbox=outbox, after=after, limit=limit, device=device)
        )

    def _devices(
        self, connection: Connection, outbox: str, after: str, limit: int, device: str
    ) -> list[DeviceStatus]:
        h, d = tables.head.c, tables.device.c
        listed = connection.execute(_scheduled(outbox, after, limit, device))
        scheduled = {row[0]: row[1] for row in self._sound.only("device", listed, (TEXT,))}
        names = [*scheduled]
        heads = connection.execute(
            select(h.device, h.lane, h.shard, h.phase)
            .where(h.outbox == outbox, h.device.in_(names))
            .order_by(h.lane)
        )
        phases: dict[str, list[HeadPhase]] = {}
        for name, _, _, phase in self._sound.only("head", heads, HEAD_KINDS[:4], has_phase):
            phases.setdefault(name, []).append(PHASES[phase])
        known = connection.execute(
            select(d.device, d.seen_at, d.away).where(d.outbox == outbox, d.device.in_(names))
        ).all()
        seen = {name: (at, away) for name, at, away in self._seen(known)}
        p = tables.pause.c
        paused = set(
            connection.execute(select(p.device).where(p.outbox == outbox, p.device.in_(names))).scalars()
        )
        shards = _shards(connection, outbox)
        statuses = []
        for name in names:
            doing = tuple(phases.get(name, ()))
            waiting = min(WAITING_MAX, scheduled[name] + doing.count(HeadPhase.OUT))
            seen_at, away = seen.get(name, (None, False))
            shard = queue.shard_of(name, shards)
            statuses.append(DeviceStatus(outbox, name, shard, doing, waiting, seen_at, away, name in paused))
        return statuses

    async def rollouts(
        self, outbox: str, *, after: int = 0, limit: int = 100, newest: bool = False
    ) -> list[Rollout]:
        r = tables.rollout.c
        listed = select(text(ROLLOUT)).select_from(tables.rollout).where(r.outbox == outbox)
        if after or not newest:
            listed = listed.where(r.id < after if newest else r.id > after)
        listed = listed.order_by(r.id.desc() if newest else r.id).limit(limit)
        rows = await self._read(lambda connection: connection.execute(listed).all())
        return [to_rollout(row) for row in self._sound.only("rollout", rows, ROLLOUT_KINDS)]

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

    async def expire(self, outbox: str, before: float, limit: int, *, archive: bool = False) -> int:
        def expire(connection: Connection) -> int:
            c, kept = tables.command.c, tables.archive.c
            old = (
                select(c.id)
                .where(c.outbox == outbox, c.closed_at.is_not(None), c.closed_at < before, _all_told())
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

        return await self._change(expire)

    async def close(self) -> None:
        await self._listener.close()
        for thread in (self._writer, self._reader):
            await asyncio.to_thread(thread.shutdown)
        await asyncio.to_thread(self._engine.dispose)
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
        # SQLite keeps whatever bytes another program gave it for text; from now on they may be read.
        self._lenient |= engines.UNREADABLE in str(error)
        return engines.named(error, self._url, committing=committing)

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        if self._lenient:
            engines.read_anything(connection)
        return connection

    async def _read(self, query: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._look, query)

    def _look(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._connect() as connection:
                return query(connection)
        except DBAPIError as error:
            self._failures += 1
            if engines.lacks_tables(error):
                raise ConfigError(
                    f"{engines.shown(self._url)}: the outbox's tables can't be read"
                    f" ({str(error.orig).strip()}): {MAKE}; and let this user read them"
                ) from error
            raise self._named(error) from error


class _Lacks(NamedTuple):
    """The things that a database lacks: ``tables``, ``columns`` of those that stand, as TABLE.COLUMN, and the
    ``migrations`` by which those that stand are changed."""

    tables: list[str]
    columns: list[str]
    migrations: list[int]

    @property
    def named(self) -> list[str]:
        """The names of all tables and columns that are missing."""
        return [*self.tables, *self.columns]


def _lacks(connection: Connection) -> _Lacks:
    inspector = inspect(connection)
    standing = {*inspector.get_table_names()}
    columns: list[str] = []
    migrations = {tables.RENAMING} if tables.ROLLOUT_BEFORE in standing else set[int]()
    for name, table in tables.metadata.tables.items():
        added = [column for column in table.c if "migration" in column.info]
        if name not in standing or not added:
            continue
        there = {column["name"] for column in inspector.get_columns(name)}
        for column in added:
            if column.name not in there:
                columns.append(f"{name}.{column.name}")
                migrations.add(column.info["migration"])
    absent = [name for name in tables.metadata.tables if name not in standing]
    return _Lacks(absent, columns, sorted(migrations))


def _shards(connection: Connection, outbox: str) -> int:
    counted = select(func.count()).select_from(tables.shard).where(tables.shard.c.outbox == outbox)
    return int(connection.execute(counted).scalar_one())


def _scheduled(outbox: str, after: str, limit: int, device: str) -> Select[tuple[str, int]]:
    """Devices in order, each with how many of its commands are scheduled. One statement for all of them: one
    for each would be thousands for a page that looks for a few among many."""
    h, d, c = tables.head.c, tables.device.c, tables.command.c
    named = [
        select(t.device).where(
            t.outbox == outbox, t.device > after, *([t.device == device] if device else [])
        )
        for t in (h, d)
    ]
    both = named[0].union(named[1]).subquery()
    listed = select(both.c.device).order_by(both.c.device).limit(limit).subquery()
    # With the lane SQLite takes the index of what is scheduled.
    waits = text("state = 'scheduled' AND lane >= 0")
    some = select(c.id).where(c.outbox == outbox, c.device == listed.c.device, waits).limit(WAITING_MAX)
    counted = select(func.count()).select_from(some.correlate(listed).subquery()).correlate(listed)
    return select(listed.c.device, counted.scalar_subquery()).order_by(listed.c.device)


def _all_told() -> ColumnElement[bool]:
    """Of a command: nobody has yet to hear of its end."""
    c, b = tables.command.c, tables.brief.c
    return c.untold.is_(None) & ~select(b.command).where(b.command == c.id).exists()


class TransactionEnded(Exception):
    """The business has ended the transaction of a turn when it was told of ``command``."""

    def __init__(self, command: int) -> None:
        super().__init__(command)
        self.command = command


def _told(connection: Connection, closed: Sequence[StoredCommand], on_result: OnResult) -> bool:
    """Call the business for commands, all or none of them. Raises TransactionEnded if that took the turn
    along."""
    each = closed[0]
    try:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            for each in closed:
                run_user_code(on_result, session, each)
                session.flush()
                if not engines.in_transaction(connection):
                    raise TransactionEnded(each.id)
            session.commit()
    except Exception as error:
        if connection.invalidated:  # not the business: the connection was lost under it
            raise Unavailable(
                f"the connection was lost while on_result ran: {type(error).__name__}"
            ) from error
        # Its text and its variables may hold people's data: only what it is, and where.
        kind, place = kind_and_place(error)
        log.warning("on_result failed and will be called again", command=each.id, error=kind, at=place)
        if not engines.in_transaction(connection):
            raise TransactionEnded(each.id) from error
        return False
    return True


def _fenced(outbox: str, shard: int, standing: int) -> Fenced:
    return Fenced(f"shard {shard} of outbox {outbox!r}: epoch {standing} stands; another owns it", standing)
