"""The slots of one kind of work on a node: made, kept warm, counted when they die, and ended.

Each kind of work decides itself which work goes to which slot, and for how long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.cluster.host import Host
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, HoldfastError
from holdfast.ports.slots import Exit, Slot, SlotMaker
from holdfast.system.retrying import retry_call

S = TypeVar("S", bound=Slot)


class SlotPool(Generic[S]):
    """Busy slots, and spares.

    Args:
        maker: makes the slots.
        spawn: has the maker make one.
        host: the node.
        spare: the number of warm slots that can replace one that dies.
        on_spare: called after each new spare.
    """

    def __init__(
        self,
        maker: SlotMaker,
        spawn: Callable[[], Awaitable[S]],
        host: Host,
        spare: int,
        on_spare: Callable[[], None] = lambda: None,
    ) -> None:
        self.closed = False
        self._maker = maker
        self._spawn = spawn
        self._clock, self._tasks, self._stats, self._log = host.clock, host.tasks, host.stats, host.log
        self._spare = spare
        self._on_spare = on_spare
        self._spares: list[S] = []
        self._backoff = Backoff(0.2, 10.0)

    async def first(self) -> S:
        """Return the first slot. Raises ConfigError if the app can't load."""
        return await self._spawn()

    def warm_up(self) -> None:
        """Start to make the spares."""
        for _ in range(self._spare):
            self._tasks.spawn(self._keep_spare())

    async def close(self) -> None:
        """End every slot, and make no new ones."""
        self.closed = True
        await self._maker.close()

    def take(self) -> S | None:
        """Return a spare, and make another in its place; None without a spare."""
        if not self._spares:
            return None
        self._tasks.spawn(self._keep_spare())
        return self._spares.pop(0)

    async def spawn(self) -> S | None:
        """Return a new slot, after as many tries as it takes; None once the pool is closed."""

        async def spawn() -> S | None:
            return None if self.closed else await self._spawn()

        def failed(error: Exception) -> None:
            if not isinstance(error, HoldfastError):
                raise error
            if not isinstance(error, ConfigError):
                self._log.warning("cannot start a slot", error=str(error))
            elif not self.closed:
                self._log.error("cannot load the app in a new slot", error=str(error))

        return await retry_call(spawn, self._clock, self._backoff, failed)

    def died(self, slot: S, gone: Exit) -> None:
        """Count and log a slot that ended unexpectedly."""
        self._stats.slot_deaths += 1
        self._log.warning("slot died", slot=slot.name, reason=gone.reason)

    async def _keep_spare(self) -> None:
        """Make a spare, and another one if it dies unused."""
        slot = await self.spawn()
        if slot is None:
            return
        self._spares.append(slot)
        self._on_spare()
        await slot.exited()
        if slot in self._spares:
            self._spares.remove(slot)
            self._tasks.spawn(self._keep_spare())
