"""Counts of what a dispatcher did."""

from __future__ import annotations

import msgspec

from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.rules.device_turn import TurnResult


class DispatcherCounts(msgspec.Struct):
    """The counts of a dispatcher since its start.

    Attributes:
        unmatched: answers that fitted no command.
        late: answers to an earlier try than the last one.
        unknown_devices: messages of devices that never had a command.
        ends: closed commands by state.
    """

    turns: int = 0
    sent: int = 0
    repeated: int = 0
    closed: int = 0
    unmatched: int = 0
    late: int = 0
    unknown_devices: int = 0
    ends: dict[CommandState, int] = {}

    def add(self, result: TurnResult) -> None:
        """Count a turn."""
        self.turns += 1
        self.sent += len(result.sendings)
        self.repeated += result.repeats
        self.closed += len(result.closed)
        self.unmatched += len(result.unmatched)
        self.late += result.late
        for entry in result.closed:
            self.ends[entry.state] = self.ends.get(entry.state, 0) + 1
