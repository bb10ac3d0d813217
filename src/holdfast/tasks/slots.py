"""A node's slots for tasks: what runs where, for how long it may, and how it is brought to an end."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.ports.clock import Clock
from holdfast.ports.task_slots import Attempt, Progress, TaskSlotMaker
from holdfast.runtime.service import Tasks
from holdfast.runtime.stats import Stats


class How(enum.StrEnum):
    """How an attempt ended."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    DIED = "died"


class Ended(msgspec.Struct, frozen=True):
    """What came of an attempt.

    ``result`` is what the handler returned, as JSON (empty: nothing). ``error`` says in a line why it did
    not return, ``detail`` has the traceback, the stacks of the hung child or its last words. ``permanent``:
    no retry can help. ``begun`` is False where the handler never began (cancelled while it waited, or the
    pool closed): that is no try. An attempt over its time is TIMED_OUT whatever it still returned; one that
    was told to end may yet have RETURNED or RAISED. ``took_s`` is how long it ran, ``memory_mb`` the most
    that its process used (0: unknown).
    """

    how: How
    result: bytes = b""
    error: str = ""
    detail: str = ""
    permanent: bool = False
    begun: bool = True
    took_s: float = 0.0
    memory_mb: int = 0


class Running:
    """An attempt that is in the pool's hands. Times are the clock's monotonic ones.

    Attributes:
        attempt: what is run.
        begun_at: when its handler began; None while it waits.
        advanced_at: when it last advanced (began, or one of the signs that it declares).
        progress: what it last said of itself.
    """

    __slots__ = ("advanced_at", "attempt", "begun_at", "progress")

    attempt: Attempt
    begun_at: float | None
    advanced_at: float
    progress: Progress


class TaskSlots:
    """Runs attempts in slots: as many slots as the work needs, up to ``limit``.

    Short tasks (by how long their type took lately) are lined up in the trays of busy slots, so that no slot
    waits for the node; what lies behind one that turns out not to be short is withdrawn and goes elsewhere.

    Args:
        slots: makes the slots.
        idle_s: a slot without work for so long is ended.
        spare: further slots kept warm, to replace one that dies.
        limit: the most attempts to run at once.
    """

    def __init__(
        self,
        slots: TaskSlotMaker,
        clock: Clock,
        tasks: Tasks,
        stats: Stats,
        log: Any,
        *,
        idle_s: float = 60.0,
        spare: int = 1,
        limit: int = 4,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Spawn the first slots. Raises ConfigError if the app can't load."""

    async def close(self) -> None:
        """End every slot. What still runs is killed and DIED; what waits was never ``begun``. To let handlers
        end in order, ``cancel`` them and await their ends first."""

    @property
    def limit(self) -> int:
        """The most attempts to run at once. May be set at any time: those above a lower one finish."""
        raise NotImplementedError

    @limit.setter
    def limit(self, limit: int) -> None: ...

    @property
    def room(self) -> int:
        """How many more attempts could begin now, or within milliseconds. More may be run: they wait."""
        raise NotImplementedError

    async def vacancy(self) -> None:
        """Return when there is room."""

    @property
    def running(self) -> Mapping[str, Running]:
        """All attempts in hand, by trace."""
        raise NotImplementedError

    def run(
        self, attempt: Attempt, on_progress: Callable[[Running], None] | None = None
    ) -> asyncio.Future[Ended]:
        """Run an attempt. The future never fails; cancelling it abandons the attempt, which goes on: use
        ``cancel`` to end it. ``on_progress`` is called whenever the handler says how far it is."""
        raise NotImplementedError

    def cancel(self, trace: str, reason: str) -> bool:
        """Tell an attempt to end, softly at first, and surely within a second; False if it isn't in hand.
        The outcome comes through its future."""
        raise NotImplementedError

    def renew(self, trace: str, lease_s: float) -> None:
        """The attempt may run on, for so long from now. Does nothing for one that isn't in hand."""
