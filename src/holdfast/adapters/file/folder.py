"""Folders whose names outlast a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(path: Path, *, durable: bool) -> None:
    """Make a folder and those above it, unless they are there. ``durable``: the names of new ones are on the
    disk."""
    if path.is_dir():
        return
    make_folder(path.parent, durable=durable)
    path.mkdir(exist_ok=True)
    if durable:
        sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Return once the disk has the names in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
