"""The fork server's process: it imports the modules of slots, then forks, signals and reaps slots.

It runs no user code after the imports, so it answers at any time. It alone signals slots: only the parent
knows that a process id still means the same process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings

import msgspec

from holdfast.common.redaction import redact
from holdfast.slots import child, lifeline, task_child, wire

_decode = msgspec.msgpack.Decoder(wire.Order).decode

FDS_MAX = 4
ENDS_S = 2.0
"""Seconds in which the left processes of slots are killed at the end: they may start others meanwhile."""

CHECK_S = 1.0
"""The interval for checks of leases: a resumed machine wakes no timer early."""


def main(control_fd: int) -> None:
    """Serve the node at the other end of ``control_fd`` until it closes."""
    control = socket.socket(fileno=control_fd)
    start = msgspec.msgpack.decode(_receive(control)[0], type=wire.SlotSetup)
    # During imports it can't notice the end of its node. Later it does, and ends the slots' groups first.
    lifeline.die_with(start.node)
    faulthandler.register(child.DUMP_SIGNAL, chain=True)
    for module in start.preload:
        # A slot imports the module again, and reports the error.
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
    faulthandler.unregister(child.DUMP_SIGNAL)
    lifeline.die_with(start.node, bound=False)
    lifeline.adopt_orphans()
    SlotForker(control, start).serve()


class SlotForker:
    """Forks, signals and reaps."""

    def __init__(self, control: socket.socket, start: wire.SlotSetup) -> None:
        self._control = control
        self._start = start
        self._pids: dict[str, int] = {}
        self._leases: dict[str, float] = {}
        self._bell, self._ringer = socket.socketpair()

    def serve(self) -> None:
        """Serve the node until it closes the connection; then end all slots and their descendants."""
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # else the collector would touch, and so copy, every shared page
        while True:
            ready = select.select([self._control, self._bell], [], [], self._kill_lapsed())[0]
            if self._bell in ready:
                self._bell.recv(4096)
                self._reap()
            if self._control in ready and not self._serve_one():
                break
        signal.set_wakeup_fd(-1)
        for pid in self._pids.values():
            _signal_group(pid, signal.SIGKILL)
        self._end_descendants()

    def _end_descendants(self) -> None:
        """Kill processes that slots have left, such as daemons. On Linux such an orphan is a child of this
        process."""
        with contextlib.suppress(ChildProcessError):
            for pid in self._pids.values():
                os.waitpid(pid, 0)
            until = _now() + ENDS_S
            while _now() < until:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:  # one lives
                    _kill_descendants()
                    time.sleep(ENDS_S / 200)

    def _serve_one(self) -> bool:
        payload, fds = _receive(self._control)
        if not payload:
            return False
        match _decode(payload):
            case wire.Spawn(name):
                self._spawn(name, fds)
            case wire.Signal(name, number, group):
                pid = self._pids.get(name)
                if pid is not None:
                    (_signal_group if group else os.kill)(pid, number)
            case wire.KillAfter(name, seconds):
                self._leases.pop(name, None)
                if seconds is not None and name in self._pids:
                    self._leases[name] = _now() + seconds
        return True

    def _kill_lapsed(self) -> float | None:
        """Kill slots whose lease has ended; return the time until the next check."""
        if not self._leases:
            return None
        now = _now()
        for name in [name for name, until in self._leases.items() if until <= now]:
            del self._leases[name]
            _signal_group(self._pids[name], signal.SIGKILL)
        return min([CHECK_S, *(until - now for until in self._leases.values())])

    def _spawn(self, name: str, fds: list[int]) -> None:
        server = os.getpid()
        with warnings.catch_warnings():
            # A thread that an import started isn't a problem of the fork server.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError as error:  # no process can be forked now; the other slots go on
                sys.stderr.write(f"cannot fork slot {name}: {error}\n")
                for fd in fds:
                    os.close(fd)
                self._send(wire.Exited(name, os.EX_OSERR))
                return
        if pid == 0:
            self._become_slot(server, fds)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the slot does the same, so that it is set for both
        self._pids[name] = pid
        self._send(wire.Spawned(name, pid))

    def _become_slot(self, server: int, fds: list[int]) -> None:
        code = 1
        try:
            lifeline.lead_group()
            lifeline.die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for sock in (self._control, self._bell, self._ringer):
                sock.close()
            code = (task_child if self._start.tasks else child).main(fds, self._start)
        except ConnectionError:
            pass  # the node has ended
        except BaseException:  # noqa: BLE001 - nothing may return into the server's loop
            sys.stderr.write(redact(traceback.format_exc()))
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(code)

    def _reap(self) -> None:
        names = {pid: name for name, pid in self._pids.items()}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in names:  # else an orphan of a slot
                    _signal_group(pid, signal.SIGKILL)
                    del self._pids[names[pid]]
                    self._leases.pop(names[pid], None)
                    self._send(wire.Exited(names[pid], os.waitstatus_to_exitcode(status)))

    def _send(self, event: wire.Event) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(wire.frame(event))


def _now() -> float:
    """Return the monotonic time, including suspension where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _kill_descendants() -> None:
    import psutil  # noqa: PLC0415 - slots don't need it

    from holdfast.slots.descendants import family  # noqa: PLC0415

    for process in family(os.getpid())[1:]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return a frame's payload and descriptors; an empty payload at the end."""
    try:
        header, fds, _, _ = socket.recv_fds(control, wire.HEADER.size, FDS_MAX, socket.MSG_WAITALL)
    except ConnectionResetError:  # the node died before it read all events
        return b"", []
    for fd in fds:
        os.set_inheritable(fd, False)
    if len(header) < wire.HEADER.size:
        return b"", fds
    return control.recv(wire.HEADER.unpack(header)[0], socket.MSG_WAITALL), fds
