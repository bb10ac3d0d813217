"""The app that slots are held to their promises with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app.app import App
from holdfast.errors import InvalidMessage
from holdfast.streams.handler import Context, StreamHandler
from holdfast.tasks.handler import Job

app = App("conformance")
app.model("answer", lambda: 42, memory_mb=1)
app.model("missing", lambda: Path("/no/such/file").read_bytes())


def hoard() -> None:
    """Take memory until it is used up."""
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


@app.stream("count", message=bytes)
class Count(StreamHandler[bytes]):
    """Counts its messages. Version 1 of its state was the bare number, version 2 has a mark before it."""

    version = 2

    def open(self, context: Context, state: bytes | None) -> None:
        mark, _, number = (state or b"v2:0").partition(b":")
        if mark != b"v2":
            raise ValueError("not a count of version 2")
        self.count = int(number)

    async def process(self, message: bytes, context: Context) -> Any:
        if message == b"boom":
            raise ValueError("boom \N{SNOWMAN}")
        if message == b"hang":
            await asyncio.Event().wait()
        if message == b"hoard":
            hoard()
        self.count += 1
        if message == b"none":
            return None
        place = {"key": context.key, "run": context.run, "seq": context.seq, "attempt": context.attempt}
        return {"count": self.count, **place}

    async def query(self, request: Any, context: Context) -> Any:
        if request == "boom":
            raise ValueError("boom \N{SNOWMAN}")
        if request == "junk":
            raise InvalidMessage("no such question")
        if request == "hang":
            await asyncio.Event().wait()
        if request == "send":
            context.send("count", b"x")
        self.count += 100
        return {"count": self.count - 100, "key": context.key, "asked": request}

    def snapshot(self) -> bytes:
        return b"v2:%d" % self.count

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        return b"v2:" + state


@app.stream("echo", message=bytes)
def echo(message: bytes, context: Context) -> bytes:
    """Return the body."""
    return message


class Point(msgspec.Struct):
    """A declared message."""

    x: int


@app.stream("double", message=Point)
def double(message: Point, context: Context) -> int:
    """Returns twice the number."""
    return 2 * message.x


@app.stream("modelled", message=bytes, models="answer")
def modelled(message: bytes, context: Context) -> int:
    """Returns what its model is."""
    answer: int = context.model("answer")
    return answer


@app.stream("unequipped", message=bytes, models=("answer", "missing"))
@app.stream("late", message=bytes)
def late(message: bytes, context: Context) -> int:
    """Asks for a model that doesn't load."""
    answer: int = context.model("missing")
    return answer


@app.stream("refuse", message=bytes)
class Refuse(StreamHandler[bytes]):
    """Never opens."""

    def open(self, context: Context, state: bytes | None) -> None:
        raise RuntimeError("no licence")


@app.task("echo", body=str)
def echo_task(body: str, job: Job) -> str:
    """Return the body."""
    return body


@app.task("follow", body=str)
def follow(body: str, job: Job) -> str:
    """Return its body, and how much the task before it returned."""
    assert job.after is not None
    return f"{body} {len(job.after.value)}"


@app.task("fail", body=str)
async def fail(body: str, job: Job) -> None:
    """Raises."""
    raise ValueError(body)


@app.task("hoard", body=str)
def hoard_task(body: str, job: Job) -> None:
    """Takes more than it may."""
    hoard()


@app.task("wait", body=str)
async def wait(body: str, job: Job) -> None:
    """Report progress, and wait to be cancelled."""
    job.on_terminate(lambda: job.log.warning("cancelled", again=job.cancelled))
    job.progress(0.5, "waiting", rows=7)
    await asyncio.Event().wait()
