"""A lock that lets processes write one after another, without SQLite's sleeping retries.

Two POSIX record locks on a file beside the database. A writer waits for the *turn*, then for the *write*,
then passes the turn on: a process that wants to write again queues behind the one that waits already. The
kernel wakes a waiter at once, and frees the locks of a process that dies.

It doesn't free the locks of a *stopped* process (SIGSTOP, Ctrl-Z), which would halt every node of the host,
with their renewals. So a waiter that has waited too long finds the holder, and kills it if it is stopped.
That is safe: SQLite drops an unfinished transaction, every lock holder runs on this host, and the other nodes
replace a killed one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import time
from pathlib import Path

import psutil

from holdfast.system.files import OWNER, restrict
from holdfast.system.log import get_logger

log = get_logger(__name__)

WRITE, TURN = 0, 1
"""The byte of the file for each lock."""

RECHECK_S = 0.01


class WriteLock:
    """Held by one process of the host at a time. One thread acquires and releases; any may ask.

    Make one for each file and process: closing a second one would drop the locks of the first.
    """

    def __init__(self, path: Path, mode: int = OWNER.file) -> None:
        self.path = path
        restrict(path, mode)  # a lock that others may take stops all who write
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._waiting: tuple[int, float] | None = None

    def acquire(self) -> None:
        """Wait without a time limit until this process may write."""
        self._wait_for(TURN)
        self._wait_for(WRITE)
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, TURN)

    def release(self) -> None:
        """Let the next process write."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, WRITE)

    def waited_s(self) -> float:
        """Return how many seconds the present wait has lasted; 0 when nothing waits."""
        waiting = self._waiting
        return time.monotonic() - waiting[1] if waiting else 0.0

    def holder(self) -> psutil.Process | None:
        """Return the process that the present wait is for, if it can be seen from here."""
        waiting = self._waiting
        pid = _holder(self._fd, waiting[0]) if waiting else 0
        try:
            return psutil.Process(pid) if pid > 0 else None
        except psutil.NoSuchProcess:
            return None

    def break_stopped(self) -> None:
        """Kill the process that the present wait is for, if it is stopped and still holds the lock."""
        holder = self.holder()
        if holder is None:
            return
        try:
            if holder.status() != psutil.STATUS_STOPPED or self.holder() != holder:
                return
            holder.kill()
        except psutil.NoSuchProcess:
            return
        except psutil.AccessDenied:
            log.warning("cannot kill stopped process", pid=holder.pid, lock=str(self.path))
            return
        log.warning(
            "stopped process killed",
            pid=holder.pid,
            lock=str(self.path),
            reason="it held the database's write lock; its unfinished transaction is undone",
        )

    def close(self) -> None:
        """Drop the locks of this process."""
        os.close(self._fd)

    def _wait_for(self, byte: int) -> None:
        self._waiting = (byte, time.monotonic())
        try:
            while not self._try_for(byte):
                time.sleep(RECHECK_S)
        finally:
            self._waiting = None

    def _try_for(self, byte: int) -> bool:
        """Wait for one lock; False if the kernel mistakes the wait for a deadlock.

        It takes all threads of a process for one, so the waits for two databases can look like that."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            return False
        return True


def _holder(fd: int, byte: int) -> int:
    """Return the pid of the process that holds this lock; 0 if none does."""
    if sys.platform == "darwin":  # off_t start, len; pid_t pid; short type, whence
        asked = struct.pack("qqihh", byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = struct.unpack("qqihh", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    else:  # short type, whence; off_t start, len; pid_t pid
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)
