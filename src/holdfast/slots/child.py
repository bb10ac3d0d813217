"""A slot's process for streams: it answers calls until the node closes the connection."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from holdfast.common.user_code import show_locals
from holdfast.errors import ConfigError, HandlerFailed, ModelFailed, StateRejected
from holdfast.ports.slots import MessageWork, SlotWorker
from holdfast.slots import lifeline, wire
from holdfast.slots.thread import drive
from holdfast.slots.traced import provide_spans
from holdfast.system.process_memory import Resident

DUMP_SIGNAL = signal.SIGUSR2
"""The signal on which a slot writes the stacks of all its threads, and dies."""

PROGRESS_EVERY_S = 0.05
READ_BYTES = 1 << 18

# Not strict: numbers too large for MessagePack come as texts.
_decode = msgspec.msgpack.Decoder(wire.Request, strict=False).decode


class NodeConnection:
    """The connection to the node. Threads may share it."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct, call: int = 0) -> None:
        """Send a message about a call to the node."""
        data = wire.frame(message, call)
        with self._sending:
            self.peer.sendall(data)


def set_up(line: NodeConnection, stacks: int, start: wire.SlotSetup) -> None:
    """Set up the process of a slot. On a fatal signal or on demand, it writes its stacks to the descriptor
    ``stacks``."""
    lifeline.defer_signals()
    lifeline.limit_memory(start.memory_bytes)
    lifeline.end_with(line.peer)
    if start.show_locals:
        show_locals()
    faulthandler.enable(stacks)
    # Chained to the default action: when the process is dead, the dump is complete.
    faulthandler.register(DUMP_SIGNAL, stacks, chain=True)


def make_worker(line: NodeConnection, start: wire.SlotSetup, host: object) -> Any:
    """Return the worker for a host, or None if it can't be made; report either to the node."""
    try:
        module, _, name = start.factory.partition(":")
        worker = getattr(importlib.import_module(module), name)(host, *start.args)
    except ConfigError as error:
        line.send(wire.SlotReady(os.getpid(), str(error)))
        return None
    except BaseException:  # noqa: BLE001 - an import may raise anything, and the node must get it
        line.send(wire.SlotReady(os.getpid(), traceback.format_exc()))
        return None
    line.send(wire.SlotReady(os.getpid()))
    return worker


class RunningCall:
    """A call that a slot runs, and the monotonic time of its last progress message."""

    __slots__ = ("number", "reported_at")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reported_at = time.monotonic()


class ChildHost:
    """The worker's host in a process of its own: one call at a time."""

    def __init__(self, line: NodeConnection) -> None:
        self._line = line
        self._pid = os.getpid()
        self._running: dict[tuple[str, str], RunningCall] = {}
        self._provides_spans = False

    def answer(self, worker: SlotWorker, call: int, request: wire.Request) -> None:
        """Have the worker serve a call, and send its answer."""
        lane = request.stream, request.key
        self._running[lane] = RunningCall(call)
        answer = _answer(worker, request)
        if os.getpid() != self._pid:
            os._exit(0)  # a handler forked, and the child returned here: it is not the slot
        del self._running[lane]
        self._line.send(answer, call)

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def progress(self, stream: str, key: str, note: str = "") -> None:
        call = self._running.get((stream, key))
        if call is None:
            return  # a thread that a handler left behind has no call
        now = time.monotonic()
        if now - call.reported_at >= PROGRESS_EVERY_S:
            call.reported_at = now
            self._line.send(wire.Noted(note.encode("utf-8", "replace").decode()), call.number)

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        if work.traceparent and not self._provides_spans:
            self._provides_spans = True
            provide_spans()
        self.progress(stream, key)

    def failed(self, error: BaseException) -> None:
        pass

    def report_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        call = self._running.get((stream, key))
        self._line.send(wire.SlotModels(loading, list(loaded)), call.number if call is not None else 0)


def main(fds: Sequence[int], start: wire.SlotSetup) -> int:
    """Answer the node's calls until it closes the connection; return the exit code."""
    line = NodeConnection(socket.socket(fileno=fds[0]))
    set_up(line, fds[1], start)
    host = ChildHost(line)
    worker: SlotWorker | None = make_worker(line, start, host)
    if worker is None:
        return 1
    splitter, resident = wire.Splitter(), Resident()
    while data := line.peer.recv(READ_BYTES):
        frames = splitter.feed(data)
        while frames:  # keeps none while it waits for the next one
            _serve(host, worker, frames)
            resident.settle()
    drive(worker.stop())
    return 0


def _serve(host: ChildHost, worker: SlotWorker, frames: list[tuple[int, bytes]]) -> None:
    call, payload = frames.pop(0)
    request = _decode(payload)
    del payload
    host.answer(worker, call, request)


def _answer(worker: SlotWorker, request: wire.Request) -> wire.Answer:
    match request:
        case wire.RunMessages():
            return wire.RunDone(
                drive(worker.run(request.stream, request.key, request.work, request.limit, request.after_s))
            )
        case wire.QueryStream(stream, key, state, version, asked):
            return wire.QueryDone(drive(worker.query(stream, key, state, version, asked)))
        case wire.CloseStream():
            drive(worker.close(request.stream, request.key))
            return wire.Opened()
        case wire.LoadStream():
            return _opened(worker.load(request.stream, request.key, request.models))
        case wire.OpenStream():
            return _opened(worker.open(request.stream, request.key, request.state, request.version))


def _opened(work: Coroutine[Any, Any, None]) -> wire.Opened:
    try:
        drive(work)
    except StateRejected as error:
        return wire.Opened(str(error), rejected=True)
    except ModelFailed as error:
        return wire.Opened(str(error), error.detail, model=error.model)
    except HandlerFailed as error:
        return wire.Opened(str(error), error.detail)
    return wire.Opened()
