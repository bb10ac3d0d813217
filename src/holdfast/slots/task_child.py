"""The life of a slot's process for tasks: it takes attempts from its tray until the node ends it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import msgspec

from holdfast.common.rate import Limiter, Rate
from holdfast.common.redaction import redact
from holdfast.common.text import storable
from holdfast.ports.slots import Attempt, Progress, TaskWorker, Tried
from holdfast.slots import lifeline, wire
from holdfast.slots.child import READ_BYTES, NodeConnection, make_worker, set_up
from holdfast.slots.output import DROPPED
from holdfast.slots.surroundings import Surroundings
from holdfast.slots.thread import drive
from holdfast.slots.traced import provide_spans
from holdfast.system.process_memory import Resident

LOOK_SIGNAL = signal.SIGQUIT
"""Makes a slot for tasks write the stacks of all its threads, and go on."""

SOFT_SIGNAL = signal.SIGUSR1
"""Makes a slot for tasks interrupt its handler, if it was told to."""

AGAIN_S = 0.05

TRAY_BYTES = 1 << 18
"""The largest message of a tray."""

CALLS_MAX = 100
"""How many calls of a thread or task are told, the newest."""

STACKS_MAX = 20
"""How many threads and tasks are told of where an attempt is."""

CHARS_MAX = 32_000
"""How many characters are told of where an attempt is."""

NEWS = Rate(per_s=20, burst=20)
LINES = Rate(per_s=200, burst=500)
MIB = 1 << 20
# Of Linux and of others.
MAXRSS_BYTES = 1024 if lifeline.LINUX else 1

CHANGED = "a task changed the process that it shares with others; that is put back"
SPOILT = "a task spoilt the process that it shares with others; another process replaces it"
MEND = "close what it opens, and start a process of its own for what changes more than itself"

_decode_offer = msgspec.msgpack.Decoder(wire.Offer).decode
_decode_request = msgspec.msgpack.Decoder(wire.TaskRequest).decode


class TaskChildHost:
    """The worker's host in a process of its own: one attempt at a time.

    Attributes:
        at_hand: the number of the attempt that runs; -1 for none.
    """

    def __init__(self, line: NodeConnection) -> None:
        self.at_hand = -1
        self._line = line
        self._main = threading.main_thread().ident or 0
        self._news = Limiter(NEWS)
        self._lines = Limiter(LINES)
        self._dropped = 0
        self._sending = False
        self._interrupted = False
        self._provides_spans = False
        self._raise: Callable[[], None] = lambda: None

    def serve(self, worker: TaskWorker) -> None:
        """Let ``interrupt`` reach this worker."""
        self._raise = worker.raise_if_cancelled
        signal.signal(SOFT_SIGNAL, self._on_interrupt)

    def now(self) -> float:
        return time.monotonic()

    def progress(self, number: int, progress: Progress) -> None:
        if number != self.at_hand:
            return  # what an attempt left behind in a thread takes no other's turn
        if self._news.take("", 1, time.monotonic()) == 0:
            self._send(wire.Advanced(msgspec.structs.replace(progress, note=_text(progress.note))), number)

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        if self._lines.take("", 1, time.monotonic()) > 0:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._send(wire.LogLine("warning", DROPPED, {"lines": dropped}), number)
        plain = {str(k): v if isinstance(v, bool | float | None) else _text(v) for k, v in values.items()}
        self._send(wire.LogLine(level, _text(event), plain), number)

    async def begin(self, attempt: Attempt) -> None:
        if attempt.traceparent and not self._provides_spans:
            self._provides_spans = True
            provide_spans()

    def failed(self, error: BaseException) -> None:
        pass

    def interrupt(self) -> None:
        # To the main thread: only there are handlers of signals run, and its system calls are interrupted.
        signal.pthread_kill(self._main, SOFT_SIGNAL)
        # One that comes just before such a call is noticed only after it. Who was interrupted heeds no other.
        again = threading.Timer(AGAIN_S, signal.pthread_kill, (self._main, SOFT_SIGNAL))
        again.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread is left; hooks are to run all the same
            again.start()

    def _send(self, message: msgspec.Struct, number: int) -> None:
        """Send, and be interrupted only afterwards: half a frame would be the end of the connection."""
        if threading.get_ident() != self._main:
            self._line.send(message, number)
            return
        self._sending = True
        try:
            self._line.send(message, number)
        finally:
            self._sending = False
        if self._interrupted:
            self._interrupted = False
            self._raise()

    def _on_interrupt(self, *_: object) -> None:
        if self._sending:
            self._interrupted = True
        else:
            self._raise()


def main(fds: Sequence[int], start: wire.SlotSetup) -> int:
    """Take attempts from the tray until it is closed; returns the exit code."""
    peer, stacks, tray, output = fds
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    line = NodeConnection(socket.socket(fileno=peer))
    set_up(line, stacks, start)
    # Not chained: whoever is asked only to look lives on.
    faulthandler.register(LOOK_SIGNAL, stacks, chain=False)
    host = TaskChildHost(line)
    worker: TaskWorker | None = make_worker(line, start, host)
    if worker is None:
        return 1
    host.serve(worker)
    TaskChild(line, socket.socket(fileno=tray), host, worker, start.memory_bytes // MIB).serve()
    return 0


class TaskChild:
    """Runs one attempt after another; a thread listens for what the node says of the one at hand."""

    def __init__(
        self,
        line: NodeConnection,
        tray: socket.socket,
        host: TaskChildHost,
        worker: TaskWorker,
        memory_mb: int,
    ) -> None:
        self._line = line
        self._tray = tray
        self._host = host
        self._worker = worker
        self._pid = os.getpid()
        self._memory_mb = self._limit_mb = memory_mb
        self._surroundings = Surroundings()
        self._told: set[tuple[str, str]] = set()
        self._switching = threading.Lock()

    def serve(self) -> None:
        """Until the tray is closed."""
        threading.Thread(target=self.listen, name="holdfast-listener", daemon=True).start()
        buffer = bytearray(TRAY_BYTES)
        view = memoryview(buffer)
        room = socket.CMSG_SPACE(struct.calcsize("i"))
        resident = Resident()
        while True:
            size, ancillary, _, _ = self._tray.recvmsg_into([buffer], room)
            if size == 0:
                return
            self._take(_decode_offer(view[:size]), ancillary)
            resident.settle()

    def _take(self, offer: wire.Offer, ancillary: Sequence[Any]) -> None:
        """Run what is offered. Its body is held on to by nobody afterwards."""
        attempt = offer.attempt
        self._limit_memory(attempt.memory_mb or self._memory_mb)  # its body may need more than the last one's
        if offer.attached is not None:
            data = _read_all(struct.unpack("i", ancillary[0][2][:4])[0])
            body, after = data[: offer.attached], data[offer.attached :]
            attempt = msgspec.structs.replace(attempt, body=body, after=after)
        self._line.send(wire.AttemptEnded(self._run(offer.number, attempt)), offer.number)

    def _run(self, number: int, attempt: Attempt) -> Tried:
        with self._switching:
            self._host.at_hand = number
        tried = drive(self._worker.attempt(number, attempt))
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that a handler let return: there is one slot, and it is not this
        # Terminate hooks hold the lock while they run: they are part of the attempt.
        with self._switching:
            self._host.at_hand = -1
        if self._tidy(number, attempt):
            tried = msgspec.structs.replace(tried, spoiled=True)
        waiting = bytearray(struct.calcsize("i"))
        with contextlib.suppress(OSError):  # closed by the handler
            fcntl.ioctl(1, termios.FIONREAD, waiting)
        used_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES // MIB
        return msgspec.structs.replace(tried, output=any(waiting), memory_mb=used_mb)

    def _tidy(self, number: int, attempt: Attempt) -> bool:
        """Put back what an attempt has changed of this process; returns True if no other may run here. Each
        change by a type of task is told once."""
        changed, lost = self._surroundings.restore()
        if fresh := [each for each in changed if (attempt.type, each) not in self._told]:
            self._told.update((attempt.type, each) for each in fresh)
            self._host.log(number, "warning", CHANGED, {"changed": ", ".join(fresh)})
        if lost:
            self._host.log(number, "error", SPOILT, {"lost": "; ".join(lost), "fix": MEND})
        return bool(lost)

    def _limit_memory(self, memory_mb: int) -> None:
        if memory_mb != self._limit_mb:
            self._limit_mb = memory_mb
            lifeline.limit_allocation(memory_mb * MIB)
            self._surroundings.note()

    def listen(self) -> None:
        """Take what the node says, until it says no more."""
        splitter = wire.Splitter()
        with contextlib.suppress(OSError):
            while data := self._line.peer.recv(READ_BYTES):
                for number, payload in splitter.feed(data):
                    self._heed(number, _decode_request(payload))

    def _heed(self, number: int, request: wire.TaskRequest) -> None:
        match request:
            case wire.LookAtAttempt():
                # Without the lock: terminate hooks hold it while they run, and may be what hangs.
                text = self._stacks() if number == self._host.at_hand else ""
                self._line.send(wire.AttemptStacks(text), number)
            case wire.CancelAttempt(reason):
                with self._switching:
                    if number == self._host.at_hand:
                        self._worker.cancel(reason)

    def _stacks(self) -> str:
        """Return the stacks of the attempt. If they can't be read, return why: after an error this process
        must still hear of cancels."""
        try:
            return stacks(self._worker.coroutines())
        except Exception as error:  # noqa: BLE001 - of the tasks and frames of user code
            return f"the stacks can't be told: {_text(error)}"


def stacks(coroutines: Collection[asyncio.Task[Any]] = ()) -> str:
    """Return the stacks of this process's main thread, of these tasks, which wait on no thread's stack, and
    of its other threads; each with its newest call last: files, lines and functions, and no values."""
    frames, own = sys._current_frames(), threading.get_ident()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        _stack(f"Thread {names.get(ident, ident)}", traceback.walk_stack(frames[ident]))
        for ident in sorted(frames, key=lambda ident: (ident != main, ident))
        if ident != own
    ]
    tasks = [
        _stack(f"Task {task.get_name()}", reversed([*_awaited(task.get_coro())]))
        for task in sorted(coroutines, key=lambda task: task.get_name())
    ]
    first = 1 if own != main else 0
    found = [*threads[:first], *tasks, *threads[first:]]
    if (more := len(found) - STACKS_MAX) > 0:
        found[STACKS_MAX:] = [f"... {more} more"]
    return storable(redact("\n\n".join(found))[:CHARS_MAX])


def _stack(name: str, calls: Iterable[tuple[FrameType, int]]) -> str:
    """One stack in words, of calls with the newest first."""
    told = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'
        for frame, line in calls
    ]
    more = [f"  ... {len(told) - CALLS_MAX} calls above"] if len(told) > CALLS_MAX else []
    return "\n".join([f"{name}:", *more, *told[:CALLS_MAX][::-1]])


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The coroutines that wait for one another, the outermost first."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _text(value: object) -> str:
    """As it is, but storable and of bounded length."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - user code
        text = f"<{type(value).__name__} without a text: {error!r}>"
    return storable(redact(text)[:4000])
