"""The fork server, as the node starts and calls it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.slots import wire
from holdfast.slots.child import DUMP_SIGNAL

_decode = msgspec.msgpack.Decoder(wire.Event).decode

PROGRAM = """\
import sys
control, sys.path[:], sys.argv[:] = int(sys.argv[1]), sys.argv[2:], ["holdfast-slot"]
from holdfast.slots.server import main
main(control)
"""

END_TIMEOUT_S = 5.0


class ForkServer:
    """A running fork server. ``on_event`` gets its events, and None when it has ended. ``environment`` is
    added to the environment of its process, and of the slots."""

    def __init__(
        self,
        start: wire.SlotSetup,
        on_event: Callable[[wire.Event | None], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.on_event = on_event
        self._splitter = wire.Splitter()
        self.unsent: deque[tuple[bytes, list[int]]] = deque()
        """Frames that a slow server has no room for, each with its own copies of descriptors."""
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failing:
            failing.callback(self._control.close)
            # Its output goes to the node's log: the node's standard output is for programs.
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
                [sys.executable, "-u", "-c", PROGRAM, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                env=os.environ | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
            )
            failing.pop_all()
        self._open = True
        self._send(start)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)

    def spawn(self, name: str, fds: Sequence[int]) -> None:
        """Fork a slot with copies of ``fds``, see ``wire.Spawn``."""
        self._send(wire.Spawn(name), fds)

    def signal(self, name: str, number: signal.Signals, *, group: bool = False) -> None:
        """Signal a slot, or its whole group, unless it has ended."""
        self._send(wire.Signal(name, number, group))

    def lease(self, name: str, seconds: float | None) -> None:
        """Have a slot killed after ``seconds``, even if this process doesn't run then; None for never."""
        self._send(wire.KillAfter(name, seconds))

    def abort(self) -> None:
        """End a server that hangs in an import; its stack goes to the log."""
        self.process.send_signal(DUMP_SIGNAL)

    async def close(self) -> None:
        """End the server, and every living slot."""
        self._hang_up()
        await self._ended()

    def _send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        if not self._open:
            return  # every slot has ended, or ends now
        frame = bytes(wire.frame(message))
        if not self.unsent:
            frame, fds = self._send_some(frame, fds)
        if frame:
            self.unsent.append((frame, [os.dup(fd) for fd in fds]))
            self._loop.add_writer(self._control, self._send_more)

    def _send_more(self) -> None:
        while self.unsent:
            frame, fds = self.unsent.popleft()
            rest, _ = self._send_some(frame, fds)
            if rest == frame:
                self.unsent.appendleft((frame, fds))
                return
            _close(fds)
            if rest:
                self.unsent.appendleft((rest, []))
        self._loop.remove_writer(self._control)

    def _send_some(self, frame: bytes, fds: Sequence[int]) -> tuple[bytes, Sequence[int]]:
        """Send as many bytes as fit; return the rest, which is empty if the server has ended."""
        try:
            sent = socket.send_fds(self._control, [frame], fds)
        except BlockingIOError:
            return frame, fds
        except (BrokenPipeError, ConnectionResetError):
            return b"", ()
        return frame[sent:], ()

    def _read(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        for _, payload in self._splitter.feed(data):
            self.on_event(_decode(payload))
        if not data:
            self._hang_up()
            self._ending = asyncio.ensure_future(self._ended())
            self.on_event(None)

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
            for _, fds in self.unsent:
                _close(fds)
            self.unsent.clear()
            self._control.close()

    async def _ended(self) -> None:
        def wait() -> None:
            try:
                self.process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

        await asyncio.to_thread(wait)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
