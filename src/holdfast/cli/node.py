"""``holdfast node``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
"""Exit codes of a node that isn't started again."""

GARBAGE = (50_000, 20, 50)
"""Thresholds of Python's garbage collector. A node makes almost no cycles, but holds thousands of messages:
with the default thresholds, collecting takes a fifth of its time."""

ENDING_S = 5.0
"""Seconds that a node's end may take after its drain."""


def run(
    app: str,
    /,
    *,
    name: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    slots: int | None = None,
    nodes: int | None = None,
    console: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run a node until SIGTERM or Ctrl-C. It then moves its streams to other nodes and ends. A second
    signal ends it at once; nothing is lost.

    With --nodes, run several nodes, each in a process, and restart a node that dies. The nodes end with the
    process that started them.

    ```
    holdfast node myproject.streams:app
    holdfast node myproject.streams:app --slots 4 --port 8300
    holdfast node myproject.streams:app --nodes 3
    ```

    Args:
        app: The app, MODULE:NAME; the working directory is searched too.
        name: The node's name, for people (setting node_name).
        host: Address to listen on (setting host).
        port: Port to listen on (setting port).
        advertise: Address at which other nodes reach this one (setting advertise).
        slots: Child processes that run handlers (setting slots), for each node. By default the nodes
            share the cores.
        nodes: Number of nodes to run and keep running.
        console: Also serve the console on this machine, as `holdfast console` does.
    """
    import structlog  # noqa: PLC0415
    import uvloop  # noqa: PLC0415

    from holdfast.config.sources import explain  # noqa: PLC0415

    config = options.load(node_name=name, host=host, port=port, advertise=advertise, slots=slots)
    if older := {
        setting.name: setting.source for setting in explain(config) if legacy_names.is_legacy(setting.source)
    }:
        structlog.get_logger().info("older setting names used", **older)
    if nodes is None:
        return uvloop.run(serve(app, config, with_console=console))
    return uvloop.run(supervise(app, config, nodes, options, with_console=console))


async def serve(place: str, config: Config, *, with_console: bool = False) -> int:
    """Run one node of the app at ``place`` until a signal or a crash; returns the exit code."""
    import structlog  # noqa: PLC0415

    asked, over = signals()
    config = with_own_name(config)
    keep_log(config)
    bound = structlog.get_logger().bind(node=config.node_name)
    config = await discovered(config, lambda: load_app(place).name)
    async with Services(config) as services, beside(services, bound, wanted=with_console):
        node = make_node(services, place)
        for missing in await look_for_queues(services, load_app(place)):
            bound.warning("queue missing", error=missing)
        if trouble := await _look_at_state(services):
            bound.warning("state store unavailable", error=trouble)
        await _log_risks(services, bound)
        crashed = node.host.crashed
        crashed.add_done_callback(lambda _: over.set())
        drained = asyncio.create_task(node.host.drain_requested.wait())
        drained.add_done_callback(lambda _: asked.set())
        try:
            ended = await done_before(_live(node, asked, bound), over)
        finally:
            drained.cancel()
            node.abandon()
            if crashed.done():
                bound.error("node crashed", exc_info=crashed.result())
        if crashed.done():
            return exits.FAILED
        return exits.OK if ended else exits.INTERRUPTED


def keep_log(config: Config) -> None:
    """Write the log of this process to its own file if the settings say so. Raises ConfigError."""
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
            f"log_dir is {config.log_dir!r}, but no file can be written there: {error}"
        ) from None
    log.write_to_file(file)


async def _look_at_state(services: Services) -> str:
    """Raise ConfigError if the state store refuses this node, which else would notice only with its first
    message. Returns the error of a store that is unavailable."""
    try:
        await services.state().results(0, 1)
    except ConfigError as error:
        raise ConfigError(f"state_url is {redact_url(services.config.state_url)!r}: {error}") from None
    except HoldfastError as error:
        return str(error)
    return ""


async def _log_risks(services: Services, log: Any) -> None:
    """Log settings of servers by which the state store may lose commits, or the queue messages."""
    with contextlib.suppress(HoldfastError):  # an unavailable store was logged already
        for setting, risk in await services.risks():
            found = {"server": risk.server, "risk": risk.text, "fix": risk.fix}
            if setting == "queue_url":
                log.warning("queue may lose messages", **found)
            else:
                log.warning("state store may lose commits", **found)


@contextlib.asynccontextmanager
async def beside(services: Services, log: Any, *, wanted: bool) -> AsyncIterator[None]:
    """Run a console beside the block if it is ``wanted``. Its crash doesn't end nodes."""
    if not wanted:
        yield
        return
    from holdfast.cli import console  # noqa: PLC0415

    running = await console.start_beside(services, log)
    running.host.crashed.add_done_callback(
        lambda crashed: log.error("console beside nodes crashed", exc_info=crashed.result())
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
    for name, port in (("port", config.port), ("metrics_port", config.metrics_port)):
        if count > 1 and port:
            raise ConfigError(
                f"{name} is {port} and --nodes is {count}: nodes can't share a port; leave {name} at 0, which"
                " takes a free one for each, or run the nodes one by one"
            )
    asked, over = signals()
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
        await first_of(asked.wait(), nodes.ended.wait())
        await first_of(nodes.stop(), over.wait())
        nodes.kill()
        await nodes.ended.wait()
    return exits.INTERRUPTED if over.is_set() else max(map(abs, nodes.codes.values()), default=exits.FAILED)


def with_own_name(config: Config) -> Config:
    """Return the config of one node. A default name gets a random suffix, so that it is unique on the
    host."""
    if "node_name" in config.model_fields_set:
        return config
    return config.model_copy(update={"node_name": f"{config.node_name}-{secrets.token_hex(2)}"})


def share_slots(config: Config, count: int) -> Config:
    """Return the config of each of ``count`` nodes: they share the default slots of one."""
    shared = {"slots": config.slots, "task_slots": config.task_slots}
    each = {
        name: max(1, value // count) for name, value in shared.items() if name not in config.model_fields_set
    }
    return config.model_copy(update=each)


def signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return two events: the first signal to end sets one, the second signal the other."""
    asked, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: over.set() if asked.is_set() else asked.set())
    return asked, over


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Return when one of ``works`` has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


async def done_before(work: Coroutine[Any, Any, Any], over: asyncio.Event) -> bool:
    """Return True once ``work`` is done. If ``over`` is set before, cancel it and return False."""
    working, cut = asyncio.ensure_future(work), asyncio.ensure_future(over.wait())
    await asyncio.wait((working, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.wait((working,))
    return False


async def _live(node: Node, asked: asyncio.Event, bound: Any) -> None:
    """Run a node until it is ``asked`` to end."""
    starting = asyncio.ensure_future(node.start())
    asking = asyncio.ensure_future(asked.wait())
    await asyncio.wait((starting, asking), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await asyncio.wait((starting,), timeout=ENDING_S)
    asking.cancel()
    if not starting.done():
        starting.cancel()
        bound.warning("node ended before joining")
        return
    starting.result()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    bound.info("node runs")
    await asked.wait()
    bound.info("node drains")
    await node.stop()
    bound.info("node ended")
