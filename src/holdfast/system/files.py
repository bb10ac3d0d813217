"""Files and folders for this user alone, unless the setting ``file_access`` says otherwise.

Files hold the contents of messages, and a user who may open a lock file may block all others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple


class Access(NamedTuple):
    """The modes of new files and folders, before the umask."""

    file: int
    folder: int


OWNER = Access(0o600, 0o700)
UMASK = Access(0o666, 0o777)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a full disk or quota."""

FileAccess = Literal["owner", "umask"]


def access_for(name: FileAccess) -> Access:
    """Return the modes that the setting ``file_access`` stands for."""
    return OWNER if name == "owner" else UMASK


def make_folder(path: Path, access: Access, *, durable: bool = False) -> None:
    """Make a folder, and missing ones above it. ``durable``: their names are written to disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(access.folder, exist_ok=True)
        if durable:
            sync_names(folder.parent)


def sync_names(folder: Path) -> None:
    """Write the names in a folder to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_file(path: Path, access: Access) -> None:
    """Make an empty file unless it exists, before a library makes it with other modes."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, access.file))


@contextlib.contextmanager
def whole_file(path: Path, access: Access, *, part: str, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file that gets its name, or replaces one, only when it is whole. Until then its name begins
    with ``part``. ``durable``: the file and its name are written to disk."""
    # A random name: in containers the process ids of different processes are the same.
    temporary = path.with_name(f"{part}{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, access.file)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_names(path.parent)


def for_writers(path: Path) -> Access:
    """Return modes for the users who may write the file ``path``; for its owner alone if it doesn't exist."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return OWNER
    who = [shift for shift in (6, 3, 0) if mode & (0o2 << shift)]
    return Access(sum(0o6 << shift for shift in who), sum(0o7 << shift for shift in who))


def restrict(path: Path, mode: int) -> None:
    """Remove permissions of ``path`` that ``mode`` doesn't have, if it belongs to this user: an earlier
    version made it with more."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o777 & ~mode:
            path.chmod(found.st_mode & mode)
