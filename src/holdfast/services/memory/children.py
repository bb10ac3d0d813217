"""Simulated child processes of a node: started one by one, and ended with the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.ports.clock import Clock


class SimulatedChild(Protocol):
    """One simulated process."""

    @property
    def alive(self) -> bool: ...

    def die(self, why: str) -> None: ...


C = TypeVar("C", bound=SimulatedChild)


class SimulatedPool(Generic[C]):
    """The children of one node. A new one takes ``spawn_s`` and is named after ``prefix``; ``slots`` lists
    the living."""

    def __init__(self, clock: Clock, spawn_s: float, prefix: str) -> None:
        self._clock = clock
        self._spawn_s = spawn_s
        self._prefix = prefix
        self._count = 0
        self._closed = False
        self._slots: list[C] = []

    @property
    def slots(self) -> list[C]:
        self._slots = [slot for slot in self._slots if slot.alive]
        return list(self._slots)

    async def _begin(self, make: Callable[[str], C]) -> C:
        """Start another child, which ``make`` makes from its name."""
        if self._spawn_s:
            await self._clock.sleep(self._spawn_s)
        if self._closed:
            raise ConfigError("these slots are closed")
        self._count += 1
        slot = make(f"{self._prefix}-{self._count}")
        self._slots.append(slot)
        return slot

    def die(self) -> None:
        """End every child at once, as the death of their node does."""
        self._closed = True
        for slot in self.slots:
            slot.die("died with its node")
