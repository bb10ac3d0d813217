"""Calls ``on_result`` for closed commands, in the transaction of the turn that closes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, func, select, text, update
from sqlalchemy.orm import Session

from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules.device_queue import StoredCommand
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.records import to_command
from holdfast.devices.services.sqlalchemy.statements import COLUMNS
from holdfast.errors import Unavailable
from holdfast.extend import get_logger
from holdfast.extend.tools import kind_and_place, run_user_code

REPORT_MAX = 200
"""Closed commands that a sweep reports again, at most."""

log = get_logger(__name__)


class TransactionEnded(Exception):
    """The transaction of a turn was ended by ``on_result`` for ``command``."""

    def __init__(self, command: int) -> None:
        super().__init__(command)
        self.command = command


def report(
    connection: Connection, closed: Sequence[StoredCommand], on_result: OnResult, unfit: Collection[int]
) -> set[int]:
    """Call ``on_result`` for commands, and return the ids of those for which it failed; a sweep reports these
    again. It is called command by command only if one fails, and never for commands in ``unfit``."""
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
    """Call ``on_result`` again for commands for which it failed before."""
    c = tables.command.c
    unreported = (
        select(text(COLUMNS))
        .select_from(tables.command)
        .where(c.outbox == outbox, c.shard.in_(shards), text("untold IS NOT NULL"))
        .order_by(c.untold)
        .limit(REPORT_MAX)
    )
    closed = [to_command(row) for row in connection.execute(unreported)]
    failed = report(connection, closed, on_result, unfit) if on_result else set()
    reported = [each.id for each in closed if each.id not in failed]
    if reported:
        connection.execute(update(tables.command).where(c.id.in_(reported)).values(untold=None))


def fully_reported() -> ColumnElement[bool]:
    """Return the condition that ``on_result`` was called for a command and its brief was sent."""
    c, b = tables.command.c, tables.brief.c
    return c.untold.is_(None) & ~select(b.command).where(b.command == c.id).exists()


def _reported(connection: Connection, closed: Sequence[StoredCommand], on_result: OnResult) -> bool:
    """Call ``on_result`` for commands; return whether it succeeded for all. Raises TransactionEnded if it
    ended the turn's transaction."""
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
        if connection.invalidated:  # the connection was lost; on_result isn't to blame
            raise Unavailable(
                f"the connection was lost while on_result ran: {type(error).__name__}"
            ) from error
        kind, place = kind_and_place(error)  # the error's text may hold people's data
        log.warning("on_result failed", command=each.id, error=kind, at=place)
        if not engines.in_transaction(connection):
            raise TransactionEnded(each.id) from error
        return False
    return True
