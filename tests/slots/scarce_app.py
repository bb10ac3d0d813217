"""The rogue app, on a machine that has room for two processes of it."""

import errno
import itertools
import os

from rogue_app import app  # type: ignore[import-not-found]

__all__ = ["app"]

_fork, _forks = os.fork, itertools.count(1)


def fork() -> int:
    """As the system's, twice."""
    if next(_forks) > 2:
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    return _fork()


os.fork = fork
