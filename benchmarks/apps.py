"""The apps that the benchmarks run."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from holdfast import App, Context, StreamHandler
from holdfast.vision.handler import Frame, Tracking


class Message(msgspec.Struct):
    """A message that says no more than its place."""

    key: str
    n: int


noop = App("noop")


@noop.stream("noop", key="key", seq="n", message=Message, first_seq=0)
def nothing(message: Message, context: Context) -> int:
    """Does nothing; its result shows that it was done."""
    return message.n


deep = App("deep")
"""Streams with and without seqs."""


@deep.stream("seqs", key="key", seq="n", message=Message, first_seq=0, gap_timeout_s=120.0)
@deep.stream("arrival", key="key", message=Message)
def number(message: Message, context: Context) -> int:
    """Does nothing; its results show the order."""
    return message.n


vision = App("vision")
vision.stream("frames", key="video", seq="frame", run="run", message=Frame, first_seq=0)(Tracking)


live = App("live")

MODEL_LOAD_S = 0.3


def load_model() -> str:
    """Stands for a model: it takes its time to load, once a slot."""
    time.sleep(MODEL_LOAD_S)
    return "model"


@live.stream("live", key="key", seq="n", message=Message, first_seq=0, idle_timeout_s=600.0)
class Live(StreamHandler[Message]):
    """Counts with a warm model; its results show whether a message was lost or done twice."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue to count."""
        self.model = context.model(load_model)
        self.count = int(state or b"0")

    def process(self, message: Message, context: Context) -> list[int]:
        """The message's number, and how many came before it."""
        self.count += 1
        return [message.n, self.count]

    def snapshot(self) -> bytes:
        """The count."""
        return b"%d" % self.count


watch = App("watch")


@watch.stream("watch", key="video", seq="frame", run="run", message=Frame, first_seq=0, idle_timeout_s=600.0)
class Watch(Tracking):
    """Tracks, with a model that takes its time to load and then does nothing."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Load the model, and continue to track."""
        self.model = context.model(load_model)
        super().open(context, state)


effects = App("effects")


@effects.stream("sender", key="key", seq="n", message=Message, first_seq=0)
def send_on(message: Message, context: Context) -> None:
    """Sends each message on, as an effect."""
    context.send("sink", {"n": message.n})


@effects.stream("teller", key="key", seq="n", message=Message, first_seq=0)
def tell(message: Message, context: Context) -> dict[str, int]:
    """Has each message as its result, for a follower of the log."""
    return {"n": message.n}


@effects.stream("both", key="key", seq="n", message=Message, first_seq=0)
def send_and_tell(message: Message, context: Context) -> dict[str, int]:
    """Does both: the result shows when the effect was committed."""
    context.send("sink", {"n": message.n})
    return {"n": message.n}


@effects.stream("sink", key="key")
def sink(message: dict[str, Any], context: Context) -> list[float]:
    """The message's number, and when it came."""
    return [message["n"], time.time()]


idle = App("idle")

STATE_BYTES = 1024


@idle.stream("idle", key="key", seq="n", message=Message, first_seq=0, idle_timeout_s=3600.0)
class Idle(StreamHandler[Message]):
    """Keeps a state of 1 kB."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue with the state, or begin with one."""
        self.state = state or bytes(range(256)) * (STATE_BYTES // 256)

    def process(self, message: Message, context: Context) -> None:
        """Changes the state."""
        self.state = self.state[1:] + self.state[:1]

    def snapshot(self) -> bytes:
        """The state."""
        return self.state


class Camera(msgspec.Struct):
    """A frame as in the replaced design. Its picture isn't read."""

    video_id: str
    frame_id: int
    timestamp: float


cameras = App("cameras")


@cameras.stream(
    "frames",
    key="video_id",
    seq="frame_id",
    message=Camera,
    first_seq=0,
    gap_timeout_s=120.0,
    idle_timeout_s=60.0,
)
class Cameras(StreamHandler[Camera]):
    """Stores the last frame's number; its results show when each frame was sent."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue after the last frame."""
        self.last = int(state or b"-1")

    def process(self, message: Camera, context: Context) -> list[float]:
        """The frame's number, and when it was sent."""
        self.last = message.frame_id
        return [message.frame_id, message.timestamp]

    def snapshot(self) -> bytes:
        """The last frame's number."""
        return b"%d" % self.last
