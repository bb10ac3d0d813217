"""The app that the demo's nodes run."""

from __future__ import annotations

from holdfast import App
from holdfast.vision.handler import Frame, Tracking

STREAM = "frames"
PLACE = f"{__name__}:app"

app = App("demo")
app.stream(STREAM, message=Frame, key="video", seq="frame", run="run", first_seq=0)(Tracking)
