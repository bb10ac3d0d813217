"""``holdfast devices``: the devices of an app's outboxes."""

from __future__ import annotations

from cyclopts import App

from holdfast.cli.simulate import simulate

app = App(name="devices", help="Devices that take commands.")
app.command(simulate)
