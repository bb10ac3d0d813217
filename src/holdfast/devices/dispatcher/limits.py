"""The limits of an outbox on one node: commands at once, and awaited answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_turn import TurnResult
from holdfast.devices.rules.group_rate import BURST_S, GroupRate, RolloutRates
from holdfast.devices.spec import OutboxSpec
from holdfast.extend.tools import Limiter, Once, Rate, kind_and_place, run_user_code

TURN_MIN, TURN_MAX = 50, 1_000
"""Rows of each kind that one turn takes. It takes fewer if turns last longer than ``TURN_S``, because others
wait for its locks, and its marked tries have to be sent in time."""

TURN_S = 0.1

GROUP_FAILURES_MAX = 100
"""Kinds of failures of ``group`` that are remembered, to log each once."""


class NodeLimits:
    """The limits of an outbox on one node. A node has the share of them that it has of the shards.

    Attributes:
        in_flight_max: devices that this node waits for at once.
        turn_max: rows of each kind that the next turn takes.
        groups: the rates of groups of devices, if the outbox has groups.
        rollouts: the rates of rollouts.
    """

    def __init__(self, spec: OutboxSpec, log: Any) -> None:
        self._spec = spec
        self._group = None if spec.group is None else DeviceGroup(spec.group, spec.name, log)
        self._limiter = Limiter(None)
        self._at_once = TURN_MAX
        self._sends_from = 0.0
        self.in_flight_max = spec.in_flight_max
        self.turn_max = TURN_MAX
        self.rollouts: RolloutRates
        self.groups: GroupRate | None = None
        self.forget_times(shards=spec.shards)

    def forget_times(self, shards: int) -> None:
        """Start the rates again that count in wall time, for a node with ``shards``."""
        share = shards / self._spec.shards
        self.rollouts = RolloutRates(share)
        if self._group is not None:
            self.groups = GroupRate(self._group, self._spec.group_rates, share)

    def take_share(self, shards: int) -> None:
        """Take the share of ``shards``; without any shards the share stays."""
        spec, share = self._spec, shards / self._spec.shards
        if not share:
            return
        self.rollouts.take_share(share)
        if self.groups is not None:
            self.groups.take_share(share)
        if spec.rate is not None:
            limit = Rate(spec.rate * share, max(1.0, spec.rate * share * BURST_S))
            self._at_once = int(limit.burst)
            self._limiter.change(limit)
        self.in_flight_max = max(1, int(spec.in_flight_max * share))

    def sendable(self, monotonic: float) -> int:
        """Return how many commands the outbox's rate allows now."""
        return self._at_once if monotonic >= self._sends_from else 0

    def wait_s(self, monotonic: float) -> float:
        """Return the seconds until the outbox's rate allows a command; below 0 if it does."""
        return self._sends_from - monotonic

    def spend(self, sendings: int, monotonic: float) -> None:
        """Count sent commands."""
        if sendings and self._spec.rate:
            self._sends_from = monotonic + self._limiter.spend("", sendings, monotonic)

    def note_turn(self, took_s: float) -> None:
        """Have the next turn take more rows, or fewer if this one took long."""
        if took_s > TURN_S:
            self.turn_max = max(TURN_MIN, self.turn_max // 2)
        else:
            self.turn_max = min(TURN_MAX, self.turn_max + TURN_MIN)


class InFlight:
    """The number of lanes in which a node waits for an answer."""

    def __init__(self, outbox: str, store: OutboxStore) -> None:
        self._outbox = outbox
        self._store = store
        self._is_stale = False
        self.count = 0

    def mark_stale(self) -> None:
        """Have the store count before the next turn."""
        self._is_stale = True

    async def refresh(self, shards: Mapping[int, object]) -> None:
        """Count if the number is stale. Raises HoldfastError if the store can't."""
        while self._is_stale:  # a new shard makes it stale again
            self._is_stale = False
            self.count = await self._store.in_flight(self._outbox, [*shards])

    def add(self, result: TurnResult) -> None:
        """Count the answers that a turn began and ended to wait for."""
        self.count = max(0, self.count + len(result.sendings) - result.repeats - result.freed)


class DeviceGroup:
    """The user's function ``group``, in a form that never fails."""

    def __init__(self, function: Callable[[str], str], outbox: str, log: Any) -> None:
        self._function = function
        self._outbox = outbox
        self._log = log
        self._logged = Once(GROUP_FAILURES_MAX)

    def __call__(self, device: str) -> str | None:
        """Return the group of a device; None if the function fails, because turns would fail on every node. A
        turn calls it in the store's thread."""
        try:
            group: Any = run_user_code(self._function, device)
        except Exception as error:  # noqa: BLE001 - the function is the user's, and may fail in any way
            self._log_failure(device, *kind_and_place(error))  # the error's text may hold people's data
            return None
        if not isinstance(group, str):
            self._log_failure(device, f"it returned {type(group).__name__}")
            return None
        return group

    def _log_failure(self, device: str, why: str, at: str = "") -> None:
        if self._logged.first((why, at)):
            self._log.error(
                "group function failed",
                outbox=self._outbox,
                device=device,
                error=why,
                at=at,
                fix="make the function return a text for every device; it may be one without a rate",
            )
