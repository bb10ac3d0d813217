"""The next steps of an owner: its commands in order, and the time of its next call."""

from __future__ import annotations

from holdfast.common.held import Held, PendingDeadLetter
from holdfast.rules.streams.commands import Command, Settle


class Agenda:
    """The commands of one owner, and its clock. The parts of an owner share it."""

    __slots__ = ("commands", "settling", "wake_at", "wall_ahead_s")

    def __init__(self) -> None:
        self.commands: list[Command] = []
        """The commands that the shell hasn't taken yet, in order."""
        self.settling = 0
        """How many settlements aren't answered yet."""
        self.wake_at: float | None = None
        """When the owner is to be called though nothing happens, in monotonic seconds."""
        self.wall_ahead_s = 0.0
        """By how much the wall clock is ahead of monotonic time."""

    def wake(self, at: float) -> None:
        """Have the owner called at ``at``, or earlier."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def settle(
        self, letters: tuple[PendingDeadLetter, ...], messages: tuple[Held, ...], *, duplicate: bool = False
    ) -> None:
        """Have dead letters sent, then messages deleted, then their senders notified."""
        self.settling += 1
        self.commands.append(Settle(letters, messages, duplicate))
