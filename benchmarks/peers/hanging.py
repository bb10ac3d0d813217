"""Tasks that hang, sent at an even pace among others that don't, to any task queue; what became of them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Protocol

import msgspec

TIMEOUT_S = 2.0
WORKERS = 12
WORK_S = 0.02
CHECK_S = 0.002
NOTES = "BENCHMARK_NOTES"
"""The environment's name for the file in which each task notes when it began."""

WARM_UP_S = 0.1
"""How long tasks take that see to it that all workers run."""

GIVE_UP_S = 8.0
"""So long after the last task was sent nobody waits any more."""


def work(n: int, hang: bool) -> int:
    """A task: hangs for ever in C, with the interpreter's lock held, whatever signal comes; or works."""
    if n < 0:
        time.sleep(WARM_UP_S)
        return n
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{n} {time.time()}\n")
    if hang:
        lock, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        libc.pthread_mutex_lock(lock)
        libc.pthread_mutex_lock(lock)
    time.sleep(WORK_S)
    return n


class Plan(msgspec.Struct, frozen=True):
    """``tasks`` at ``per_s``, of which every one whose number ``hangs`` divides hangs (0: none)."""

    tasks: int
    per_s: float
    hangs: int

    def hang(self, n: int) -> bool:
        """Whether the task of this number hangs."""
        return bool(self.hangs) and n % self.hangs == self.hangs // 2


class Seen(msgspec.Struct, frozen=True):
    """By task: when it was sent, and when its end was known, in seconds since the epoch."""

    sent_at: dict[int, float]
    ended_at: dict[int, float]


class Contender(Protocol):
    """A task queue."""

    async def send(self, n: int, hang: bool) -> None:
        """Send a task."""

    async def ended(self) -> list[int]:
        """The tasks whose end is known that was not before."""


async def drive(contender: Contender, plan: Plan) -> Seen:
    """Send all tasks, and watch them end."""
    seen = Seen({}, {})
    warm = range(-4 * WORKERS, 0)
    for n in warm:
        await contender.send(n, False)
    await _watch(contender, seen, set(warm), time.time() + 60)
    begun_at = time.time()
    sending = asyncio.create_task(_send(contender, plan, seen, begun_at))
    all_tasks = {*warm, *range(plan.tasks)}
    await _watch(contender, seen, all_tasks, begun_at + plan.tasks / plan.per_s + GIVE_UP_S)
    await sending
    return Seen(seen.sent_at, {n: at for n, at in seen.ended_at.items() if n >= 0})


async def _send(contender: Contender, plan: Plan, seen: Seen, begun_at: float) -> None:
    for n in range(plan.tasks):
        await asyncio.sleep(max(0.0, begun_at + n / plan.per_s - time.time()))
        seen.sent_at[n] = time.time()
        await contender.send(n, plan.hang(n))


async def _watch(contender: Contender, seen: Seen, wanted: set[int], until: float) -> None:
    while not wanted <= seen.ended_at.keys() and time.time() < until:
        for n in await contender.ended():
            seen.ended_at[n] = time.time()
        await asyncio.sleep(CHECK_S)


class Driver(Protocol):
    """A contender that sends and asks without waiting for long."""

    def send(self, n: int, hang: bool) -> None: ...
    def ended(self) -> list[int]: ...


class Plain:
    """The contender that a driver is."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def send(self, n: int, hang: bool) -> None:
        """As the driver does."""
        self._driver.send(n, hang)

    async def ended(self) -> list[int]:
        """As the driver does."""
        return self._driver.ended()


def drive_plain(driver: Driver, plan: str) -> str:
    """The same for programs of their own: takes a Plan and gives what was Seen as JSON."""
    seen = asyncio.run(drive(Plain(driver), msgspec.json.decode(plan, type=Plan)))
    return msgspec.json.encode(seen).decode()
