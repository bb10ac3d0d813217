"""Commands that look after outboxes and devices."""

from __future__ import annotations

from holdfast.extend.commands import LazyCommand

DEVICES = LazyCommand(
    "holdfast.devices.commands.devices:app",
    "Show the devices that take commands from an outbox, and what they do.",
)
OUTBOX = LazyCommand(
    "holdfast.devices.commands.outbox:app",
    "See how commands to devices stand, try them again, take them back; pause, resume, abort.",
)
