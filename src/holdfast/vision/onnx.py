"""A detector that runs your network from an ONNX file, with onnxruntime. Needs the extra ``onnx``.

It is costly, so declare it as a model::

    app.model("detector", partial(OnnxDetector, "people.onnx", classes=(0,)), memory_mb=300)

and let :class:`~holdfast.vision.handler.ModelTracking` track its objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.errors import ConfigError
from holdfast.vision.boxes import Box
from holdfast.vision.detector import Detection
from holdfast.vision.layouts import Layout, candidates, check_layout, suppress

GREY = 114
"""Level of the padding around the image, as in the training of such networks."""

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class _Input(NamedTuple):
    name: str
    type: Any
    width: int
    height: int


class OnnxDetector:
    """Finds objects in images, with a network that takes (1, 3, height, width): one RGB image, in 0..1.

    It has no state: all streams of a slot share it. It runs on one thread, as a node has a slot for each
    core. The same file and frames give the same detections on machines of one kind.

    Args:
        path: the ONNX file, with its weights. Each node needs it.
        digest: the file's SHA-256 in hexadecimal; another file is refused. By default any file is accepted.
        layout: the output's layout; see :mod:`~holdfast.vision.layouts`.
        size: (width, height) of the input, for a network that takes any size.
        classes: numbers of the reported classes; by default all.
        score_min: the lowest reported score, in 0..1.
        iou_max: of boxes of one class that overlap by more, only the one with the highest score is reported.
        detections_max: the limit of detections of a frame.
        providers: of onnxruntime, best first.

    Raises ConfigError, with the remedy, for a missing or unsuitable file.
    """

    def __init__(
        self,
        path: str | Path,
        digest: str = "",
        *,
        layout: Layout = "columns",
        size: tuple[int, int] | None = None,
        classes: tuple[int, ...] = (),
        score_min: float = 0.25,
        iou_max: float = 0.45,
        detections_max: int = 100,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        self._layout = layout
        self._classes = classes
        self._score_min = score_min
        self._iou_max = iou_max
        self._detections_max = detections_max
        self._session = _session(_read(Path(path), digest), path, providers)
        try:
            self._input = _input(self._session, size)
            check_layout(layout, self._try().shape)
        except ConfigError as error:
            raise ConfigError(f"model file {path}: {error}") from None

    def detect(self, image: NDArray[np.uint8], /) -> list[Detection]:
        """Return the objects in an RGB image of shape (height, width, 3), highest score first, with boxes in
        its pixels."""
        height, width = image.shape[:2]
        scale = min(self._input.width / width, self._input.height / height)
        inner = max(1, round(width * scale)), max(1, round(height * scale))
        left, top = (self._input.width - inner[0]) // 2, (self._input.height - inner[1]) // 2
        frame = self._empty()
        frame[top : top + inner[1], left : left + inner[0]] = _resized(image, inner)
        found = candidates(self._layout, self._run(frame), self._score_min)
        if self._classes:
            found = found.take(np.isin(found.classes, self._classes))
        if self._layout != "final":
            found = suppress(found, self._iou_max)
        boxes = (found.boxes - (left, top, left, top)) / scale
        boxes = np.clip(boxes, 0, (width, height, width, height))
        whole = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        order = np.argsort(-found.scores[whole], kind="stable")[: self._detections_max]
        return [
            Detection(cast("Box", tuple(map(float, box))), min(float(score), 1.0))
            for box, score in zip(boxes[whole][order], found.scores[whole][order], strict=True)
        ]

    def _try(self) -> NDArray[np.generic]:
        try:
            return self._run(self._empty())
        except Exception as error:  # noqa: BLE001 - what onnxruntime raises has no base of its own
            size = f"{self._input.width}x{self._input.height}"
            raise ConfigError(
                f"the network fails with an image of {size}: {error}; choose a size that it takes,"
                " or export it again"
            ) from None

    def _empty(self) -> NDArray[np.uint8]:
        return np.full((self._input.height, self._input.width, 3), GREY, np.uint8)

    def _run(self, frame: NDArray[np.uint8]) -> NDArray[np.generic]:
        planes = np.ascontiguousarray(frame.transpose(2, 0, 1)[None]).astype(self._input.type)
        outputs = self._session.run(None, {self._input.name: planes / self._input.type(255)})
        return np.asarray(outputs[0])


def _read(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"no model file {path} (the working folder is {Path.cwd()});"
            " put it on every node, or correct its path"
        ) from None
    except OSError as error:
        raise ConfigError(f"model file {path} can't be read: {error.strerror}; correct that") from None
    found = hashlib.sha256(data).hexdigest()
    if digest and found != digest.lower():
        raise ConfigError(
            f"model file {path} has the digest {found}, not {digest}: it is damaged, or another file;"
            " copy the right one here, or correct the digest"
        )
    return data


def _session(data: bytes, path: str | Path, providers: Sequence[str]) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(
            f"an ONNX model needs the extra 'onnx' ({error}): pip install 'holdfast-streams[onnx]'"
        ) from None
    unknown = set(providers) - set(onnxruntime.get_available_providers())
    if unknown:
        raise ConfigError(
            f"onnxruntime has no provider {', '.join(sorted(unknown))} here; it has"
            f" {', '.join(onnxruntime.get_available_providers())}: install the onnxruntime that brings it"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors are raised; warnings about the export don't help its user
    try:
        return onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # noqa: BLE001 - what onnxruntime raises has no base of its own
        raise ConfigError(
            f"model file {path} can't be loaded by onnxruntime {onnxruntime.__version__}:"
            f" {error}; export it again, weights in the same file"
        ) from None


def _input(session: Any, size: tuple[int, int] | None) -> _Input:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs)
        raise ConfigError(
            f"the network has {len(inputs)} inputs ({names}); export one that takes an image alone"
        )
    (only,) = inputs
    # A side of any length is a name, or None.
    shape = [side if isinstance(side, int) else None for side in only.shape]
    if only.type not in _TYPES or len(shape) != 4 or shape[0] not in (1, None) or shape[1] not in (3, None):
        raise ConfigError(
            f"the network's input {only.name!r} is {only.type} of shape {tuple(only.shape)}, not floats of"
            " shape (1, 3, height, width); export it for one RGB image, channels first"
        )
    height, width = shape[2:]
    wanted_width, wanted_height = size or (width, height)
    if wanted_width is None or wanted_height is None:
        raise ConfigError("the network takes images of any size; choose one with size=(width, height)")
    if wanted_width != (width or wanted_width) or wanted_height != (height or wanted_height):
        raise ConfigError(
            f"the network takes images of {width}x{height}, not of {wanted_width}x{wanted_height};"
            " leave size out"
        )
    return _Input(only.name, _TYPES[only.type], wanted_width, wanted_height)


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    if image.shape[:2] == (size[1], size[0]):
        return image
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
