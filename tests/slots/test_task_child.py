"""The part of a task slot's process that receives the node's messages about the current attempt."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Collection, Iterator
from typing import Any, cast

import msgspec
import pytest

from holdfast.ports.slots import TaskWorker
from holdfast.rules.tasks.task import Task
from holdfast.slots import wire
from holdfast.slots.child import NodeConnection
from holdfast.slots.task_child import SOFT_SIGNAL, STACKS_MAX, TaskChild, TaskChildHost, stacks
from holdfast.slots.thread import drive
from holdfast.tasks.body import Body
from holdfast.tasks.handler import Job
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.worker import TaskExecutor

ATTEMPT = 7
PATIENCE_S = 30.0


class Worker:
    """A worker whose tasks can't be listed."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def coroutines(self) -> Collection[asyncio.Task[Any]]:
        raise RuntimeError("the set has changed")

    def cancel(self, reason: str) -> None:
        self.cancelled.set()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours, theirs:
        yield ours, theirs
        ours.shutdown(socket.SHUT_RDWR)


def test_an_attempt_without_readable_stacks_is_still_cancelled(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    node, line, worker = pair[0], NodeConnection(pair[1]), Worker()
    host = TaskChildHost(line)
    host.current = ATTEMPT
    child = TaskChild(line, pair[1], host, cast("TaskWorker", worker), 0)
    listening = threading.Thread(target=child.listen, daemon=True)
    listening.start()
    node.sendall(wire.frame(wire.StacksRequest(), ATTEMPT))
    splitter = wire.Splitter()
    frames: list[tuple[int, bytes]] = []
    while not frames:
        frames = splitter.feed(node.recv(4096))
    ((number, payload),) = frames
    stacks = msgspec.msgpack.decode(payload, type=wire.AttemptStacks)
    assert (number, stacks.text) == (ATTEMPT, "the stacks can't be read: the set has changed")
    node.sendall(wire.frame(wire.CancelAttempt("enough"), ATTEMPT))
    assert worker.cancelled.wait(PATIENCE_S)
    node.shutdown(socket.SHUT_WR)
    listening.join(PATIENCE_S)


def test_terminate_hooks_run_where_no_thread_is_left(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    signals, ran = list[int](), list[str]()
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: signals.append(number))
    monkeypatch.setattr(threading.Timer, "start", start)

    def handler(body: dict[str, Any], job: Job) -> None:
        job.on_terminate(lambda: ran.append("hook"))
        executor.cancel("enough")

    spec = TaskSpec(name="t", handler=handler)
    executor = TaskExecutor("app", {"t": spec}, TaskChildHost(NodeConnection(pair[1])))
    tried = drive(executor.attempt(ATTEMPT, spec.attempt(Body(b"{}"), Task("trace", "t"))))
    assert (tried.error, signals, ran) == ("", [SOFT_SIGNAL], ["hook"])


async def test_an_attempts_tasks_are_reported_before_other_threads() -> None:
    enough = threading.Event()
    beside = [threading.Thread(target=enough.wait, name=f"beside-{n}") for n in range(2 * STACKS_MAX)]
    for thread in beside:
        thread.start()
    handler = asyncio.create_task(asyncio.Event().wait(), name="handler")
    await asyncio.sleep(0)
    text = await asyncio.to_thread(stacks, [handler])
    handler.cancel()
    enough.set()
    for thread in beside:
        thread.join()
    names = [line for line in text.splitlines() if line.startswith(("Thread", "Task", "..."))]
    assert names[0].startswith("Thread MainThread")
    assert names[1] == "Task handler:"
    assert len(names) == STACKS_MAX + 1
    assert names[-1].endswith(" more")
