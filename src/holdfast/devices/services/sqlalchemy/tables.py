"""The outbox's tables. All names begin with ``holdfast_outbox_``, for they live among the business's own.

``metadata`` may be added to the ``target_metadata`` of Alembic; ``migrations/`` has the same as plain SQL.
What has come since the first migration names its own in ``info``. Times are seconds since 1970.
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
"""What the table of rollouts was called before the migration ``RENAMING``."""


def _index(name: str, *columns: object, where: str, info: dict[str, int] | None = None) -> Index:
    """A partial index: it holds, and costs, only what is waited for."""
    given: Any = columns
    return Index(f"{PREFIX}{name}", *given, sqlite_where=text(where), postgresql_where=text(where), info=info)


def _columns() -> list[Column[Any]]:
    """Return the columns of a command, standing or archived, without its id."""
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
    # How often the business couldn't be told that it is closed; NULL: told, or open.
    Column("untold", Integer),
    sqlite_autoincrement=True,  # an answer to a command that was dropped must never fit a new one
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

Index(f"{PREFIX}brief_shard", brief.c.outbox, brief.c.shard)

_index(
    "command_next",
    command.c.outbox,
    command.c.device,
    command.c.lane,
    command.c.priority.desc(),
    command.c.id,
    where="state = 'scheduled'",
)
_index(
    "command_supersede",
    command.c.outbox,
    command.c.device,
    command.c.supersede_key,
    where="state = 'scheduled' AND supersede_key IS NOT NULL",
)
_index(
    "command_expiry",
    command.c.outbox,
    command.c.expires_at,
    where="state = 'scheduled' AND expires_at IS NOT NULL",
)
_index("command_rollout", command.c.rollout, where="state = 'scheduled' AND rollout IS NOT NULL")
_index("command_untold", command.c.outbox, command.c.untold, where="untold IS NOT NULL")
_index("command_closed", command.c.outbox, command.c.closed_at, where="closed_at IS NOT NULL")
Index(
    f"{PREFIX}command_dedupe",
    command.c.outbox,
    command.c.device,
    command.c.dedupe_key,
    unique=True,
    sqlite_where=text("dedupe_key IS NOT NULL"),
    postgresql_where=text("dedupe_key IS NOT NULL"),
)
# The outbox is never first in these: SQLite would take them for as good wherever an outbox is looked through.
Index(f"{PREFIX}command_device", command.c.device, command.c.outbox, command.c.id, info=SECOND)
_index(
    "command_key",
    command.c.supersede_key,
    command.c.outbox,
    command.c.device,
    command.c.id,
    where="supersede_key IS NOT NULL",
    info=SECOND,
)
_index(
    "command_failed",
    command.c.state,
    command.c.outbox,
    command.c.id,
    where="state IN ('failed', 'expired')",
    info=SECOND,
)

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

_index("head_out", head.c.outbox, head.c.shard, head.c.due, where="phase = 'out'")
_index("head_due", head.c.outbox, head.c.shard, head.c.due, where="phase IN ('waiting', 'held')")

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

Index(f"{PREFIX}arrival_shard", arrival.c.outbox, arrival.c.shard)

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
    # What programs in other languages need to know of an outbox to add commands.
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
    # All of the device that are older than this command, or those with the key.
    Column("below", BigInteger, nullable=False),
    # Only this one, if not 0.
    Column("command", BigInteger, nullable=False, server_default="0"),
    info=SECOND,
)

Index(f"{PREFIX}cancel_shard", cancel.c.outbox, cancel.c.shard, info=SECOND)


@event.listens_for(metadata, "after_create")
def _complete(_: object, connection: Connection, **__: object) -> None:
    """Add what is no table: indexes of tables that stood already, and the way to add commands in SQL."""
    for step in steps(2, connection):
        connection.execute(step)
