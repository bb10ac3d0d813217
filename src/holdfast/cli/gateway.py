"""``holdfast gateway``."""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog
import uvloop

from holdfast.cli import exits
from holdfast.cli.node import signals
from holdfast.cli.options import DEFAULTS, Options
from holdfast.config import Config
from holdfast.wiring import Services, make_gateway

log = structlog.get_logger()


def gateway(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    data_plane: Literal["python"] = "python",
    options: Options = DEFAULTS,
) -> int:
    """Run a gateway: clients send `POST /process/STREAM_ID`, and it brings each request to the node that owns
    that stream. Run as many as you like; they keep nothing.

    ```
    holdfast gateway --port 8080
    curl -H "X-Seq: 0" -H "Content-Type: image/jpeg" --data-binary @frame.jpg localhost:8080/process/cam-1
    ```

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        data_plane: What moves the bytes.
    """
    return uvloop.run(serve(options.load(), host, port))


async def serve(config: Config, host: str, port: int) -> int:
    """Run a gateway until a signal or a crash; returns the exit code."""
    told, over = signals()
    async with Services(config) as services:
        running = make_gateway(services, host, port)
        running.crashed.add_done_callback(lambda _: told.set())
        await running.start()
        log.info("gateway runs", address=running.address)
        await told.wait()
        if running.crashed.done():
            log.error("gateway crashed", exc_info=running.crashed.result())
        stopping, cut = asyncio.create_task(running.stop()), asyncio.create_task(over.wait())
        await asyncio.wait((stopping, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if not stopping.done():
            stopping.cancel()
            return exits.INTERRUPTED
        stopping.result()
        log.info("gateway ended")
        return exits.FAILED if running.crashed.done() else exits.OK
