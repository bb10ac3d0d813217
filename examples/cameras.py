"""Cameras: each video is a stream; people are tracked frame by frame and counted.

Run it:    holdfast node examples.cameras:app --nodes 3
Feed it:   holdfast ingest lobby.mp4 --key cam-1
"""

from typing import Any

import msgspec

from holdfast import App, Context, StreamHandler
from holdfast.apps.vision.handler import Frame, Tracking

app = App("cameras")


@app.stream("frames", key="video", seq="frame", run="run", message=Frame, first_seq=0)
class Visitors(StreamHandler[Frame]):
    """Tracks people; its tracks and its count survive crashes and moves."""

    def open(self, context: Context, state: bytes | None) -> None:
        tracks, self.visitors = None, 0
        if state:
            tracks, self.visitors = msgspec.msgpack.decode(state)
        self.tracking = Tracking()
        self.tracking.open(context, tracks)

    def process(self, message: Frame, context: Context) -> dict[str, Any]:
        result = self.tracking.process(message, context)
        newest = max((track["id"] for track in result["tracks"]), default=0)
        self.visitors = newest if message.frame == 0 else max(self.visitors, newest)
        return result | {"visitors": self.visitors}

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.tracking.snapshot(), self.visitors))
