"""``holdfast node``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.assembly.checks import look_for_queues
from holdfast.assembly.loading import load_app
from holdfast.assembly.node import make_node
from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Options
from holdfast.common.redaction import redact_url
from holdfast.config import legacy_names
from holdfast.errors import ConfigError, HoldfastError
from holdfast.system.files import access_for
from holdfast.tasks.opening import discovered
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.cluster.node import Node
    from holdfast.config.settings import Config

FINAL = (exits.OK, exits.USAGE, exits.INTERRUPTED)
"""Exit codes of a node that was told to end, or that another try can't help."""

GARBAGE = (50_000, 20, 50)
"""When Python looks for cycles. A node makes next to none, but holds thousands of messages: looked through as
often as by default they take a fifth of its time."""

ENDING_S = 5.0
"""What a node's end may take beyond its drain."""


def run(
    app: str,
    /,
    *,
    name: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    slots: Annotated[int | None, Parameter(show_default=False)] = None,
    nodes: Annotated[int | None, Parameter(show_default=False)] = None,
    console: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run a node until it is told to stop (SIGTERM, Ctrl-C): it then brings its streams to other nodes and
    ends. A second signal ends it at once, which loses nothing.

    With --nodes it runs so many nodes, each a process, and starts one anew when it dies. The nodes end with
    the process that started them.

    ```
    holdfast node myproject.streams:app
    holdfast node myproject.streams:app --slots 4 --port 8300
    holdfast node myproject.streams:app --nodes 3
    ```

    Args:
        app: The app, MODULE:NAME, found from the working directory too.
        name: The node's name, for people (setting node_name).
        host: Address to listen on (setting host).
        port: Port to listen on (setting port).
        advertise: Where other nodes reach this one (setting advertise).
        slots: Child processes that run handlers (setting slots); with --nodes, of each node. Without it the
            nodes share the cores.
        nodes: Run so many nodes and keep them running.
        console: Show the cluster in a browser too, on this machine, as `holdfast console` does.
    """
    import structlog  # noqa: PLC0415
    import uvloop  # noqa: PLC0415

    from holdfast.config.sources import explain  # noqa: PLC0415

    config = options.load(node_name=name, host=host, port=port, advertise=advertise, slots=slots)
    if older := {
        setting.name: setting.source for setting in explain(config) if legacy_names.is_legacy(setting.source)
    }:
        structlog.get_logger().info("older names count", **older)
    if nodes is None:
        return uvloop.run(serve(app, config, with_console=console))
    return uvloop.run(supervise(app, config, nodes, options, with_console=console))


async def serve(place: str, config: Config, *, with_console: bool = False) -> int:
    """Run one node of the app at ``place`` until a signal or a crash; returns the exit code."""
    import structlog  # noqa: PLC0415

    told, over = signals()
    config = with_own_name(config)
    keep_log(config)
    bound = structlog.get_logger().bind(node=config.node_name)
    config = await discovered(config, lambda: load_app(place).name)
    async with Services(config) as services, beside(services, bound, wanted=with_console):
        node = make_node(services, place)
        for missing in await look_for_queues(services, load_app(place)):
            bound.warning(missing)
        if trouble := await _look_at_state(services):
            bound.warning("the state store does not answer yet", error=trouble)
        await _tell_risks(services, bound)
        crashed = node.host.crashed
        crashed.add_done_callback(lambda _: over.set())
        drained = asyncio.create_task(node.host.drain_requested.wait())
        drained.add_done_callback(lambda _: told.set())
        living, cut = asyncio.create_task(_live(node, told, bound)), asyncio.create_task(over.wait())
        await asyncio.wait((living, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        drained.cancel()
        node.abandon()
        if crashed.done():
            bound.error("node crashed", exc_info=crashed.result())
        if living.done():
            living.result()
            return exits.FAILED if crashed.done() else exits.OK
        living.cancel()
        await asyncio.wait((living,))
        return exits.FAILED if crashed.done() else exits.INTERRUPTED


def keep_log(config: Config) -> None:
    """Keep the log of this process in a file of its own, if the settings say so. Raises ConfigError."""
    if not config.log_dir:
        return
    from holdfast.system import log  # noqa: PLC0415
    from holdfast.system.log_files import NodeLogFile  # noqa: PLC0415

    try:
        file = NodeLogFile(
            Path(config.log_dir),
            config.node_name,
            access_for(config.file_access),
            max_bytes=int(config.log_file_mb * 1e6),
            keep_s=config.log_keep_s,
        )
    except OSError as error:
        raise ConfigError(
            f"log_dir is {config.log_dir!r}, and no file can be written there: {error}"
        ) from None
    log.write_to_file(file)


async def _look_at_state(services: Services) -> str:
    """Raise ConfigError if the state store won't serve this node, who would notice only once there are
    messages; returns why it can't at present."""
    try:
        await services.state().results(0, 1)
    except ConfigError as error:
        raise ConfigError(f"state_url is {redact_url(services.config.state_url)!r}: {error}") from None
    except HoldfastError as error:
        return str(error)
    return ""


async def _tell_risks(services: Services, log: Any) -> None:
    """Say where the state store may forget what is committed, whose messages are deleted by then, and where
    the queue may forget messages."""
    with contextlib.suppress(HoldfastError):  # that it doesn't answer was said already
        for setting, risk in await services.risks():
            text = (
                "the queue may lose messages"
                if setting == "queue_url"
                else "the state store may lose commits"
            )
            log.warning(text, server=risk.server, risk=risk.text, fix=risk.fix)


@contextlib.asynccontextmanager
async def beside(services: Services, log: Any, *, wanted: bool) -> AsyncIterator[None]:
    """Run a console beside the block, if it is ``wanted``. Nodes outlive its crash."""
    if not wanted:
        yield
        return
    from holdfast.cli import console  # noqa: PLC0415

    running = await console.start_beside(services, log)
    running.host.crashed.add_done_callback(
        lambda crashed: log.error("the console crashed; nodes go on", exc_info=crashed.result())
    )
    output.remark(console.address_line(running))
    try:
        yield
    finally:
        await running.stop()


async def supervise(
    place: str, config: Config, count: int, options: Options, *, with_console: bool = False
) -> int:
    """Run ``count`` nodes of the app at ``place`` until a signal, or until all of them have ended; returns
    the exit code."""
    import structlog  # noqa: PLC0415

    from holdfast.cli.children import Launcher  # noqa: PLC0415
    from holdfast.cluster.supervisor import Supervisor  # noqa: PLC0415

    if count < 1:
        raise ConfigError(f"--nodes is {count}; run at least 1 node")
    if count > 1 and config.port:
        raise ConfigError(
            f"port is {config.port} and --nodes is {count}: nodes can't share a port; leave port at 0, which"
            " takes a free one for each, or run the nodes one by one"
        )
    if count > 1 and config.metrics_port:
        raise ConfigError(
            f"metrics_port is {config.metrics_port} and --nodes is {count}: nodes can't share a port; leave"
            " metrics_port at 0, which takes a free one for each, or run the nodes one by one"
        )
    told, over = signals()
    config = await discovered(config, lambda: load_app(place).name)
    names = [f"{config.node_name}-{number}" for number in range(1, count + 1)]
    keep_log(config)
    launcher = Launcher(["node", place, *options.file_arguments()], share_slots(config, count))
    log = structlog.get_logger().bind(node=config.node_name)
    async with Services(config) as services, beside(services, log, wanted=with_console):
        nodes = Supervisor(
            services.coordinator(),
            services.clock,
            launcher.node,
            names,
            log,
            final=FINAL,
            drain_timeout_s=config.drain_timeout_s + ENDING_S,
        )
        await nodes.start()
        await first_of(told.wait(), nodes.ended.wait())
        await first_of(nodes.stop(), over.wait())
        nodes.kill()
        await nodes.ended.wait()
    return exits.INTERRUPTED if over.is_set() else max(map(abs, nodes.codes.values()), default=exits.FAILED)


def with_own_name(config: Config) -> Config:
    """The config of one node; unless told, its name is not that of another node of the host."""
    if "node_name" in config.model_fields_set:
        return config
    return config.model_copy(update={"node_name": f"{config.node_name}-{secrets.token_hex(2)}"})


def share_slots(config: Config, count: int) -> Config:
    """The config of each of ``count`` nodes: together they take the slots that one would, unless told."""
    shared = {"slots": config.slots, "task_slots": config.task_slots}
    each = {
        name: max(1, value // count) for name, value in shared.items() if name not in config.model_fields_set
    }
    return config.model_copy(update=each)


def signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first signal to end, and by the second."""
    told, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: over.set() if told.is_set() else told.set())
    return told, over


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Return when one of ``works`` has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


async def _live(node: Node, told: asyncio.Event, bound: Any) -> None:
    starting = asyncio.ensure_future(node.start())
    asking = asyncio.ensure_future(told.wait())
    await asyncio.wait((starting, asking), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await asyncio.wait((starting,), timeout=ENDING_S)
    asking.cancel()
    if not starting.done():
        starting.cancel()
        bound.warning("node ended before it could join")
        return
    starting.result()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    bound.info("node runs")
    await told.wait()
    bound.info("node drains")
    await node.stop()
    bound.info("node ended")
