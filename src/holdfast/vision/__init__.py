"""Batteries for video: ingest, detect, track and show. Needs the extra ``vision``.

The public names: ``from holdfast import vision``, then ``vision.Tracking``.
"""

from typing import TYPE_CHECKING

from holdfast.extend import exports

if TYPE_CHECKING:
    from holdfast.vision.handler import Frame, ModelTracking, Tracking, frame_of
    from holdfast.vision.onnx import OnnxDetector
else:  # OnnxDetector needs the extra ``onnx``.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.vision.handler": "Frame ModelTracking Tracking frame_of",
            "holdfast.vision.onnx": "OnnxDetector",
        },
    )

__all__ = [
    "Frame",
    "ModelTracking",
    "OnnxDetector",
    "Tracking",
    "frame_of",
]
