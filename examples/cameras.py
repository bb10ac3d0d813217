"""Cameras: each video is a stream; people are tracked frame by frame and counted.

Run it:    holdfast node examples.cameras:app --nodes 3
Feed it:   holdfast ingest lobby.mp4 --key cam-1

It takes two forms of message. The one that ingest sends:
    {"video": "cam-1", "run": 3, "frame": 17, "timestamp_ms": 680, "url": "s3://frames/cam-1/3/17.jpg"}
and one for frames that others have put into S3, numbered without gaps from any number:
    {"message_id": …, "video_id": "cam-1", "frame_id": 17, "timestamp": …, "s3_bucket": …, "s3_key": …}

Tracking learns the background and finds what moves before it. To find people with a network of yours, declare
it (pip install 'holdfast-streams[vision,onnx]'):
    app.model("detector", partial(vision.OnnxDetector, "people.onnx", classes=(0,)), memory_mb=300)
then add models="detector" to the stream below, and use vision.ModelTracking in
place of vision.Tracking.
"""

from typing import Any

import msgspec

from holdfast import App, Context, StreamHandler, vision

app = App("cameras")


@app.stream(
    "frames",
    key=("video", "video_id"),
    seq=("frame", "frame_id"),
    seq_prefix="frame",  # "frame-000017" is 17
    run=("run", None),  # the second form has none
    first_seq=0,
    start_timeout_s=5.0,  # where 0 doesn't come, the lowest seen by then is the first
    restart_after_s=120.0,  # if they start at 0 again after two minutes without frames, a new run begins
)
class Visitors(StreamHandler[dict[str, Any]]):
    """Tracks people; its tracks and its count survive crashes and moves."""

    def open(self, context: Context, state: bytes | None) -> None:
        tracks, self.visitors = None, 0
        if state:
            tracks, self.visitors = msgspec.msgpack.decode(state)
        self.tracking = vision.Tracking()
        self.tracking.open(context, tracks)

    def process(self, message: dict[str, Any], context: Context) -> dict[str, Any]:
        result = self.tracking.process(vision.frame_of(message, context), context)
        newest = max((track["id"] for track in result["tracks"]), default=0)
        self.visitors = newest if context.seq == 0 else max(self.visitors, newest)
        return result | {"visitors": self.visitors}

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.tracking.snapshot(), self.visitors))
