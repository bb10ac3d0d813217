"""An app whose handler sends a command to a device and orders a report."""

import os
from pathlib import Path
from typing import Any

from holdfast import App, Context, StreamHandler
from holdfast.devices.rules.device_queue import StoredCommand
from holdfast.reports import publish_reports

PLACE = Path(os.environ.get("TRACED_PLACE", "."))

app = App("shop")
doors = app.outbox("doors", briefs="ends")
publish_reports(app, preload=["http"])


@doors.on_result
def told(db: Any, command: StoredCommand) -> None:
    """Note the place of a command that has ended."""
    (PLACE / "told").write_text(command.traceparent)


@app.stream("frames", key="key")
class Frames(StreamHandler[dict[str, Any]]):
    """Opens a door, and reports it to its requester."""

    def process(self, message: dict[str, Any], context: Context) -> None:
        context.send("doors", {"open": True}, key="door-1")
        context.send("report.publish", message["order"], key="")
