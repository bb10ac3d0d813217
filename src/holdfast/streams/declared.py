"""Warns senders of streams that no node runs: such a name is most likely misspelt."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.ports.coordinator import Coordinator

LOOK_TIMEOUT_S = 2.0
"""Seconds that a look at the nodes may take."""

CLOSE_S = 0.2
"""Seconds for which a closing client waits for a look, so that a short program is warned too."""


async def run_by_nodes(coordinator: Coordinator) -> list[str]:
    """Return the names of all streams that living nodes run. Raises as the coordinator does."""
    return sorted({name for member in await coordinator.members() for name in member.load.queues})


class Undeclared:
    """Warns of streams that are sent to and that no node runs while nodes run others. ``look`` returns the
    streams that nodes run.

    It looks once for each name, in a thread with an event loop of its own, so that neither senders nor the
    end of the program wait for it."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, Sequence[str]]], log: Any) -> None:
        self._look = look
        self._log = log
        self._known = set[str]()
        self._mutex = threading.Lock()
        self._waiting: list[str] = []
        self._looking: threading.Thread | None = None
        self._closed = False

    def look_for(self, stream: str) -> None:
        """Have it warned of the stream soon, if that is due. Returns at once, and raises nothing."""
        if stream in self._known:
            return
        with self._mutex:
            if self._closed or stream in self._known:
                return
            self._known.add(stream)
            self._waiting.append(stream)
            if self._looking is None:
                looking = threading.Thread(target=self._serve, name="holdfast-look", daemon=True)
                with contextlib.suppress(RuntimeError):  # no room for one more thread
                    looking.start()
                    self._looking = looking

    async def close(self) -> None:
        """Warn of nothing from now on. A look under way is waited for for a moment, and then left alone."""
        looking = self._looking
        if looking is not None:
            with contextlib.suppress(RuntimeError):  # no room for the thread that would wait
                await asyncio.to_thread(looking.join, CLOSE_S)
        with self._mutex:
            self._closed = True
            self._waiting.clear()

    # --- the thread

    def _serve(self) -> None:
        while streams := self._take():
            with contextlib.suppress(Exception):  # what is sent waits in its queue in any case
                run = asyncio.run(self._timed())
                for stream in streams if run and not self._closed else ():
                    if stream not in run:
                        self._log.warning(
                            "no node runs the stream",
                            stream=stream,
                            run=run,
                        )

    def _take(self) -> list[str]:
        with self._mutex:
            taken, self._waiting = self._waiting, []
            if not taken:
                self._looking = None
        return taken

    async def _timed(self) -> Sequence[str]:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await self._look()
