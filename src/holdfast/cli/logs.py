"""``holdfast logs``."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.names import NodeName
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.errors import ConfigError
from holdfast.system.clock import SystemClock
from holdfast.system.log import Level, console_renderer

if TYPE_CHECKING:
    from holdfast.system.log_files import Event

LEVELS = ("debug", "info", "warning", "error", "critical")
LOOK_S = 0.3
"""Seconds between two reads of the files."""


async def logs(
    *,
    node: NodeName = "",
    key: str = "",
    level: Annotated[Level, Parameter(show_default=False)] = "debug",
    lines: Annotated[int, Parameter(name=["--lines", "-n"])] = 100,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Show the logs of the nodes on this host, by time. Nodes write them to the setting log_dir; without
    it, they are where systemd or another program keeps the stderr of nodes.

    ```
    holdfast logs --follow
    holdfast logs --key frames/cam-1 --level warning
    ```

    Args:
        node: Only of nodes whose names begin with this.
        key: Only about this stream (STREAM/KEY or the key alone), or about the task with this id.
        level: Only of this level or worse.
        lines: Number of the last lines to begin with.
        follow: Wait for new lines.
        json: Print JSON lines, as in the files.
    """
    from holdfast.system.log_files import LogReader  # noqa: PLC0415

    config = options.load(logs=False)
    if not config.log_dir:
        raise ConfigError(
            "log_dir isn't set, so nodes keep no files of their logs: set it to a folder and start them"
            " again, or read what keeps their stderr, such as `journalctl -u holdfast`"
        )
    show = output.json_line if json else _printer()
    reader = LogReader(Path(config.log_dir))
    try:
        with contextlib.closing(reader):
            for event in deque(filter(_meant(node, key, level), reader.all()), max(0, lines)):
                show(event)
            while follow:
                await SystemClock().sleep(LOOK_S)
                for event in filter(_meant(node, key, level), reader.more()):
                    show(event)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"log_dir is {config.log_dir!r}, which can't be read: {error}") from None


def _meant(node: str, key: str, level: str) -> Callable[[Event], bool]:
    shown_levels = LEVELS[LEVELS.index(level) :]

    def meant(event: Event) -> bool:
        if not (event.get("level", "info") in shown_levels and str(event["node"]).startswith(node)):
            return False
        about = str(event.get("key", ""))
        return not key or key in (about, about.partition("/")[2], event.get("task"))

    return meant


def _printer() -> Callable[[Event], Any]:
    """Return a function that prints events as nodes do on a terminal."""

    render = console_renderer(colors=sys.stdout.isatty())

    def show(event: Event) -> None:
        sys.stdout.write(str(render(None, "", {"event": "", **event})) + "\n")
        sys.stdout.flush()

    return show
