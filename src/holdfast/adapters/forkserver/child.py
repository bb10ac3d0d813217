"""The life of a slot's process: calls in, answers out, until the node hangs up."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Sequence

import msgspec

from holdfast.adapters.forkserver import lifeline, wire
from holdfast.errors import ConfigError, HandlerFailed, StateRejected
from holdfast.ports.slots import Work, Worker, drive

DUMP_SIGNAL = signal.SIGUSR2
"""Makes a slot write the stacks of all its threads and die."""

TELL_EVERY_S = 0.05
READ_BYTES = 1 << 18

# Not strict, for numbers too large for MessagePack come as texts.
_decode = msgspec.msgpack.Decoder(wire.Request, strict=False).decode


class ChildHost:
    """The worker's host in a process of its own."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._sending = threading.Lock()
        self._told_at = 0.0

    def now(self) -> float:
        return time.monotonic()

    def progress(self, note: str = "") -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self.send(wire.Progress(note.encode("utf-8", "replace").decode()))

    async def begin(self, stream: str, key: str, work: Work) -> None:
        self.progress()

    def failed(self, error: BaseException) -> None:
        pass

    def tell_models(self, loading: str, loaded: Sequence[str]) -> None:
        self.send(wire.Models(loading, list(loaded)))

    def send(self, message: wire.Answer) -> None:
        data = wire.frame(message)
        with self._sending:
            self._peer.sendall(data)


def main(peer: socket.socket, stacks: int, start: wire.Start) -> int:
    """Answer calls from ``peer`` until it closes; returns the exit code.

    Stacks go to the descriptor ``stacks``, on a fatal signal or on demand.
    """
    lifeline.defer_signals()
    lifeline.limit_memory(start.memory_bytes)
    lifeline.end_with(peer)
    faulthandler.enable(stacks)
    # Chained to the default action, the death of the process is the sign that the dump is complete.
    faulthandler.register(DUMP_SIGNAL, stacks, chain=True)
    host = ChildHost(peer)
    try:
        module, _, name = start.factory.partition(":")
        worker: Worker = getattr(importlib.import_module(module), name)(host, *start.args)
    except ConfigError as error:
        host.send(wire.Ready(os.getpid(), str(error)))
        return 1
    except BaseException:  # noqa: BLE001 - whatever an import does, the node must hear of it
        host.send(wire.Ready(os.getpid(), traceback.format_exc()))
        return 1
    host.send(wire.Ready(os.getpid()))
    splitter = wire.Splitter()
    while data := peer.recv(READ_BYTES):
        for payload in splitter.feed(data):
            host.send(_answer(worker, _decode(payload)))
    drive(worker.stop())
    return 0


def _answer(worker: Worker, request: wire.Request) -> wire.Answer:
    match request:
        case wire.Run():
            return wire.Done(
                drive(worker.run(request.stream, request.key, request.work, request.limit, request.after_s))
            )
        case wire.Close():
            drive(worker.close(request.stream, request.key))
            return wire.Opened()
        case wire.Open():
            try:
                drive(worker.open(request.stream, request.key, request.state, request.version))
            except StateRejected as error:
                return wire.Opened(str(error), rejected=True)
            except HandlerFailed as error:
                return wire.Opened(str(error), error.detail)
            return wire.Opened()
