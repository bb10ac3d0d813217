"""Ties a process to the life of its parent, and names its place among processes.

As a program it ties another one, and imports nothing else for that: its arguments are the parent's process
id, a socket whose other end the parent holds, then the program and its arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
OOM_SCORE_ADJ = 600
"""Far above the node's own, so that the system that runs out of memory ends a slot and not the node."""


def die_with(parent: int, *, bound: bool = True) -> None:
    """On Linux, have the kernel end this process when ``parent`` ends; or stop that with ``bound`` False."""
    if not LINUX:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL if bound else 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with(peer: socket.socket) -> None:
    """End this process and its group when ``peer`` is closed, where the kernel doesn't see to it.

    A thread, so that it works while a handler runs; half-closed is not closed.
    """
    if LINUX:
        return
    threading.Thread(target=_watch, args=[peer.fileno()], name="holdfast-lifeline", daemon=True).start()


def adopt_orphans() -> None:
    """On Linux, become the parent of descendants that lose theirs, to reap them where init may not."""
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def lead_group() -> None:
    """Make this process the leader of its own process group: signals for the terminal don't reach it."""
    os.setpgid(0, 0)


def defer_signals() -> None:
    """Leave it to the node when to stop: SIGINT and SIGTERM do nothing here, but as ever in descendants."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A function rather than SIG_IGN, which programs started from here would inherit.
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_restore_signals)


def limit_memory(size_bytes: int) -> None:
    """Make allocations past ``size_bytes`` fail, and this process the first to go where memory runs out."""
    if size_bytes:
        limit_allocation(size_bytes)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ), encoding="ascii")


def limit_allocation(size_bytes: int) -> None:
    """On Linux, make allocations past ``size_bytes`` fail; 0 for no limit. May be changed at any time."""
    if LINUX:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = size_bytes or hard
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _watch(peer: int) -> None:
    poll = select.poll()
    poll.register(peer, 0)
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _main() -> None:
    """Become the program where the kernel ends it with its parent; else stay and see to it."""
    parent, fd, *command = sys.argv[1:]
    die_with(int(parent))
    if LINUX:
        os.close(int(fd))
        os.execv(command[0], command)  # noqa: S606 (the program that the caller named)
    end_with(socket.socket(fileno=int(fd)))
    sys.exit(subprocess.call(command))  # noqa: S603


if __name__ == "__main__":
    _main()
