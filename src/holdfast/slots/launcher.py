"""The node's side of its fork server."""

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
    """A running fork server. ``heard`` gets its events, and None once, when it has ended. ``environment`` is
    put into that of its process, and so of the slots."""

    def __init__(
        self,
        start: wire.SlotSetup,
        heard: Callable[[wire.Event | None], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.heard = heard
        self._splitter = wire.Splitter()
        self.unsent: deque[tuple[bytes, list[int]]] = deque()
        """Frames that a server which is slow to read has no room for, each with its own copies of files."""
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failing:
            failing.callback(self._control.close)
            # Its output is the node's log: the node's own standard output is for programs to read.
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
        """Fork a slot that gets copies of ``fds``, as ``wire.Spawn`` has them."""
        self._send(wire.Spawn(name), fds)

    def signal(self, name: str, number: signal.Signals, *, group: bool = False) -> None:
        """Signal a slot, or all of its group. Does nothing for one that has ended."""
        self._send(wire.Signal(name, number, group))

    def lease(self, name: str, seconds: float | None) -> None:
        """Have a slot killed so many seconds from now, even if this process doesn't run then; None: never."""
        self._send(wire.KillAfter(name, seconds))

    def abort(self) -> None:
        """End a server that is stuck in an import; its stack goes to the log."""
        self.process.send_signal(DUMP_SIGNAL)

    async def close(self) -> None:
        """End the server, and with it every slot that still lives."""
        self._hang_up()
        await self._ended()

    def _send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        if not self._open:
            return  # every slot is gone, or will be in a moment
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
        """Send what there is room for; return what is left to be sent. Of a server that has ended it is
        nothing."""
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
            self.heard(_decode(payload))
        if not data:
            self._hang_up()
            self._ending = asyncio.ensure_future(self._ended())
            self.heard(None)

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
