"""Translation of PostgreSQL's errors into Holdfast's."""

from __future__ import annotations

import psycopg

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    LoginRefused,
    OperationRefused,
    OutcomeUnknown,
    TakesNoWrites,
    Unavailable,
    UnsupportedStore,
)

STANDBY = "it is a standby, or read only: name the primary, or all hosts of the cluster"

_CLASSES: dict[str, tuple[type[HoldfastError], str]] = {
    "08": (Unavailable, "the connection failed"),
    "28": (
        LoginRefused,
        "it refuses this user: see user and password in the URL, and the server's pg_hba.conf",
    ),
    "40": (Unavailable, "another transaction was in the way"),
    "53": (Unavailable, "it is out of memory, disk or connections"),
    "55": (Unavailable, "something that the statement needs is locked"),
    "57": (Unavailable, "it is stopping, starting, or has ended the statement"),
    "58": (Unavailable, "its disk or system failed: look at its log"),
    "XX": (Unavailable, "it found its own data damaged, or has a fault: look at its log"),
}
_CODES: dict[str, tuple[type[HoldfastError], str]] = {
    "23505": (Unavailable, "another transaction was quicker"),
    "25006": (TakesNoWrites, STANDBY),
    "25P03": (Unavailable, "it has ended a transaction that this process had left open for too long"),
    "3D000": (ConfigError, "it has no such database: create it, or correct the URL"),
    "42501": (
        ConfigError,
        "this user may not do that: `holdfast doctor --grants` prints what the user needs",
    ),
    "3F000": (Unavailable, "the schema with Holdfast's tables is gone"),
    "42P01": (Unavailable, "a table of Holdfast is gone"),
    "42703": (UnsupportedStore, "a table of Holdfast has other columns: has another program changed it?"),
}
OVERTAKEN = ("23505", "40001", "40P01")
"""Codes of a conflict with another transaction: a repetition sees its result."""

LOCKED = "55P03"
"""Code of a lock that another transaction holds for longer than ``lock_timeout``."""

GONE = ("3F000", "42P01")
"""Codes after which the schema is checked, and created if it is missing, before the next call."""


def explain(what: str, error: psycopg.Error) -> HoldfastError:
    """Return the error for the caller of ``what``, of which nothing was done."""
    code = error.sqlstate or ""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if not code:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return _unconnected(what, text)
        return OperationRefused(f"{what}: {text}")
    kind, meaning = _CODES.get(code) or _CLASSES.get(code[:2]) or (OperationRefused, "it refuses")
    return kind(f"{what}: {meaning} ({code} {text})")


def _unconnected(what: str, text: str) -> HoldfastError:
    """Return the error for a failed connection. libpq gives no code for what the server answered."""
    for beginning, kind in (
        ("password authentication failed", LoginRefused),
        ("no password supplied", LoginRefused),
        ("no pg_hba.conf entry", LoginRefused),
        ("role ", LoginRefused),
        ("database ", ConfigError),
    ):
        ends = beginning.endswith(("failed", "supplied"))
        if f"FATAL:  {beginning}" in text or (ends and beginning in text):
            return kind(f"{what}: {text}")
    if "session is read-only" in text or "server is in hot standby mode" in text:
        return TakesNoWrites(f"{what}: {STANDBY} ({text})")
    return Unavailable(f"{what}: {text}")


def unknown(what: str, error: psycopg.Error) -> HoldfastError:
    """Return the error for the caller of ``what``, whose commit had been asked for when ``error`` came."""
    if not is_broken(error):
        return explain(what, error)
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return OutcomeUnknown(f"{what}: the connection was lost during the commit ({text})")


def is_broken(error: psycopg.Error) -> bool:
    """Return True if the connection may be broken: neither the server nor the driver has refused a
    statement."""
    refused_here = not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return not is_rolled_back(error) and not (error.sqlstate is None and refused_here)


def is_rolled_back(error: psycopg.Error) -> bool:
    """Return True if the server itself reported that the transaction failed, and the connection still
    works."""
    return error.sqlstate is not None and error.diag.severity_nonlocalized == "ERROR"
