"""A process that takes turns with an outbox and answers for its devices, until it is killed.

Arguments: the database's URL. The business counts in a table of its own how often each result was applied.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from sqlalchemy import text

from holdfast.devices.rules.device_queue import Patience, StoredCommand
from holdfast.devices.rules.device_turn import CommandAnswer, TurnRequest
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import Fenced
from holdfast.system.clock import SystemClock

APPLY = text(
    "INSERT INTO applied (command, times) VALUES (:command, 1)"
    " ON CONFLICT (command) DO UPDATE SET times = applied.times + 1"
)


def on_result(db: Any, entry: StoredCommand) -> None:
    """Count."""
    db.execute(APPLY, {"command": entry.id})


async def main(url: str) -> None:
    """Take over, and take turns."""
    clock = SystemClock()
    store = SqlOutbox(url, clock)
    epoch = (await store.epochs("doors"))[0]
    epoch = await store.open("doors", 0, epoch, "turner")
    heard: list[CommandAnswer] = []
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while True:
        request = TurnRequest(
            outbox="doors",
            shards=1,
            grants={0: epoch},
            sendable=[0],
            now=clock.wall(),
            patience=Patience(retry_s=0.05, retry_max_s=0.05, max_tries=1_000_000),
            answers=heard,
            sweep=True,
            limit=7,
        )
        try:
            result = await store.take_turn(request, on_result)
        except Fenced:
            return
        if result.lost:
            return
        heard = [CommandAnswer(sending.device, sending.correlation, b"ok") for sending in result.sendings]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
