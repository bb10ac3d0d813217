"""Commands that look after outboxes and devices."""

from __future__ import annotations

from holdfast.extend.commands import LazyCommand

DEVICES = LazyCommand(
    "holdfast.devices.commands.devices:app",
    "Show the devices of an outbox, and why their commands wait.",
)
OUTBOX = LazyCommand(
    "holdfast.devices.commands.outbox:app",
    "List commands to devices, retry and cancel them; pause, resume, abort.",
)
