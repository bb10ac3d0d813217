"""The address of PostgreSQL, from a URL. Nothing is looked up, and the server isn't asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import ConfigError
from holdfast.registration.urls import shown

SCHEMA = "holdfast"
CONNECT_TIMEOUT_S = 5

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of PostgreSQL, and what Holdfast uses there. ``str`` returns the URL without the password.

    Attributes:
        conninfo: for libpq, with the password.
        listen: for libpq, where this process listens to notifications; "" where it doesn't.
        schema: holds all tables.
        prepares: whether statements may be prepared by name.
    """

    conninfo: str = field(repr=False)
    listen: str = field(repr=False)
    schema: str
    prepares: bool
    text: str

    def __str__(self) -> str:
        return self.text


def parse(url: str) -> PostgresAddress:
    """Read a URL such as ``postgresql://user@host,other/db?sslmode=verify-full``: libpq's own, with its
    parameters and these:

    * ``schema``: the schema that holds all tables (``holdfast``);
    * ``pooled=yes``: connections go through a pooler, such as PgBouncer, that gives each transaction another
      connection of the server. Then no statement is prepared, and no notification is received;
    * ``listen=HOST:PORT``: where to listen to notifications instead, past the pooler.

    Of several hosts the writable one is used, unless ``target_session_attrs`` names another kind.
    Raises ConfigError.
    """
    parts = urlsplit(url)
    own = {"schema": SCHEMA, "pooled": "no", "listen": ""}
    rest = []
    for name, value in parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True):
        if name in own:
            own[name] = value
        else:
            rest.append((name, value))
    if not _SCHEMA.fullmatch(own["schema"]):
        raise ConfigError(
            f"schema={own['schema']} isn't a name of a schema: use lower-case letters, digits and '_'"
        )
    if own["pooled"] not in ("yes", "no"):
        raise ConfigError(f"pooled={own['pooled']} must be yes or no")
    try:
        given = conninfo_to_dict(parts._replace(query=urlencode(rest, quote_via=quote)).geturl())
    except Error as error:
        raise ConfigError(f"it can't be read: {str(error).strip()}") from error
    chosen = {
        "target_session_attrs": "read-write",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "holdfast",
        **given,
    }
    return PostgresAddress(
        conninfo=make_conninfo("", **chosen),
        listen=_listening(own["listen"], own["pooled"] == "yes", chosen),
        schema=own["schema"],
        prepares=own["pooled"] == "no",
        text=shown(url),
    )


def _listening(listen: str, pooled: bool, chosen: dict[str, str | int | None]) -> str:
    if not listen:
        return "" if pooled else make_conninfo("", **chosen)
    place = _LISTEN.fullmatch(listen)
    if place is None:
        raise ConfigError(f"listen={listen} must be HOST:PORT, of the server itself")
    return make_conninfo("", **{**chosen, "host": place["host"].strip("[]"), "port": place["port"] or "5432"})
