"""A slot's process for tasks: it takes attempts from its prefetch buffer until the node closes it."""

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
from holdfast.ports.slots import Attempt, AttemptReport, Progress, TaskWorker
from holdfast.slots import lifeline, wire
from holdfast.slots.child import READ_BYTES, NodeConnection, make_worker, set_up
from holdfast.slots.output import DROPPED
from holdfast.slots.surroundings import Surroundings
from holdfast.slots.thread import drive
from holdfast.slots.traced import provide_spans
from holdfast.system.process_memory import Resident

STACKS_SIGNAL = signal.SIGQUIT
"""The signal on which a slot for tasks writes the stacks of all its threads, and goes on."""

SOFT_SIGNAL = signal.SIGUSR1
"""The signal on which a slot for tasks interrupts a cancelled handler."""

INTERRUPT_AGAIN_S = 0.05

BUFFER_BYTES = 1 << 18
"""The largest message in a prefetch buffer."""

CALLS_MAX = 100
"""The most reported calls of a thread or task: the newest."""

STACKS_MAX = 20
"""The most reported threads and tasks of an attempt."""

CHARS_MAX = 32_000
"""The most characters of an attempt's stacks."""

PROGRESS = Rate(per_s=20, burst=20)
LINES = Rate(per_s=200, burst=500)
MIB = 1 << 20
# Linux counts in KiB, other systems in bytes.
MAXRSS_BYTES = 1024 if lifeline.LINUX else 1

CHANGED = "process state changed by a task"
SPOILT = "process spoilt by a task"
FIX = "close what the task opens, and start a process of its own for changes of the process"

_decode_offer = msgspec.msgpack.Decoder(wire.Offer).decode
_decode_request = msgspec.msgpack.Decoder(wire.TaskRequest).decode


