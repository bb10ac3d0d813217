"""Errors of SQLite and the file system as errors of Holdfast, naming the file and what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError, Damaged, HoldfastError, NoDatabase, Unavailable, UnsupportedStore


def missing(path: Path) -> HoldfastError:
    """Return the error for a database that isn't there. A process that only reads creates no file."""
    return NoDatabase(
        path, "run this where the nodes run, or name the database with --url; the first node makes it"
    )


def exists(path: Path) -> bool:
    """Return whether the file exists. Raises ConfigError if this user has no access to its directory."""
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(
            f"the database {path} can't be reached by this user: {error.strerror or error}; run this as a"
            " user with access, such as the user of the nodes, or name another file"
        ) from error


def unusable(path: Path, error: OSError) -> HoldfastError:
    """Return the error for a file that can't be made or written."""
    if error.errno == errno.ENOSPC:
        return Unavailable(f"{path}: the disk is full; make room")
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM):
        return Unavailable(f"{path} can't be opened at present: {error.strerror}")
    return ConfigError(
        f"the database {path} can't be made or written: {error.strerror or error};"
        " name a file in a directory that this user may write"
    )


def named(error: Exception, path: Path, *, opening: bool = False) -> Exception:
    """Return Holdfast's error for an error of SQLite; any other error as it is."""
    if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
        return Damaged(f"{path} holds a record that can't be read ({error}); restore a backup")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"{path} is locked by another program; close what else has it open for writing")
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(f"{path}: the disk is full; make room")
    if code == sqlite3.SQLITE_IOERR:
        return Unavailable(f"{path}: the disk failed ({error}); check the disk")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return UnsupportedStore(
            f"{path} isn't a sound SQLite database ({error}); restore a backup, or move it away to begin"
            " again"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        wrong = ConfigError if opening else Unavailable
        return wrong(
            f"{path} can't be opened for writing ({error}); check its directory's and its own permissions"
        )
    return error
