"""Commands that bring frames in."""

from __future__ import annotations

from holdfast.extend.commands import LazyCommand

INGEST = LazyCommand(
    "holdfast.vision.commands.ingest:ingest",
    "Put videos' frames into the object store as JPEG, and a message for each into the queue.",
)