class TaskChildHost:
    """The worker's host in a process of its own: one attempt at a time.

    Attributes:
        current: the number of the running attempt; -1 for none.
    """

    def __init__(self, line: NodeConnection) -> None:
        self.current = -1
        self._line = line
        self._main = threading.main_thread().ident or 0
        self._progress = Limiter(PROGRESS)
        self._lines = Limiter(LINES)
        self._dropped = 0
        self._sending = False
        self._interrupted = False
        self._provides_spans = False
        self._raise: Callable[[], None] = lambda: None

    def serve(self, worker: TaskWorker) -> None:
        """Let ``interrupt`` call this worker."""
        self._raise = worker.raise_if_cancelled
        signal.signal(SOFT_SIGNAL, self._on_interrupt)

    def now(self) -> float:
        return time.monotonic()

    def progress(self, number: int, progress: Progress) -> None:
        if number != self.current:
            return  # a thread that an earlier attempt left
        if self._progress.take("", 1, time.monotonic()) == 0:
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
        # To the main thread: it runs the handlers of signals, and its system calls are interrupted.
        signal.pthread_kill(self._main, SOFT_SIGNAL)
        # A signal just before a system call doesn't interrupt it, so another follows. One interrupt is
        # enough.
        again = threading.Timer(INTERRUPT_AGAIN_S, signal.pthread_kill, (self._main, SOFT_SIGNAL))
        again.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be started; hooks must run all the same
            again.start()

    def _send(self, message: msgspec.Struct, number: int) -> None:
        """Send a message, and delay an interrupt until it is sent: half a frame would break the
        connection."""
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
    """Run attempts from the prefetch buffer until it is closed; return the exit code."""
    peer, stacks, buffer, output = fds
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    line = NodeConnection(socket.socket(fileno=peer))
    set_up(line, stacks, start)
    # Not chained to the default action, which would end the process.
    faulthandler.register(STACKS_SIGNAL, stacks, chain=False)
    host = TaskChildHost(line)
    worker: TaskWorker | None = make_worker(line, start, host)
    if worker is None:
        return 1
    host.serve(worker)
    TaskChild(line, socket.socket(fileno=buffer), host, worker, start.memory_bytes // MIB).serve()
    return 0


class TaskChild:
    """Runs one attempt after another; a thread takes the node's requests for the running one."""

    def __init__(
        self,
        line: NodeConnection,
        prefetched: socket.socket,
        host: TaskChildHost,
        worker: TaskWorker,
        memory_mb: int,
    ) -> None:
        self._line = line
        self._prefetched = prefetched
        self._host = host
        self._worker = worker
        self._pid = os.getpid()
        self._memory_mb = self._limit_mb = memory_mb
        self._surroundings = Surroundings()
        self._reported: set[tuple[str, str]] = set()
        self._switching = threading.Lock()

    def serve(self) -> None:
        """Run attempts until the prefetch buffer is closed."""
        threading.Thread(target=self.listen, name="holdfast-listener", daemon=True).start()
        buffer = bytearray(BUFFER_BYTES)
        view = memoryview(buffer)
        room = socket.CMSG_SPACE(struct.calcsize("i"))
        resident = Resident()
        while True:
            size, ancillary, _, _ = self._prefetched.recvmsg_into([buffer], room)
            if size == 0:
                return
            self._take(_decode_offer(view[:size]), ancillary)
            resident.settle()

    def _take(self, offer: wire.Offer, ancillary: Sequence[Any]) -> None:
        """Run an attempt. Its body isn't kept afterwards."""
        attempt = offer.attempt
        self._limit_memory(
            attempt.memory_mb or self._memory_mb
        )  # before the body is read: it may need more than the last one
        if offer.attached is not None:
            data = _read_all(struct.unpack("i", ancillary[0][2][:4])[0])
            body, after = data[: offer.attached], data[offer.attached :]
            attempt = msgspec.structs.replace(attempt, body=body, after=after)
        self._line.send(wire.AttemptEnded(self._run(offer.number, attempt)), offer.number)

    def _run(self, number: int, attempt: Attempt) -> AttemptReport:
        with self._switching:
            self._host.current = number
        report = drive(self._worker.attempt(number, attempt))
        if os.getpid() != self._pid:
            os._exit(0)  # a handler forked, and the child returned here: it is not the slot
        # Terminate hooks hold the lock: they are part of the attempt.
        with self._switching:
            self._host.current = -1
        if self._tidy(number, attempt):
            report = msgspec.structs.replace(report, spoiled=True)
        waiting = bytearray(struct.calcsize("i"))
        with contextlib.suppress(OSError):  # closed by the handler
            fcntl.ioctl(1, termios.FIONREAD, waiting)
        used_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES // MIB
        return msgspec.structs.replace(report, output=any(waiting), memory_mb=used_mb)

    def _tidy(self, number: int, attempt: Attempt) -> bool:
        """Restore what an attempt has changed in this process; return True if no other attempt may run here.
        Each change by a type of task is logged once."""
        changed, lost = self._surroundings.restore()
        if fresh := [each for each in changed if (attempt.type, each) not in self._reported]:
            self._reported.update((attempt.type, each) for each in fresh)
            self._host.log(number, "warning", CHANGED, {"changed": ", ".join(fresh)})
        if lost:
            self._host.log(number, "error", SPOILT, {"lost": "; ".join(lost), "fix": FIX})
        return bool(lost)

    def _limit_memory(self, memory_mb: int) -> None:
        if memory_mb != self._limit_mb:
            self._limit_mb = memory_mb
            lifeline.limit_allocation(memory_mb * MIB)
            self._surroundings.note()

    def listen(self) -> None:
        """Take the node's requests until it closes the connection."""
        splitter = wire.Splitter()
        with contextlib.suppress(OSError):
            while data := self._line.peer.recv(READ_BYTES):
                for number, payload in splitter.feed(data):
                    self._serve_request(number, _decode_request(payload))

    def _serve_request(self, number: int, request: wire.TaskRequest) -> None:
        match request:
            case wire.StacksRequest():
                # Without the lock: a terminate hook that hangs holds it.
                text = self._stacks() if number == self._host.current else ""
                self._line.send(wire.AttemptStacks(text), number)
            case wire.CancelAttempt(reason):
                with self._switching:
                    if number == self._host.current:
                        self._worker.cancel(reason)

    def _stacks(self) -> str:
        """Return the stacks of the attempt, or the error: the thread must still take requests to cancel."""
        try:
            return stacks(self._worker.coroutines())
        except Exception as error:  # noqa: BLE001 - of the tasks and frames of user code
            return f"the stacks can't be read: {_text(error)}"


def stacks(coroutines: Collection[asyncio.Task[Any]] = ()) -> str:
    """Return the stacks of this process's main thread, of these asyncio tasks, which are on no thread's
    stack, and of its other threads. Each has files, lines and functions, the newest call last, and no
    values."""
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
    """Return one stack as text; ``calls`` have the newest first."""
    lines = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'
        for frame, line in calls
    ]
    more = [f"  ... {len(lines) - CALLS_MAX} calls above"] if len(lines) > CALLS_MAX else []
    return "\n".join([f"{name}:", *more, *lines[:CALLS_MAX][::-1]])


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the coroutines that wait for one another, the outermost first."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _text(value: object) -> str:
    """Return a text that can be stored, cut to a limit."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - user code
        text = f"<{type(value).__name__} without a text: {error!r}>"
    return storable(redact(text)[:4000])
