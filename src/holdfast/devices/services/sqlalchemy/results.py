"""Reports the ends of commands to the business, in the transaction of the turn that closes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, func, select, text, update
from sqlalchemy.orm import Session

from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules.device_queue import StoredCommand
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.rows import COLUMNS, entry
from holdfast.errors import Unavailable
from holdfast.extend import get_logger
from holdfast.extend.tools import kind_and_place, run_user_code

REPORT_MAX = 200
"""Closed commands that a sweep reports again."""

log = get_logger(__name__)


class TransactionEnded(Exception):
    """The business has ended the transaction of a turn when ``command`` was reported to it."""

    def __init__(self, command: int) -> None:
        super().__init__(command)
        self.command = command


def report(
    connection: Connection, closed: Sequence[StoredCommand], on_result: OnResult, unfit: Collection[int]
) -> set[int]:
    """Call the business; return for which commands that failed: these a sweep reports again. They are
    reported one by one only if something fails, and those in ``unfit`` not at all."""
    failed = {each.id for each in closed if each.id in unfit}
    fit = [each for each in closed if each.id not in unfit]
    if fit and not _reported(connection, fit, on_result):
        failed |= {each.id for each in fit if len(fit) == 1 or not _reported(connection, [each], on_result)}
    if failed:
        c = tables.command.c
        again = update(tables.command).where(c.id.in_(failed)).values(untold=func.coalesce(c.untold, 0) + 1)
        connection.execute(again)
    return failed


def report_again(
    connection: Connection,
    outbox: str,
    shards: Sequence[int],
    on_result: OnResult | None,
    unfit: Collection[int],
) -> None:
    """Report commands that the business failed to take before."""
    c = tables.command.c
    unreported = (
        select(text(COLUMNS))
        .select_from(tables.command)
        .where(c.outbox == outbox, c.shard.in_(shards), text("untold IS NOT NULL"))
        .order_by(c.untold)
        .limit(REPORT_MAX)
    )
    closed = [entry(row) for row in connection.execute(unreported)]
    failed = report(connection, closed, on_result, unfit) if on_result else set()
    reported = [each.id for each in closed if each.id not in failed]
    if reported:
        connection.execute(update(tables.command).where(c.id.in_(reported)).values(untold=None))


def fully_reported() -> ColumnElement[bool]:
    """Return the condition that the end of a command is reported to the business and to the queue of
    briefs."""
    c, b = tables.command.c, tables.brief.c
    return c.untold.is_(None) & ~select(b.command).where(b.command == c.id).exists()


def _reported(connection: Connection, closed: Sequence[StoredCommand], on_result: OnResult) -> bool:
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
