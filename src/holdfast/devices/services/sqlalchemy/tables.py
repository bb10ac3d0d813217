"""The outbox's tables. All names begin with ``holdfast_outbox_``, because they are among the business's
tables.

``metadata`` may be added to the ``target_metadata`` of Alembic; ``migrations/`` has the same as plain SQL.
Later tables, columns and indexes have their migration in ``info``. Times are seconds since 1970.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)

from holdfast.devices.services.sqlalchemy.migrations import steps

PREFIX = "holdfast_outbox_"

metadata = MetaData()

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself in INTEGER columns only


SECOND, FOURTH = {"migration": 2}, {"migration": 4}

RENAMING = 3
ROLLOUT_BEFORE = f"{PREFIX}job"
"""Name of the table of rollouts before the migration ``RENAMING``."""


def _index(
    table: Table, name: str, columns: str, *, where: str = "", unique: bool = False, info: Any = None
) -> None:
    """Add an index over columns, ``-`` after one for descending order. With ``where`` it is partial: it has
    only the rows that are looked for."""
    given: Any = [
        table.c[each.rstrip("-")].desc() if each.endswith("-") else table.c[each] for each in columns.split()
    ]
    only: dict[str, Any] = (
        {f"{dialect}_where": text(where) for dialect in ("sqlite", "postgresql")} if where else {}
    )
    Index(f"{PREFIX}{name}", *given, unique=unique, info=info, **only)


def _columns() -> list[Column[Any]]:
    """Return the columns of a stored or archived command, without its id."""
    return [
        Column("outbox", String(64), nullable=False),
        Column("device", String(255), nullable=False),
        Column("lane", Integer, nullable=False, server_default="0"),
        Column("shard", Integer, nullable=False),
        Column("state", String(16), nullable=False, server_default="scheduled"),
        Column("body", LargeBinary, nullable=False),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("not_before", Double, nullable=False, server_default="0"),
        Column("expires_at", Double),
        Column("tries", Integer, nullable=False, server_default="0"),
        Column("spent", Integer, nullable=False, server_default="0"),
        Column("epoch", BigInteger, nullable=False, server_default="0"),
        Column("dedupe_key", String(255)),
        Column("supersede_key", String(255)),
        Column("trace_id", String(64), nullable=False, server_default=""),
        Column("rollout", BigInteger),
        Column("created_at", Double, nullable=False, server_default="0"),
        Column("published_at", Double),
        Column("closed_at", Double),
        Column("answer", LargeBinary),
        Column("reason", Text, nullable=False, server_default=""),
        Column("traceparent", String(64), nullable=False, server_default="", info=FOURTH),
    ]


command = Table(
    f"{PREFIX}command",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    *_columns(),
    # How often on_result failed for the closed command; NULL: it was called, or the command is open.
    Column("untold", Integer),
    sqlite_autoincrement=True,  # an answer to a deleted command must not fit a new one
)

archive = Table(
    f"{PREFIX}archive",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    *_columns(),
)

brief = Table(
    f"{PREFIX}brief",
    metadata,
    Column("command", _Id, primary_key=True, autoincrement=False),
    Column("outbox", String(64), nullable=False),
    Column("shard", Integer, nullable=False),
    Column("closed_at", Double, nullable=False),
)

_index(brief, "brief_shard", "outbox shard")
WAITS = "state = 'scheduled'"
_index(command, "command_next", "outbox device lane priority- id", where=WAITS)
_index(
    command,
    "command_supersede",
    "outbox device supersede_key",
    where=f"{WAITS} AND supersede_key IS NOT NULL",
)
_index(command, "command_expiry", "outbox expires_at", where=f"{WAITS} AND expires_at IS NOT NULL")
_index(command, "command_rollout", "rollout", where=f"{WAITS} AND rollout IS NOT NULL")
_index(command, "command_untold", "outbox untold", where="untold IS NOT NULL")
_index(command, "command_closed", "outbox closed_at", where="closed_at IS NOT NULL")
_index(command, "command_dedupe", "outbox device dedupe_key", where="dedupe_key IS NOT NULL", unique=True)
# The outbox is never first in these, because SQLite would use them for lists of an outbox.
_index(command, "command_device", "device outbox id", info=SECOND)
_index(
    command, "command_key", "supersede_key outbox device id", where="supersede_key IS NOT NULL", info=SECOND
)
_index(command, "command_failed", "state outbox id", where="state IN ('failed', 'expired')", info=SECOND)

head = Table(
    f"{PREFIX}head",
    metadata,
    Column("outbox", String(64), primary_key=True),
    Column("device", String(255), primary_key=True),
    Column("lane", Integer, primary_key=True, autoincrement=False),
    Column("shard", Integer, nullable=False),
    Column("phase", String(8), nullable=False),
    Column("command", BigInteger, nullable=False, server_default="0"),
    Column("due", Double),
    sqlite_with_rowid=False,
)

_index(head, "head_out", "outbox shard due", where="phase = 'out'")
_index(head, "head_due", "outbox shard due", where="phase IN ('waiting', 'held')")

arrival = Table(
    f"{PREFIX}arrival",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("outbox", String(64), nullable=False),
    Column("shard", Integer, nullable=False),
    Column("device", String(255), nullable=False),
    Column("lane", Integer, nullable=False, server_default="0"),
    Column("command", BigInteger, nullable=False, server_default="0"),
    Column("supersede_key", String(255)),
)

_index(arrival, "arrival_shard", "outbox shard")

shard = Table(
    f"{PREFIX}shard",
    metadata,
    Column("outbox", String(64), primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("member", String(64), nullable=False, server_default=""),
)

device = Table(
    f"{PREFIX}device",
    metadata,
    Column("outbox", String(64), primary_key=True),
    Column("device", String(255), primary_key=True),
    Column("seen_at", Double),
    Column("away", Boolean, nullable=False),
)

rollout = Table(
    f"{PREFIX}rollout",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("outbox", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("total", Integer, nullable=False),
    Column("rate", Double),
    Column("abort_share", Double, nullable=False),
    Column("done", Integer, nullable=False, server_default="0"),
    Column("failed", Integer, nullable=False, server_default="0"),
    Column("aborted", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Double, nullable=False),
    sqlite_autoincrement=True,
)

cursor = Table(
    f"{PREFIX}cursor",
    metadata,
    Column("outbox", String(64), primary_key=True),
    Column("source", String(64), primary_key=True),
    Column("cursor", Text, nullable=False),
)

setting = Table(
    f"{PREFIX}setting",
    metadata,
    # Settings for programs in other languages.
    Column("outbox", String(64), primary_key=True),
    Column("lanes", Integer, nullable=False),
    Column("expires_in_s", Double),
    Column("max_body", Integer, nullable=False),
    info=SECOND,
)

pause = Table(
    f"{PREFIX}pause",
    metadata,
    Column("outbox", String(64), primary_key=True),
    # Empty for all devices of the outbox.
    Column("device", String(255), primary_key=True),
    Column("paused_at", Double, nullable=False),
    info=SECOND,
)

cancel = Table(
    f"{PREFIX}cancel",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("outbox", String(64), nullable=False),
    Column("shard", Integer, nullable=False),
    Column("device", String(255), nullable=False),
    Column("supersede_key", String(255)),
    # Commands of the device with lower ids, or only the ones with the key.
    Column("below", BigInteger, nullable=False),
    # Only this one, if not 0.
    Column("command", BigInteger, nullable=False, server_default="0"),
    info=SECOND,
)

_index(cancel, "cancel_shard", "outbox shard", info=SECOND)


@event.listens_for(metadata, "after_create")
def _complete(_: object, connection: Connection, **__: object) -> None:
    """Add indexes of existing tables, and the functions that add commands in SQL."""
    for step in steps(2, connection):
        connection.execute(step)
