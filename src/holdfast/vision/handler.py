"""The stream handler: fetch a frame, find what moves, follow it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast import Context, StreamHandler
from holdfast.errors import InvalidMessage
from holdfast.vision.detector import Background, Detection, Detector
from holdfast.vision.jpeg import decode_cells, decode_image
from holdfast.vision.tracker import Track, Tracker, Tracks


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
    in_bucket = "url" not in message and ("s3_key" in message or "s3_bucket" in message)
    try:
        if not in_bucket:
            return msgspec.convert(message, Frame)
        place = msgspec.convert(message, BucketFrame)
    except msgspec.ValidationError as error:
        wanted = "s3_bucket and s3_key" if in_bucket else "url, or s3_bucket and s3_key"
        raise InvalidMessage(f"the message is no frame, which has {wanted}: {error}") from error
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
        _check_size(message, (width, height), (detector.width, detector.height))
        return _result(message, self._watch.tracker.update(message.frame, detector.detect(cells)))

    def snapshot(self) -> bytes:
        """Return what was learnt of the background, and the tracks; empty before the first frame."""
        if self._watch is None:
            return b""
        run, detector, tracker = self._watch
        return msgspec.msgpack.encode(_State(run, detector.snapshot(), tracker.snapshot()))


class ImageDetector(Protocol):
    """A detector without state, such as :class:`~holdfast.vision.onnx.OnnxDetector`."""

    def detect(self, image: NDArray[np.uint8]) -> Sequence[Detection]:
        """Objects in an RGB image of shape (height, width, 3)."""


class _Following(NamedTuple):
    run: int
    size: tuple[int, int]
    tracker: Tracker


class _FollowingState(msgspec.Struct, frozen=True, array_like=True):
    run: int
    size: tuple[int, int]
    tracks: Tracks


class ModelTracking(StreamHandler[Frame]):
    """Tracks what a model finds: the one that the app declares as ``detector``, an :class:`ImageDetector`.

    Results are those of :class:`Tracking`. A subclass may name another model.
    """

    version = 1
    model: ClassVar[str] = "detector"

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue from state, bit for bit, or begin."""
        self._detector: ImageDetector = context.model(self.model)
        self._following: _Following | None = None
        if state:
            saved = msgspec.msgpack.decode(state, type=_FollowingState)
            self._following = _Following(saved.run, saved.size, Tracker.restore(saved.tracks))

    def process(self, message: Frame, context: Context) -> dict[str, Any]:
        """Track one frame. Raises as :class:`Tracking` does."""
        image = decode_image(_fetch(message, context), _name(message))
        size = image.shape[1], image.shape[0]
        if self._following is None or self._following.run != message.run:
            self._following = _Following(message.run, size, Tracker())
        _check_size(message, size, self._following.size)
        return _result(message, self._following.tracker.update(message.frame, self._detector.detect(image)))

    def snapshot(self) -> bytes:
        """The tracks."""
        if self._following is None:
            return b""
        run, size, tracker = self._following
        return msgspec.msgpack.encode(_FollowingState(run, size, tracker.snapshot()))


def _result(message: Frame, tracks: Sequence[Track]) -> dict[str, Any]:
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


def _check_size(message: Frame, size: tuple[int, int], known: tuple[int, int]) -> None:
    if size != known:
        raise InvalidMessage(
            f"frame {_name(message)} has {size[0]}x{size[1]} pixels, but run {message.run} of"
            f" {message.video} has {known[0]}x{known[1]}; send frames of another size as a new run",
            field="url",
        )


def _name(message: Frame) -> str:
    """Return the name of a frame in errors: its URL, unless that holds the whole frame."""
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
