"""Slots for tasks: processes that run one attempt after another, and can be stopped in the midst of one.

A slot has a *tray* of attempts that wait for it. The kernel, or what stands for it, arbitrates: what lies in
the tray is either taken by the process or withdrawn by the node, never both, whatever the process hangs in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at a task, as ``TaskSpec.attempt`` makes it.

    ``body_name`` is the full name of the protobuf message in ``body``, empty for text or JSON. ``attempt``
    counts from 1 to ``tries``; ``epoch`` is the fencing token. ``timeout_s`` is the total time it may take,
    ``stall_s`` the longest without a call of ``job.progress`` (0: any), ``memory_mb`` what its process
    and all that it started may use together (0: what the node allows). ``lease_s``: unless renewed, its
    process is killed so many seconds after it was given to a slot, even if the node stands still (0: never).
    """

    trace: str
    type: str
    body: bytes
    body_name: str = ""
    attempt: int = 1
    tries: int = 1
    epoch: int = 0
    timeout_s: float = 60.0
    stall_s: float = 0.0
    memory_mb: int = 0
    lease_s: float = 0.0


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a task is: ``fraction`` is from 0 to 1 (None: not said), ``note`` and ``numbers`` say more."""

    fraction: float | None = None
    note: str = ""
    numbers: dict[str, float] = {}


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """What came of an attempt that its process lived to tell of.

    ``result`` is JSON (empty: none). Otherwise ``error`` and ``detail`` (a traceback) say what was raised;
    ``permanent``: no retry can help; ``cancelled``: it ended because it was told to. ``spoiled``: the process
    should be replaced. ``output``: there is output of it that has not been read yet. ``took_s`` is how long
    it ran, ``memory_mb`` the most that its process ever used.
    """

    result: bytes = b""
    error: str = ""
    detail: str = ""
    permanent: bool = False
    cancelled: bool = False
    spoiled: bool = False
    output: bool = False
    took_s: float = 0.0
    memory_mb: int = 0


class TaskHost(Protocol):
    """What a slot gives to the worker in it."""

    def now(self) -> float:
        """Monotonic time in seconds."""

    def progress(self, number: int, progress: Progress) -> None:
        """An attempt advances. Cheap enough to be called at every step."""

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        """A line of an attempt for the node's log."""

    async def begin(self, attempt: Attempt) -> None:
        """An attempt begins. What this raises counts as raised by the handler."""

    def failed(self, error: BaseException) -> None:
        """The handler raised."""

    def interrupt(self) -> None:
        """Have ``TaskWorker.raise_if_cancelled`` called where the handler is, if it can be reached there."""


class TaskWorker(Protocol):
    """The handlers inside a slot. Made by a factory from a host; slots know no more of it than this.

    ``attempt`` suspends only where a loop runs already; else it can be stepped with ``drive``.
    """

    async def attempt(self, number: int, attempt: Attempt) -> Tried:
        """Run the handler. The host is told of what it does by its number. Never raises for what it does."""

    def cancel(self, reason: str) -> None:
        """Tell the attempt at hand to end. May come from any thread."""

    def raise_if_cancelled(self) -> None:
        """Called in the midst of the handler: raise there if it was told to end, once."""


class Listener(Protocol):
    """A listener for the events of slots."""

    def told(self, slot: TaskSlot, number: int, tried: Tried) -> None:
        """An attempt in the slot has ended; where it was at work, the next one in the tray begins."""

    def advanced(self, slot: TaskSlot, number: int, progress: Progress) -> None:
        """An attempt advances, and says how far it is."""

    def said(self, slot: TaskSlot, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        """An attempt wrote to the log, or to its standard output (then ``values`` is empty)."""


class Exit(msgspec.Struct, frozen=True):
    """Why a process ended, the stacks that it dumped as it did, if any, and which attempts it left untouched
    in its tray."""

    reason: str
    stacks: str = ""
    untouched: Sequence[int] = ()


class TaskSlot(Protocol):
    """One living child process. ``name`` is unique among the node's slots, ever."""

    name: str

    def offer(self, number: int, attempt: Attempt) -> bool:
        """Put an attempt in the tray, under a number of the caller's; False if there is no room for it, or
        the slot is dead."""

    def withdraw(self) -> list[int]:
        """Take back all that lies in the tray, in order."""

    def cancel(self, number: int, reason: str) -> None:
        """Tell an attempt to end, by raising in its handler and running its terminate hooks. Does nothing for
        one that is not at hand."""

    def lease(self, seconds: float | None) -> None:
        """Have the process and its descendants killed after so long, whatever becomes of the node, unless
        this is called again; None: never."""

    async def dump(self) -> str:
        """The stacks of its threads, "" if it doesn't tell in a tenth of a second."""

    def terminate(self) -> None:
        """Ask the process's descendants to end, as SIGTERM does."""

    async def kill(self, reason: str) -> str:
        """Kill the process and its descendants; returns when they are gone, with what it dumped."""

    async def stop(self, grace_s: float) -> None:
        """Let it end once it is done; kill it if that takes longer."""

    async def exited(self) -> Exit:
        """Return when the process is gone. Whatever it told before has been told by then."""


class TaskSlotMaker(Protocol):
    """Makes slots for tasks."""

    async def spawn(self, listener: Listener) -> TaskSlot:
        """A new slot, the app imported and its handlers ready. Raises ConfigError if the app can't load."""

    async def close(self) -> None:
        """End every slot: in good order where they are idle, killed where not."""
