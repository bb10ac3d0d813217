"""The type of the file system that a path lies on. SQLite's log needs memory that all its processes share."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import UnsupportedStore

NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|afpfs|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|ocfs2|gfs2|ncpfs|davfs|webdav"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|rclone|davfs2?|juicefs|gcsfuse|blobfuse2?|cephfs)"
)


def refuse_network(path: Path) -> None:
    """Raise UnsupportedStore if ``path`` lies on a network file system."""
    kind = file_system(path.resolve(), _linux() if sys.platform == "linux" else _macos())
    if NETWORK.fullmatch(kind):
        raise UnsupportedStore(
            f"{path} lies on a network file system ({kind}), where processes can't share the database safely;"
            " put it on a disk of this host, or name a server for queue, coordinator and state"
        )


def file_system(path: Path, mounts: Iterator[tuple[str, str]]) -> str:
    """Return the type of the file system that ``path`` lies on, given (mount point, type) in order of
    mounting."""
    best, found = -1, ""
    for point, kind in mounts:
        if path.is_relative_to(point) and len(Path(point).parts) >= best:
            best, found = len(Path(point).parts), kind
    return found


def parse_linux(text: str) -> Iterator[tuple[str, str]]:
    """Mounts of a ``/proc/self/mountinfo``."""
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split()[4])
        yield point, rest.split()[0]


def parse_macos(text: str) -> Iterator[tuple[str, str]]:
    """Mounts as ``mount`` prints them."""
    for line in text.splitlines():
        if found := re.fullmatch(r".+? on (/.*) \(([^,)]+).*\)", line):
            yield found[1], found[2]


def _linux() -> Iterator[tuple[str, str]]:
    try:
        return parse_linux(Path("/proc/self/mountinfo").read_text(errors="replace"))
    except OSError:
        return iter(())


def _macos() -> Iterator[tuple[str, str]]:
    try:
        return parse_macos(subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return iter(())
