"""``holdfast node``."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated, Any

import structlog
import uvloop
from cyclopts import Parameter

from holdfast.cli import exits
from holdfast.cli.options import DEFAULTS, Options
from holdfast.config import Config
from holdfast.runtime.node import Node
from holdfast.wiring import Services, make_node

log = structlog.get_logger()


def run(
    app: str,
    /,
    *,
    name: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    slots: Annotated[int | None, Parameter(show_default=False)] = None,
    options: Options = DEFAULTS,
) -> int:
    """Run a node until it is told to stop (SIGTERM, Ctrl-C): it then brings its streams to other nodes and
    ends. A second signal ends it at once, which loses nothing.

    ```
    holdfast node myproject.streams:app
    holdfast node myproject.streams:app --slots 4 --port 8300
    ```

    Args:
        app: The app, MODULE:NAME, found from the working directory too.
        name: The node's name, for people (setting node_name).
        host: Address to listen on (setting host).
        port: Port to listen on (setting port).
        advertise: Where other nodes reach this one (setting advertise).
        slots: Child processes that run handlers (setting slots).
    """
    config = options.load(node_name=name, host=host, port=port, advertise=advertise, slots=slots)
    return uvloop.run(serve(app, config))


async def serve(place: str, config: Config) -> int:
    """Run one node of the app at ``place`` until a signal or a crash; returns the exit code."""
    told, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: over.set() if told.is_set() else told.set())
    bound = log.bind(node=config.node_name)
    async with Services(config) as services:
        node = make_node(services, place)
        crashed = node.host.crashed
        crashed.add_done_callback(lambda _: over.set())
        living, cut = asyncio.create_task(_live(node, told, bound)), asyncio.create_task(over.wait())
        await asyncio.wait((living, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        node.abandon()
        if crashed.done():
            bound.error("node crashed", exc_info=crashed.result())
        if living.done():
            living.result()
            return exits.FAILED if crashed.done() else exits.OK
        living.cancel()
        await asyncio.wait((living,))
        return exits.FAILED if crashed.done() else exits.INTERRUPTED


async def _live(node: Node, told: asyncio.Event, bound: Any) -> None:
    await node.start()
    bound.info("node runs")
    await told.wait()
    bound.info("node drains")
    await node.stop()
    bound.info("node ended")
