"""Files and folders that are made: for this user alone, unless told otherwise.

They hold what messages hold, and whoever may open a lock file may keep everybody else waiting.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal, NamedTuple


class Access(NamedTuple):
    """The modes that files and folders are made with; the umask takes from them."""

    file: int
    folder: int


OWNER = Access(0o600, 0o700)
UMASK = Access(0o666, 0o777)

FileAccess = Literal["owner", "umask"]


def access_for(name: FileAccess) -> Access:
    """What the setting ``file_access`` means."""
    return OWNER if name == "owner" else UMASK


def make_folder(path: Path, access: Access, *, durable: bool = False) -> None:
    """Make a folder, and those above it that are missing. ``durable``: the disk has their names then."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(access.folder, exist_ok=True)
        if durable:
            sync_names(folder.parent)


def sync_names(folder: Path) -> None:
    """Return once the disk has the names in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_file(path: Path, access: Access) -> None:
    """Make an empty file, where there is none: before somebody makes it who knows of no access."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, access.file))


def for_writers(path: Path) -> Access:
    """For whoever may write the file ``path``, and nobody who may only read it; for its owner, if it is not
    there yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return OWNER
    who = [shift for shift in (6, 3, 0) if mode & (0o2 << shift)]
    return Access(sum(0o6 << shift for shift in who), sum(0o7 << shift for shift in who))


def restrict(path: Path, mode: int) -> None:
    """Take from ``path`` what ``mode`` doesn't have, where an earlier version made it wider, and it is this
    user's."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o777 & ~mode:
            path.chmod(found.st_mode & mode)
