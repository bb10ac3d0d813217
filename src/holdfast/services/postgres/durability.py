"""Checks durability: what the server's settings put at risk, and what to set instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.ports.state import Risk
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.schema import OLDEST_SERVER

SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name IN (
    'server_version_num', 'server_encoding', 'fsync', 'full_page_writes', 'synchronous_commit',
    'synchronous_standby_names')"""

# Users without the rights of pg_monitor see the rows, but not their contents.
STANDBYS = "SELECT sync_state FROM pg_stat_replication"

RIGHTS = """
SELECT pg_is_in_recovery(), has_schema_privilege(current_user, oid, 'USAGE'),
    has_schema_privilege(current_user, oid, 'CREATE')
FROM (SELECT (SELECT oid FROM pg_namespace WHERE nspname = %s) AS oid) s"""

LACKING = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND c.relname <> 'migrations'
AND NOT (has_table_privilege(current_user, c.oid, 'SELECT')
    AND has_table_privilege(current_user, c.oid, 'INSERT')
    AND has_table_privilege(current_user, c.oid, 'UPDATE')
    AND has_table_privilege(current_user, c.oid, 'DELETE'))
ORDER BY c.relname"""

FLUSHED = ("on", "remote_write", "remote_apply", "local")
"""Values of synchronous_commit with which a commit waits for the server's own disk."""


class ServerStatus(NamedTuple):
    """A server's description of itself. ``standbys`` holds the ``sync_state`` of each, None where this user
    may not see it. ``creates`` is None without a schema."""

    settings: Mapping[str, str]
    standbys: list[str | None]
    is_standby: bool
    uses: bool | None
    creates: bool | None
    lacking: list[str]


async def check(database: PostgresDatabase) -> list[Risk]:
    """Return the risks to what the server keeps. Nothing is changed, but that the tables are made if there
    are none. Raises Unavailable, and ConfigError for a user that may not use them."""
    schema = database.address.schema

    async def look(connection: Connection) -> ServerStatus:
        async def rows(query: str, *parameters: Any) -> list[Any]:
            return await (await connection.execute(query.encode(), parameters or None)).fetchall()

        [(is_standby, uses, creates)] = await rows(RIGHTS, schema)
        return ServerStatus(
            dict(await rows(SETTINGS)),
            [state for (state,) in await rows(STANDBYS)],
            is_standby,
            uses,
            creates,
            [name for (name,) in await rows(LACKING, schema)],
        )

    return judge(await database.lane("queue").read(look), schema)


def judge(standing: ServerStatus, schema: str) -> list[Risk]:
    """Return the risks in a server's description of itself."""
    return [
        *_judge_server(standing),
        *_judge_disk(standing.settings),
        *_judge_standbys(standing),
        *_judge_rights(standing, schema),
    ]


def _judge_server(standing: ServerStatus) -> list[Risk]:
    settings, risks = standing.settings, []
    version = int(settings.get("server_version_num", 0)) // 10_000
    if version < OLDEST_SERVER:
        text = f"PostgreSQL {version} lacks what Holdfast needs"
        risks.append(Risk("", "failed", text, f"run PostgreSQL {OLDEST_SERVER} or newer"))
    if settings.get("server_encoding") != "UTF8":
        text = f"the database's encoding is {settings.get('server_encoding')}: it can't hold every key"
        risks.append(Risk("", "failed", text, "create a database with ENCODING 'UTF8', and name that one"))
    if standing.is_standby:
        text = "it is a standby and takes no writes"
        risks.append(Risk("", "failed", text, "name the primary, or all hosts of the cluster"))
    return risks


def _judge_disk(settings: Mapping[str, str]) -> list[Risk]:
    risks = []
    if settings.get("fsync") != "on":
        text = (
            "fsync is off: a crash of its machine can destroy the whole database, and with it every message,"
            " checkpoint and result"
        )
        risks.append(Risk("", "failed", text, "set fsync = on"))
    if settings.get("full_page_writes") != "on":
        text = "full_page_writes is off: a crash of its machine can leave damaged tables behind"
        fix = "set full_page_writes = on, unless the file system never writes a part of a page"
        risks.append(Risk("", "warning", text, fix))
    if settings.get("synchronous_commit") not in FLUSHED:
        text = (
            f"synchronous_commit is {settings.get('synchronous_commit')}: a crash loses the commits of up to"
            " a second, and the messages of those commits are deleted"
        )
        fix = "set synchronous_commit = on for this user (ALTER ROLE ... SET synchronous_commit = on)"
        risks.append(Risk("", "failed", text, fix))
    return risks


def _judge_standbys(standing: ServerStatus) -> list[Risk]:
    names = standing.settings.get("synchronous_standby_names", "")
    waits = standing.settings.get("synchronous_commit") not in ("local", "off")
    forgets = (
        "a fail-over forgets the messages, commits and results that the standby had not yet received, though"
        " they were acknowledged; streams then begin again at older checkpoints"
    )
    if not standing.standbys and not names:
        text = "it has no standby: losing its disk loses every message and checkpoint, and nothing takes over"
        return [Risk("", "warning", text, "add a standby, or keep an archive of its log (WAL) elsewhere")]
    fix = "set synchronous_standby_names, and synchronous_commit = on"
    if not names:
        return [Risk("", "warning", f"its standbys are asynchronous: {forgets}", fix)]
    if not waits:
        level = standing.settings.get("synchronous_commit")
        return [
            Risk("", "warning", f"synchronous_commit is {level}, which waits for no standby: {forgets}", fix)
        ]
    known = [state for state in standing.standbys if state is not None]
    if len(known) == len(standing.standbys) and not {"sync", "quorum"}.intersection(known):
        text = (
            f"no synchronous standby follows (synchronous_standby_names is {names}): every commit waits until"
            " one does"
        )
        return [Risk("", "warning", text, "start that standby, or take its name out")]
    return []


def _judge_rights(standing: ServerStatus, schema: str) -> list[Risk]:
    fix = "grant what `holdfast doctor --grants` prints"
    if standing.uses is False or standing.lacking:
        what = f"the tables {', '.join(standing.lacking)}" if standing.lacking else "anything"
        return [Risk("", "failed", f"this user may not use {what} in the schema {schema}", fix)]
    if standing.creates is False:
        text = f"this user may not change the schema {schema}: a newer Holdfast can't bring it up to date"
        return [Risk("", "warning", text, "run `holdfast migrate` as its owner before each upgrade")]
    return []
