"""The stream handler: fetch a frame, find what moves, follow it."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from holdfast.apps.vision.detector import Background, Detector
from holdfast.apps.vision.jpeg import decode_cells
from holdfast.apps.vision.tracker import Tracker, Tracks
from holdfast.errors import InvalidMessage
from holdfast.streams.handler import Context, StreamHandler


class Frame(msgspec.Struct, frozen=True):
    """The message: one frame of a video. ``frame`` counts from 0 in its ``run``, without gaps."""

    video: str
    run: int
    frame: int
    timestamp_ms: int
    url: str


class BucketFrame(msgspec.Struct, frozen=True):
    """The other form of message, for frames that others have put into S3. Its ``video_id`` and ``frame_id``
    are the stream's key and seq; what it says besides (``message_id``, ``timestamp``) is not looked at."""

    s3_bucket: str
    s3_key: str


def frame_of(message: dict[str, Any], context: Context) -> Frame:
    """The frame that a message of either form means. Raises InvalidMessage."""
    try:
        if "s3_key" not in message:
            return msgspec.convert(message, Frame)
        place = msgspec.convert(message, BucketFrame)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"the message is neither form of a frame: {error}") from error
    url = f"s3://{place.s3_bucket}/{quote(place.s3_key)}"
    return Frame(context.key, context.run, context.seq, 0, url)


class _State(msgspec.Struct, frozen=True, array_like=True):
    run: int
    background: Background
    tracks: Tracks


class _Watch(NamedTuple):
    run: int
    detector: Detector
    tracker: Tracker


class Tracking(StreamHandler[Frame]):
    """Tracks what moves in front of one fixed camera.

    The result of a frame is ``{video, run, frame, tracks: [{id, box: [left, top, right, bottom], score}]}``,
    with boxes in pixels, and ids that count from 1 in each run. A run begins with nothing learnt, so its
    results follow from its frames alone.
    """

    version = 1

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue from state, bit for bit, or begin."""
        self._watch: _Watch | None = None
        if state:
            saved = msgspec.msgpack.decode(state, type=_State)
            self._watch = _Watch(saved.run, Detector.restore(saved.background), Tracker.restore(saved.tracks))

    def process(self, message: Frame, context: Context) -> dict[str, Any]:
        """Track one frame.

        Raises FileNotFoundError for a frame that isn't there, and InvalidMessage for one that is no whole
        image or has another size than those before it. Both name its URL.
        """
        width, height, cells = decode_cells(_fetch(message, context), _name(message))
        if self._watch is None or self._watch.run != message.run:
            self._watch = _Watch(message.run, Detector(width, height), Tracker())
        detector = self._watch.detector
        if (detector.width, detector.height) != (width, height):
            raise InvalidMessage(
                f"frame {_name(message)} has {width}x{height} pixels, but run {message.run} of"
                f" {message.video} has {detector.width}x{detector.height};"
                " send frames of another size as a new run",
                field="url",
            )
        tracks = self._watch.tracker.update(message.frame, detector.detect(cells))
        return {
            "video": message.video,
            "run": message.run,
            "frame": message.frame,
            "tracks": [
                {
                    "id": track.id,
                    "box": [round(side, 1) for side in track.box],
                    "score": round(track.score, 2),
                }
                for track in tracks
            ],
        }

    def snapshot(self) -> bytes:
        """What was learnt of the background, and the tracks."""
        if self._watch is None:
            return b""
        run, detector, tracker = self._watch
        return msgspec.msgpack.encode(_State(run, detector.snapshot(), tracker.snapshot()))


def _name(message: Frame) -> str:
    """What a frame is called in errors: its URL, unless that holds the whole frame."""
    return f"{message.frame} of {message.video}" if message.url.startswith("data:") else message.url


def _fetch(message: Frame, context: Context) -> bytes:
    try:
        return context.fetch(message.url)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            f"frame {message.frame} of {message.video} is not in the object store;"
            " put it there again, or check that every node sees the same store",
            message.url,
        ) from error
