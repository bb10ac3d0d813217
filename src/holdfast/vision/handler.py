"""The stream handlers: fetch a frame, detect objects, track them."""

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
    """The other form of message, for frames that another program has put into S3. Its ``video_id`` and
    ``frame_id`` are the stream's key and seq; its other fields (``message_id``, ``timestamp``) are
    ignored."""

    s3_bucket: str
    s3_key: str


def frame_of(message: dict[str, Any], context: Context) -> Frame:
    """Return the frame of a message of either form. Raises InvalidMessage."""
    in_bucket = "url" not in message and ("s3_key" in message or "s3_bucket" in message)
    try:
        if not in_bucket:
            return msgspec.convert(message, Frame)
        place = msgspec.convert(message, BucketFrame)
    except msgspec.ValidationError as error:
        wanted = "s3_bucket and s3_key" if in_bucket else "url, or s3_bucket and s3_key"
        raise InvalidMessage(f"the message isn't a frame, which has {wanted}: {error}") from error
    url = f"s3://{place.s3_bucket}/{quote(place.s3_key)}"
    return Frame(context.key, context.run, context.seq, 0, url)


class _Run(NamedTuple):
    number: int
    size: tuple[int, int]
    detector: ImageDetector
    tracker: Tracker


class ImageDetector(Protocol):
    """A detector, such as :class:`~holdfast.vision.onnx.OnnxDetector`."""

    def detect(self, image: NDArray[np.uint8], /) -> Sequence[Detection]:
        """Return the objects in an image."""


class _TrackingHandler(StreamHandler[Frame]):
    """Tracks the objects that a detector finds in the frames of one camera."""

    version = 1
    _run: _Run | None = None

    def process(self, message: Frame, context: Context) -> dict[str, Any]:
        """Track one frame.

        Raises FileNotFoundError for a missing frame, and InvalidMessage for one that isn't a whole image or
        has another size than the run's first. Both name its URL.
        """
        size, image = self._decode(_fetch(message, context), _name(message))
        run = self._run
        if run is None or run.number != message.run:
            run = self._run = _Run(message.run, size, self._detector(size), Tracker())
        _check_size(message, size, run.size)
        return _result(message, run.tracker.update(message.frame, run.detector.detect(image)))

    def _decode(self, data: bytes, name: str) -> tuple[tuple[int, int], NDArray[np.uint8]]:
        raise NotImplementedError

    def _detector(self, size: tuple[int, int]) -> ImageDetector:
        raise NotImplementedError


class _State(msgspec.Struct, frozen=True, array_like=True):
    run: int
    background: Background
    tracks: Tracks


class Tracking(_TrackingHandler):
    """Tracks moving objects in front of one fixed camera.

    The result of a frame is ``{video, run, frame, tracks: [{id, box: [left, top, right, bottom], score}]}``,
    with boxes in pixels, and ids that count from 1 in each run. A run begins with an empty background, so its
    results follow from its frames alone.
    """

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue from ``state``, bit for bit, or begin."""
        if state:
            saved = msgspec.msgpack.decode(state, type=_State)
            detector = Detector.restore(saved.background)
            size = detector.width, detector.height
            self._run = _Run(saved.run, size, detector, Tracker.restore(saved.tracks))

    def snapshot(self) -> bytes:
        """Return the background and the tracks; empty before the first frame."""
        if self._run is None:
            return b""
        detector = self._run.detector
        assert isinstance(detector, Detector)
        tracks = self._run.tracker.snapshot()
        return msgspec.msgpack.encode(_State(self._run.number, detector.snapshot(), tracks))

    def _decode(self, data: bytes, name: str) -> tuple[tuple[int, int], NDArray[np.uint8]]:
        width, height, cells = decode_cells(data, name)
        return (width, height), cells

    def _detector(self, size: tuple[int, int]) -> ImageDetector:
        return Detector(*size)


class _ModelState(msgspec.Struct, frozen=True, array_like=True):
    run: int
    size: tuple[int, int]
    tracks: Tracks


class ModelTracking(_TrackingHandler):
    """Tracks the objects that a model finds: the :class:`ImageDetector` that the app declares as
    ``detector``. It keeps no state, and gets RGB images of shape (height, width, 3).

    Results have the form of :class:`Tracking`. A subclass may name another model.
    """

    model: ClassVar[str] = "detector"

    def open(self, context: Context, state: bytes | None) -> None:
        """Continue from ``state``, bit for bit, or begin."""
        self._model: ImageDetector = context.model(self.model)
        if state:
            saved = msgspec.msgpack.decode(state, type=_ModelState)
            self._run = _Run(saved.run, saved.size, self._model, Tracker.restore(saved.tracks))

    def snapshot(self) -> bytes:
        """Return the tracks; empty before the first frame."""
        if self._run is None:
            return b""
        return msgspec.msgpack.encode(
            _ModelState(self._run.number, self._run.size, self._run.tracker.snapshot())
        )

    def _decode(self, data: bytes, name: str) -> tuple[tuple[int, int], NDArray[np.uint8]]:
        image = decode_image(data, name)
        return (image.shape[1], image.shape[0]), image

    def _detector(self, size: tuple[int, int]) -> ImageDetector:
        return self._model


def _result(message: Frame, tracks: Sequence[Track]) -> dict[str, Any]:
    return {
        "video": message.video,
        "run": message.run,
        "frame": message.frame,
        "tracks": [
            {"id": track.id, "box": [round(side, 1) for side in track.box], "score": round(track.score, 2)}
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
    """Return a frame's name for errors: its URL, unless that holds the whole frame."""
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
