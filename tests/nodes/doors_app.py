"""An app whose terminals take commands, and whose nodes' clock and disk a test may set."""

import os
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, event, update

from holdfast import App
from holdfast.devices.rules.device_queue import Patience, StoredCommand
from holdfast.devices.rules.presence import PresenceRules
from holdfast.system.clock import SystemClock

RETRY_S = 1.0
MAX_TRIES = 40
LOOK_S = 0.05

app = App("chaos")
doors = app.outbox(
    "doors",
    shards=int(os.environ.get("CHAOS_SHARDS", "4")),
    patience=Patience(retry_s=RETRY_S, retry_max_s=RETRY_S, max_tries=MAX_TRIES, probe_s=2.0),
    presence=PresenceRules(offline_after_s=4.0),
    expires_in_s=None,
)

business = MetaData()
change = Table(
    "change",
    business,
    Column("id", Integer, primary_key=True),
    Column("device", String(20), nullable=False),
    Column("told", Integer, nullable=False, default=0),
    Column("command", Integer),
    Column("state", String(20)),
)
"""What the business wants. ``told`` counts how often it was notified of the result."""


@doors.on_result
def told(db: Any, command: StoredCommand) -> None:
    """Note the end of a command, in the transaction that closes it."""
    number = int(command.trace_id)
    values = {"told": change.c.told + 1, "command": command.id, "state": command.state.value}
    assert db.execute(update(change).where(change.c.id == number).values(values)).rowcount == 1


class SetClock:
    """The wall clock of all nodes, set by as many seconds as a file says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._looks_at = 0.0
        self._offset_s = 0.0

    def wall(self) -> float:
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + LOOK_S
            if self._file.exists():
                self._offset_s = float(self._file.read_text() or "0")
        return time.time() + self._offset_s


def fill_where_told(place: Path) -> None:
    """Have no room in SQLite's file for more than is in it, while there is a file ``disk-full``."""

    def limit(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            full = (place / "disk-full").exists()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {1 if full else 1 << 30}")

    event.listen(Engine, "begin", limit)


if "CHAOS_PLACE" in os.environ:
    shared = Path(os.environ["CHAOS_PLACE"]).parent
    clock = SetClock(shared / "clock")
    SystemClock.wall = staticmethod(clock.wall)
    fill_where_told(shared)
