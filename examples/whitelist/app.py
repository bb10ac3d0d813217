"""What a node runs: it sends the office's commands to the terminals, and their answers to the office.

holdfast node examples.whitelist.app:app
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import update
from sqlalchemy.orm import Session

from examples.whitelist.tables import Entry
from holdfast import App, devices

app = App("whitelist")

faces = app.outbox(
    "faces",
    dialect=devices.JsonDialect(result_field="code", success=(200,)),
    patience=devices.Patience(retry_s=1.0, retry_max_s=4.0, max_tries=20, probe_s=3.0),
    presence=devices.PresenceRules(offline_after_s=6.0),
)


class Order(msgspec.Struct):
    """A command to a terminal: what happens to one person there."""

    operator: str
    person: str
    version: int
    name: str = ""


def send_command(db: Session, entry: Entry) -> None:
    """Have the terminal do as the office has just decided, once that is committed."""
    operator = "EditPerson" if entry.wanted else "DeletePerson"
    order = Order(operator, entry.person, entry.version, entry.name)
    faces.add(db, device=entry.terminal, command=order, supersede_key=entry.person)


@faces.on_result
def answered(db: Any, command: devices.StoredCommand) -> None:
    """Runs in the transaction that closes the command, once for each, whatever crashes when."""
    if command.state is not devices.CommandState.ACKNOWLEDGED:
        return  # superseded by a newer one; or failed, and the office's list of what is pending shows it
    order = msgspec.json.decode(command.body, type=Order)
    change = update(Entry).where(Entry.terminal == command.device, Entry.person == order.person)
    db.execute(change.where(Entry.agreed < order.version).values(agreed=order.version))
