"""One worker that delivers a file, and may be killed on the way.

Arguments: a JSON file with the destination's URL, the credential, where the record is kept, and ``kill_at``:
the step (a note, or a piece that is sent) at which the process ends itself as SIGKILL would, 0 for none.
Prints the outcome.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.reports import deliver as delivering
from holdfast.reports import deliver_pipe, deliver_plan
from holdfast.reports.assembly import open_sink
from holdfast.reports.deliver_credentials import Credential
from holdfast.reports.deliver_plan import Companion, FileToDeliver, Record
from holdfast.reports.ports.sink import Sink
from holdfast.system.clock import SystemClock

BODY = b"".join(hashlib.sha256(str(n).encode()).digest() * 2048 for n in range(20))
CHUNK = 1 << 16
PARCEL = FileToDeliver(name="out/daily.csv", content="v1", companions=(Companion.OK,))


def small_steps() -> None:
    """Marks so close that a small file has several."""
    deliver_plan.MARK_BYTES = 4 * CHUNK
    deliver_pipe.PIECE_BYTES = CHUNK
    delivering.NOTE_S = 0.0


def chunks() -> Iterator[bytes]:
    for at in range(0, len(BODY), CHUNK):
        yield BODY[at : at + CHUNK]


def known(kept: Path) -> Record | None:
    return msgspec.json.decode(kept.read_bytes(), type=Record) if kept.exists() else None


async def main(order: dict[str, object]) -> None:
    steps = 0
    kept = Path(str(order["record"]))
    record = known(kept)

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == order["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    async def note(record: Record) -> None:
        step()
        kept.write_bytes(msgspec.json.encode(record))  # noqa: ASYNC240 (a few bytes)
        step()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Sink]:
        sink = open_sink(str(order["url"]), msgspec.convert(order["credential"], Credential), SystemClock())
        try:
            yield sink
        finally:
            await sink.close()

    done = await delivering.deliver_file(
        PARCEL, chunks, connect, SystemClock(), record=record, note=note, progress=lambda _: step()
    )
    print(json.dumps({"steps": steps, "duplicated": done.duplicated, "gone_on": done.gone_on}))  # noqa: T201


if __name__ == "__main__":
    small_steps()
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
