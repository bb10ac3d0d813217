"""Starts several nodes of one program, each as a process, and restarts nodes that end. The exit of a process
is evidence of its node's death."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from holdfast.cluster.lifecycle import Startable
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator

SHORT_LIFE_S = 30.0
"""A node that ends sooner counts as failed to start; a node that lived longer is restarted without a long
pause."""

AGAIN = Backoff(0.5, 30.0)
NOT_STARTED = 1


class NodeProcess(Protocol):
    """A node's process."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal. Raises ProcessLookupError for a process that has ended."""

    async def wait(self) -> int:
        """Wait until it ends; return its exit code, or the negative number of the signal that killed it."""


class NodeLife:
    """One process of a node. Each has its own name, so that its membership can't be confused with its
    predecessor's."""

    __slots__ = ("child", "name")

    def __init__(self, name: str, child: NodeProcess) -> None:
        self.name = name
        self.child = child

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)


class Supervisor(Startable):
    """Starts a process for each of ``names``, and restarts it when it dies, with growing pauses if it keeps
    dying. It ends the membership of a dead node at once.

    ``launch`` starts a node under the given name, or raises Unavailable. A node whose exit code is in
    ``final`` isn't restarted; ``ended`` is set when all nodes have ended so. ``stop`` lets the nodes drain
    for ``drain_timeout_s``, then kills them."""

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        launch: Callable[[str], Awaitable[NodeProcess]],
        names: Sequence[str],
        log: Any,
        *,
        final: Collection[int],
        drain_timeout_s: float,
    ) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._clock = clock
        self._launch = launch
        self._names = names
        self._log = log
        self._final = final
        self._drain_timeout_s = drain_timeout_s
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self.lives: dict[str, NodeLife] = {}
        """The living processes, by the names that the supervisor was given."""
        self.ended = asyncio.Event()
        self.codes: dict[str, int] = {}
        """The final exit codes of nodes, by name."""

    async def _start(self) -> None:
        for name in self._names:
            runner = asyncio.create_task(self._keep(name))
            self._running.add(runner)
            runner.add_done_callback(self._ran)

    def _ran(self, runner: asyncio.Task[None]) -> None:
        self._running.discard(runner)
        if not self._running:
            self.ended.set()

    async def _stop(self) -> None:
        self._stopping.set()
        self._signal_all(signal.SIGTERM)
        if not await self._clock.wait(self.ended, self._drain_timeout_s):
            nodes = [life.name for life in self.lives.values()]
            self._log.warning("drain timed out; nodes killed", nodes=nodes)
            self._signal_all(signal.SIGKILL)
            await self.ended.wait()

    def kill(self) -> None:
        """Kill every node at once. No message is lost."""
        self._stopping.set()
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for life in self.lives.values():
            life.signal(number)

    async def _keep(self, name: str) -> None:
        failures = 0
        while True:
            began_at = self._clock.monotonic()
            code = await self._live(name)
            failures = failures + 1 if self._clock.monotonic() - began_at < SHORT_LIFE_S else 0
            if failures > 1 and code not in self._final:
                await self._clock.wait(self._stopping, AGAIN.delay_s(failures - 1, self._clock.random()))
            if self._stopping.is_set() or code in self._final:
                self.codes[name] = code
                return

    async def _live(self, name: str) -> int:
        """Run a node until it ends; return its exit code."""
        own_name = f"{name}-{self._clock.new_id()[-4:]}"
        try:
            child = await self._launch(own_name)
        except HoldfastError as error:
            self._log.error("cannot start a node", node=own_name, error=str(error))
            return NOT_STARTED
        life = self.lives[name] = NodeLife(own_name, child)
        if self._stopping.is_set():
            life.signal(signal.SIGTERM)
        code = await child.wait()
        del self.lives[name]
        if code:
            if not self._stopping.is_set():
                self._log.warning("node died", node=own_name, pid=child.pid, cause=_cause(code))
            await self._evict(own_name)
        return code

    async def _evict(self, name: str) -> None:
        try:
            for member in await self._coordinator.members():
                if member.name == name and await self._coordinator.evict(member.id):
                    self._log.info("dead node evicted", node=name, member=member.id)
        except (HoldfastError, OSError) as error:
            self._log.warning("cannot evict a dead node", node=name, error=str(error))


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
