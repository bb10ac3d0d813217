"""Ends a process with its parent, and sets its process group, signals and limits.

As a program it does so for another program: its arguments are the parent's process id, a socket whose other
end the parent has, then the program and its arguments.
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
"""Far above the node's score, so that a system without memory ends a slot and not the node."""


def die_with(parent: int, *, bound: bool = True) -> None:
    """On Linux, have the kernel end this process with ``parent``; with ``bound`` False, no longer."""
    if not LINUX:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL if bound else 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with(peer: socket.socket) -> None:
    """Except on Linux, end this process and its group when ``peer`` is closed. A thread watches, so that it
    works while a handler runs; half-closed isn't closed."""
    if LINUX:
        return
    threading.Thread(target=_watch, args=[peer.fileno()], name="holdfast-lifeline", daemon=True).start()


def adopt_orphans() -> None:
    """On Linux, become the parent of orphaned descendants, to reap them where init may not."""
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def lead_group() -> None:
    """Make this process the leader of its own process group: signals of the terminal don't reach it."""
    os.setpgid(0, 0)


def defer_signals() -> None:
    """Ignore SIGINT and SIGTERM in this process, which the node stops, but not in its descendants."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A function rather than SIG_IGN, which programs that are started here would inherit.
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_restore_signals)


def limit_memory(size_bytes: int) -> None:
    """Make allocations past ``size_bytes`` fail, and this process the first victim of the kernel without
    memory."""
    if size_bytes:
        limit_allocation(size_bytes)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ), encoding="ascii")


def limit_allocation(size_bytes: int) -> None:
    """On Linux, make allocations past ``size_bytes`` fail; 0 for no limit."""
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
    """Become the program where the kernel ends it with its parent; else start it and watch."""
    parent, fd, *command = sys.argv[1:]
    die_with(int(parent))
    if LINUX:
        os.close(int(fd))
        os.execv(command[0], command)  # noqa: S606 (the program that the caller named)
    end_with(socket.socket(fileno=int(fd)))
    sys.exit(subprocess.call(command))  # noqa: S603


if __name__ == "__main__":
    _main()
