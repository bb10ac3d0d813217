"""``holdfast dev``: a node whose code is replaced whenever a file is saved.

Only a new process has all of the new code, because modules keep what they have imported from each other. So
each save starts a new node. When it has joined, the node before moves its streams there and ends. Code that
doesn't load ends only the node that should run it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.assembly.loading import load_app
from holdfast.cli import exits, output
from holdfast.cli.node import ENDING_S, FINAL, beside, first_of, keep_log, signals
from holdfast.cli.options import DEFAULTS, Options
from holdfast.errors import ConfigError, HoldfastError
from holdfast.system.clock import SystemClock
from holdfast.tasks.opening import discovered
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.cli.changes import ProjectFiles
    from holdfast.cli.children import Launcher
    from holdfast.cluster.supervisor import Supervisor
    from holdfast.config.settings import Config

JOINED_CHECK_S = 0.1
"""Seconds between two checks whether a new node has joined."""

FRESH_SOURCES = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Byte code is matched to its source by size and second, so a second save within one second could be
missed."""


def dev(
    app: str,
    /,
    *,
    watch: tuple[Path, ...] = (),
    console: Annotated[bool, Parameter(negative="--no-console")] = True,
    show_locals: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run a node while you write its code: saving a Python file replaces the code, and streams continue
    from their checkpoints. Code that doesn't load is shown with its error, and the code before stays in
    use.

    A console runs beside it; its address is printed. Saved settings (holdfast.toml, .env) take effect too.
    Ctrl-C ends both.

    ```
    holdfast dev myproject.streams:app
    holdfast dev myproject.streams:app --show-locals
    ```

    Args:
        app: The app, MODULE:NAME; the working directory is searched too.
        watch: Another folder to watch for Python files, in addition to the working directory.
        console: Also serve the console on this machine.
        show_locals: Show the values of local variables in tracebacks. They may be secret.
    """
    import uvloop  # noqa: PLC0415

    def settings() -> Config:
        return _for_development(options, show_locals=show_locals)

    arguments = ["node", app, *options.file_arguments()]
    return uvloop.run(develop(app, arguments, settings, watch, options.config, with_console=console))


def _for_development(options: Options, *, show_locals: bool) -> Config:
    """Return the settings with a log for people."""
    config = options.load()
    for name in ("port", "metrics_port"):
        if port := getattr(config, name):
            raise ConfigError(
                f"{name} is {port}: two nodes run while code is replaced, and can't share a port; leave"
                f" {name} at 0, which takes a free one, such as by --set {name}=0"
            )
    tracebacks = "plain" if config.log_tracebacks == "none" else config.log_tracebacks
    config = config.model_copy(
        update={
            "log_tracebacks": "locals" if show_locals else tracebacks,
            "log_format": "console" if config.log_format == "auto" else config.log_format,
        }
    )
    _log_by(config)
    return config


def _log_by(config: Config) -> None:
    from holdfast.system import log  # noqa: PLC0415

    log.set_up(config.log_format, config.log_level, tracebacks=config.log_tracebacks)
    keep_log(config)  # setting up ends the file before


async def develop(
    place: str,
    arguments: list[str],
    settings: Callable[[], Config],
    watch: tuple[Path, ...],
    file: Path | None,
    *,
    with_console: bool,
) -> int:
    """Run the newest code of the app at ``place`` that loads, by the command ``arguments``, until a signal.
    Returns the exit code."""
    import structlog  # noqa: PLC0415

    from holdfast.cli.changes import ProjectFiles  # noqa: PLC0415
    from holdfast.cli.children import Launcher  # noqa: PLC0415
    from holdfast.config.sources import DOTENV, FILE  # noqa: PLC0415

    asked_to_end, over = signals()
    files = ProjectFiles([Path(), *watch], [file or FILE, DOTENV], SystemClock())
    asked = settings()
    config = await _found(asked, place)
    while True:
        log = structlog.get_logger().bind(node=asked.node_name)
        async with Services(config) as services, beside(services, log, wanted=with_console):
            code = NewestCode(services, Launcher(arguments, config, environment=FRESH_SOURCES), log)
            code.load()
            saved = asyncio.create_task(_follow(code, files, settings, asked, place, log))
            await first_of(asyncio.wait((saved,)), asked_to_end.wait())
            if asked_to_end.is_set():
                saved.cancel()
            await first_of(code.stop(), over.wait())
            await code.kill()
        if asked_to_end.is_set():
            return exits.INTERRUPTED if over.is_set() else exits.OK
        asked, config = saved.result()


async def _follow(
    code: NewestCode,
    files: ProjectFiles,
    settings: Callable[[], Config],
    asked: Config,
    place: str,
    log: Any,
) -> tuple[Config, Config]:
    """Load the code after each save. Returns when usable settings other than ``asked`` were saved: these
    settings, and the same completed from the registry."""
    while True:
        changed = await files.changed()
        log.info("files changed", files=changed)
        try:
            saved = settings()
            if saved.environment() != asked.environment():
                config = await _found(saved, place)
                await _open(config)
                return saved, config
        except HoldfastError as error:
            _log_by(asked)
            output.complain(f"{error}\nThe settings and code before stay in use.")
            continue
        code.load()


async def _found(config: Config, place: str) -> Config:
    """Return the settings, completed from the registry for the app at ``place``."""
    return await discovered(config, lambda: load_app(place).name)


async def _open(config: Config) -> None:
    """Raise HoldfastError if these settings name an unusable service."""
    async with Services(config) as services:
        services.coordinator(), services.state(), services.registry(), services.queue("any")


class NewestCode:
    """The node with the newest code that loads, a node with newer code until it has joined, and nodes with
    older code until they have ended."""

    def __init__(self, services: Services, launcher: Launcher, log: Any) -> None:
        self._services = services
        self._launcher = launcher
        self._log = log
        self._current: Supervisor | None = None
        self._loading: asyncio.Task[None] | None = None
        self._nodes: dict[Supervisor, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def load(self) -> None:
        """Start a node with the present code. A node that hasn't joined yet is ended."""
        if self._loading is not None:
            self._loading.cancel()
        self._loading = asyncio.create_task(self._load())

    async def stop(self) -> None:
        """Drain and end all nodes."""
        self._current = None
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait((self._loading,))
        await asyncio.gather(*(node.stop() for node in self._nodes))

    async def kill(self) -> None:
        """Kill the nodes that are left."""
        for node in self._nodes:
            node.kill()
        await asyncio.gather(*self._nodes.values())

    async def _load(self) -> None:
        from holdfast.cluster.supervisor import Supervisor  # noqa: PLC0415

        config = self._services.config
        fresh = Supervisor(
            self._services.coordinator(),
            self._services.clock,
            self._launcher.node,
            [config.node_name],
            self._log,
            final=FINAL,
            drain_timeout_s=config.drain_timeout_s + ENDING_S,
        )
        self._nodes[fresh] = asyncio.create_task(self._forget(fresh))
        try:
            await fresh.start()
            await self._joined(fresh)
        except asyncio.CancelledError:
            fresh.kill()
            raise
        if fresh.ended.is_set():
            in_use = "the code before" if self._current is not None else "none"
            self._log.error("cannot load code", in_use=in_use, fix="correct it and save a file")
            return
        before, self._current = self._current, fresh
        self._log.info("code in use")
        if before is not None:
            stopping = asyncio.create_task(before.stop())
            self._ending.add(stopping)
            stopping.add_done_callback(self._ending.discard)

    async def _joined(self, fresh: Supervisor) -> None:
        """Wait until the node is a member, or has ended for good."""
        while not await self._services.clock.wait(fresh.ended, JOINED_CHECK_S):
            names = {life.name for life in fresh.lives.values()}
            with contextlib.suppress(HoldfastError):  # the coordinator may be unavailable
                if any(member.name in names for member in await self._services.coordinator().members()):
                    return

    async def _forget(self, node: Supervisor) -> None:
        await node.ended.wait()
        del self._nodes[node]
        if node is self._current:
            self._current = None
            self._log.error("node ended, none runs")
