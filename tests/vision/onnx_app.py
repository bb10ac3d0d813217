"""An app whose detector is a network in the file that the environment names."""

import os
from functools import partial

from holdfast import App
from holdfast.vision.handler import Frame, ModelTracking
from holdfast.vision.onnx import OnnxDetector

app = App("bright")
app.model("detector", partial(OnnxDetector, os.environ["TEST_NETWORK"], score_min=0.9, classes=(0,)))
app.stream("frames", key="video", run="run", seq="frame", first_seq=0, message=Frame, models="detector")(
    ModelTracking
)
