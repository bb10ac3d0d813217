"""An app for nodes that are to be hurt: its state tells any order from any other, its messages may say what
to do to their slot, and its nodes stop where a test asks them to."""

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast import App, Context, StreamHandler
from holdfast.rules.streams.ledger import Commit
from tests.nodes.acting_app import RULES, Item, State, follow
from tests.nodes.acting_app import app as acting

BULK_BYTES = 200_000

app = App("chaos")
fifo = App("fifo")
seeing = App("seeing")
both = App("both")
archived = App("archived")

__all__ = ["acting"]  # its nodes can be stopped too

ARCHIVE = Path(os.environ.get("CHAOS_PLACE", "node")).parent / "archive"
"""The archive of all nodes."""


def fail() -> None:
    raise ValueError("it must fail")


def hang() -> None:
    threading.Event().wait()


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def exit_politely() -> None:
    raise SystemExit("so long")


def hoard() -> None:
    hoarded = []
    while True:
        hoarded.append(bytes(1 << 24))  # allocated, and not touched page by page: that may take seconds


def junk() -> Any:
    return object()


def load_when_told() -> int:
    """Tells of each load, and waits for the test to let it go on."""
    with Path(os.environ["CHAOS_PLACE"], "loads").open("a") as loads:
        loads.write(f"{os.getpid()}\n")
    return len(Path(os.environ["CHAOS_PLACE"], "weights").read_text())


seeing.model("weights", load_when_told, memory_mb=10)


@both.stream("more", seq="n", first_seq=0, **RULES)
@both.stream("chain", seq="n", first_seq=0, **RULES)
@seeing.stream("chain", seq="n", first_seq=0, models="weights", **RULES)
@fifo.stream("chain", seq="queue", **RULES)
@archived.stream("chain", seq="n", first_seq=0, archive=f"file:{ARCHIVE}", **RULES)
@app.stream("chain", seq="n", first_seq=0, **RULES)
class Chain(StreamHandler[Item]):
    """Links every message to all before it."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.state = msgspec.json.decode(state, type=State) if state else State()

    def process(self, message: Item, context: Context) -> Any:
        assert message.n > self.state.last, f"{message.n} came after {self.state.last}"
        if message.do == "bulk":
            return {"n": self._link(message.n), "digest": self.state.digest, "bulk": "x" * BULK_BYTES}
        if message.do and (result := globals()[message.do]()) is not None:
            return result
        return {"n": self._link(message.n), "digest": self.state.digest, "slot": os.getpid()}

    def _link(self, n: int) -> int:
        self.state = State(n, follow(self.state.digest, n))
        return n

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.state)


def stop_where_told(place: Path) -> None:
    """Stop this process just before it sends a commit, or inside the transaction of one, once the test has
    made a file of that name; and have no room for a commit while there is one ``disk-full``. The file
    ``on-their-way`` tells the epochs of the commits that are sent next, by key."""

    def obey(order: str, *coming: Commit) -> bool:
        try:
            (place / order).unlink()
        except FileNotFoundError:
            return False
        (place / "on-their-way").write_bytes(msgspec.json.encode({c.key: c.epoch for c in coming}))
        os.kill(os.getpid(), signal.SIGSTOP)
        return True

    from holdfast.services.redis import state as redis_state
    from holdfast.services.sqlite import lock as sqlite_lock
    from holdfast.services.sqlite import state as sqlite_state
    from holdfast.services.sqlite.database import Transaction

    assert asyncio.iscoroutinefunction(sqlite_state.SqliteState.commit)
    redis_commit = redis_state.RedisState.commit

    async def stopping_redis_commit(self: redis_state.RedisState, wanted: Commit) -> None:
        if obey("stop-before-commit", wanted):
            threading.Event().wait(0.1)
        await redis_commit(self, wanted)

    redis_state.RedisState.commit = stopping_redis_commit  # type: ignore[method-assign, assignment]
    commit, acquire = sqlite_state.SqliteState.commit, sqlite_lock.WriteLock.acquire
    change_rows = Transaction.change_rows
    on_their_way: dict[str, Commit] = {}

    async def noted_commit(self: sqlite_state.SqliteState, wanted: Commit) -> None:
        on_their_way[wanted.id] = wanted
        try:
            await commit(self, wanted)
        finally:
            on_their_way.pop(wanted.id, None)

    def stopping_acquire(self: sqlite_lock.WriteLock) -> None:
        # A process that stops with the lock is killed for it. Here it does not have it yet.
        if (coming := list(on_their_way.values())) and obey("stop-before-commit", *coming):
            threading.Event().wait(0.1)  # a stop reaches this thread a moment later, and must find it here
        acquire(self)

    def stopping_change_rows(self: Transaction, template: str, rows: Sequence[Any], *more: Any) -> int:
        if template == sqlite_state.WRITE:
            for _, _, commit_id, *_ in rows:  # what is written, if not answered yet, is not on its way
                on_their_way.pop(commit_id, None)
            full = (place / "disk-full").exists()  # then the file can't grow
            self.connection.execute(f"PRAGMA max_page_count = {1 if full else 1 << 30}")
        changed = change_rows(self, template, rows, *more)
        if template == sqlite_state.LOG and obey("stop-in-transaction"):
            hang()  # a stop reaches this thread a moment later, and must find it here
        return changed

    sqlite_lock.WriteLock.acquire = stopping_acquire  # type: ignore[method-assign]
    sqlite_state.SqliteState.commit = noted_commit  # type: ignore[method-assign,assignment]
    Transaction.change_rows = stopping_change_rows  # type: ignore[method-assign]


def note_hand_overs(file: Path) -> None:
    """Tell in a file what was sent to queues of SQS and PostgreSQL, in the order in which that was known."""
    from holdfast.ports.queue import Outgoing
    from holdfast.services.aws.queue import SqsQueue
    from holdfast.services.postgres.queue import PostgresQueue

    def noting(send: Any) -> Any:
        async def noting_send(self: Any, messages: Sequence[Outgoing]) -> list[str]:
            sent: list[str] = await send(self, messages)
            with file.open("ab", buffering=0) as out:
                out.write(b"".join(message.body + b"\n" for message in messages))
            return sent

        return noting_send

    SqsQueue.send = noting(SqsQueue.send)  # type: ignore[method-assign]
    PostgresQueue.send = noting(PostgresQueue.send)  # type: ignore[method-assign]


IN_NODE = "CHAOS_PLACE" in os.environ and "holdfast-slot" not in sys.argv  # a slot commits nothing

if IN_NODE and "CHAOS_HOLD_MAX_S" in os.environ:
    from holdfast.services.aws import queue as sqs_queue

    sqs_queue.HOLD_MAX_S = int(os.environ["CHAOS_HOLD_MAX_S"])  # type: ignore[attr-defined]

if IN_NODE and "CHAOS_HANDED_OVER" in os.environ:
    note_hand_overs(Path(os.environ["CHAOS_HANDED_OVER"]))

if IN_NODE:
    stop_where_told(Path(os.environ["CHAOS_PLACE"]))
