"""Commands that bring frames in, and the demo."""

from __future__ import annotations

from holdfast.extend.commands import LazyCommand

INGEST = LazyCommand(
    "holdfast.vision.commands.ingest:ingest",
    "Put videos' frames into the object store as JPEG, and a message for each into the queue.",
)
DEMO = LazyCommand(
    "holdfast.vision.demo:demo",
    "Track people in many videos on several nodes, kill one node, drain another, and compare the tracks with"
    " those of an undisturbed run.",
)
