"""Fair queueing: which waiting task begins next, fair between types and between the groups of a type.

The highest priority goes first. Of its types, the one with the fewest running tasks for its weight goes
first. Of that type's groups, such as customers, the one with the fewest running tasks goes first, and of
equal ones the one that waited longest. So a group with a thousand tasks delays a group with a single task
only by the tasks that run already. A group may have a limit to how many of its tasks run at once, and a rate
at which they begin.

Sources: weights as in weighted max-min sharing, applied to attempts that run at once; groups as in
deficit round robin with every task of cost one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from holdfast.common.rate import Limiter, Rate
from holdfast.rules.tasks.rates import WINDOW_S

T = TypeVar("T")

GROUPS_MIN = 1000
"""The number of groups of one type below which idle groups are not forgotten."""


class TypeShare(msgspec.Struct, frozen=True):
    """The share of a type of task. ``group_limit``: how many tasks of one group may run at once (0: no
    limit). ``group_rate``: how many tasks of one group may begin per second (0: no limit)."""

    weight: float = 1.0
    group_limit: int = 0
    group_rate: float = 0.0


class Permits:
    """The permits of one node, which it takes from the rates of types. ``per_s`` returns the rate of a type;
    0: it has none, and needs no permits."""

    def __init__(self, per_s: Callable[[str], float] = lambda _: 0.0) -> None:
        self._per_s = per_s
        self._left: dict[str, int] = {}
        self._lapse_at: dict[str, float] = {}

    def left(self, task_type: str) -> float:
        """Return how many tasks of a type may begin."""
        return self._left.get(task_type, 0) if self._per_s(task_type) else math.inf

    def soon(self, task_type: str) -> float:
        """Return how many tasks of a type may begin within ``WINDOW_S``, if no other node takes permits."""
        rate = self._per_s(task_type)
        return max(self._left.get(task_type, 0), math.ceil(rate * WINDOW_S)) if rate else math.inf

    def add(self, permits: Mapping[str, int], now: float) -> None:
        """Add permits that were taken just now. They replace older ones of their types."""
        self._left |= permits
        self._lapse_at |= dict.fromkeys(permits, now + WINDOW_S)

    def spend(self, task_type: str) -> None:
        """Note that a task of the type begins."""
        if self._left.get(task_type):
            self._left[task_type] -= 1

    def lapse(self, now: float) -> None:
        """Drop the permits that were not used in time."""
        for name in [name for name, at in self._lapse_at.items() if at <= now]:
            del self._left[name], self._lapse_at[name]


class _TypeLane(Generic[T]):
    """The groups of one type that wait with one priority. ``line`` holds (running, last, group); an entry
    that is out of date doesn't count."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[T]] = {}
        self.count = 0
        self.line: list[tuple[int, int, str]] = []


class FairQueue(Generic[T]):
    """The waiting items, and counts of the running ones. ``shares`` names every type. An item of a type that
    has a rate begins only with one of the ``permits``."""

    def __init__(self, shares: Mapping[str, TypeShare], permits: Permits | None = None) -> None:
        self._shares = shares
        self._permits = permits or Permits()
        self._lanes: dict[int, dict[str, _TypeLane[T]]] = {}
        self._running: Counter[str] = Counter()
        self._running_of: Counter[tuple[str, str]] = Counter()
        self._last: dict[tuple[str, str], int] = {}
        self._resting: list[tuple[float, str, str]] = []
        self.rates = {
            name: Limiter(Rate(share.group_rate, 1)) for name, share in shares.items() if share.group_rate
        }
        self._forget_at = dict.fromkeys(self.rates, GROUPS_MIN)
        self._taken = itertools.count(1)
        self._count = 0

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._count

    @property
    def ready(self) -> int:
        """The number of items that could begin if there was room: no limit of their group or rate of their
        type holds them back."""
        return self._number(self._permits.left)

    @property
    def soon(self) -> int:
        """Like ``ready``, with items that the rate of their type holds back for at most its window. A node
        asks for room for these: it takes permits only once there is room."""
        return self._number(self._permits.soon)

    def _number(self, permits: Callable[[str], float]) -> int:
        types = {type_ for lanes in self._lanes.values() for type_ in lanes}
        return sum(int(min(self.waiting(type_), permits(type_))) for type_ in types)

    def waiting(self, type: str) -> int:  # noqa: A002
        """Return how many items of a type wait that no limit of their group holds back."""
        lanes = (lane for by_type in self._lanes.values() if (lane := by_type.get(type)) is not None)
        return sum(self._unlimited(type, lane) for lane in lanes)

    def add(self, type: str, group: str, priority: int, item: T) -> None:  # noqa: A002
        """Add an item at the end of its group and priority."""
        lane = self._lanes.setdefault(priority, {}).setdefault(type, _TypeLane())
        line = lane.waiting.get(group)
        if line is None:
            lane.waiting[group] = line = deque()
            self._enter(lane, type, group)
        line.append(item)
        lane.count += 1
        self._count += 1

    def take(self, now: float) -> T | None:
        """Return the item that begins next, which then counts as running; None if none may begin now."""
        self.end_rests(now)
        self._permits.lapse(now)
        for priority in sorted(self._lanes, reverse=True):
            lanes = self._lanes[priority]
            for type_ in sorted(lanes, key=lambda name: self._running[name] / self._shares[name].weight):
                if self._permits.left(type_) < 1:
                    continue
                item = self._take_from(lanes[type_], type_, now)
                if not lanes[type_].waiting:
                    del lanes[type_]
                if item is not None:
                    return item
            if not lanes:
                del self._lanes[priority]
        return None

    def done(self, type: str, group: str) -> None:  # noqa: A002
        """Note that an item that was taken no longer runs."""
        name = type, group
        self._running[type] -= 1
        self._running_of[name] -= 1
        if not self._running_of[name]:
            del self._running_of[name]
        if not self._enter_all(type, group):
            self._last.pop(name, None)

    def shed(self, most: int) -> list[T]:
        """Remove and return up to ``most`` items that a limit or rate of their group holds back. The lowest
        priority goes first, of that the longest lines, and of each its newer half."""
        shed, resting = list[T](), {(type_, group) for _, type_, group in self._resting}
        for priority in sorted(self._lanes):
            for type_, lane in self._lanes[priority].items():
                limit = self._shares[type_].group_limit
                for group, line in sorted(lane.waiting.items(), key=lambda each: -len(each[1])):
                    name = type_, group
                    if len(shed) >= most:
                        return shed
                    if name in resting or 0 < limit <= self._running_of[name]:
                        shed += self._cut(lane, name, min((len(line) + 1) // 2, most - len(shed)))
        return shed

    def drain(self) -> list[T]:
        """Remove and return every waiting item."""
        lanes = [lane for by_type in self._lanes.values() for lane in by_type.values()]
        items = [item for lane in lanes for line in lane.waiting.values() for item in line]
        self._lanes.clear()
        self._resting.clear()
        self._count = 0
        return items

    def end_rests(self, now: float) -> None:
        """Let groups go on whose rate held them back until now. Call this at ``rests_until``, even if no item
        may begin then."""
        while self._resting and self._resting[0][0] <= now:
            _, type_, group = heapq.heappop(self._resting)
            self._enter_all(type_, group)

    def rests_until(self) -> float | None:
        """Return when the next group may go on that its rate holds back."""
        return self._resting[0][0] if self._resting else None

    def _unlimited(self, type_: str, lane: _TypeLane[T]) -> int:
        share = self._shares[type_]
        if not (share.group_limit or share.group_rate):
            return lane.count
        most = share.group_limit or math.inf
        resting = {group for _, name, group in self._resting if name == type_}
        return sum(
            int(min(len(line), max(0, most - self._running_of[type_, group])))
            for group, line in lane.waiting.items()
            if group not in resting
        )

    def _cut(self, lane: _TypeLane[T], name: tuple[str, str], count: int) -> list[T]:
        """Remove and return the newest of a group's items, the newest first."""
        type_, group = name
        line = lane.waiting[group]
        items = [line.pop() for _ in range(count)]
        lane.count -= count
        self._count -= count
        if not line:
            del lane.waiting[group]
            lanes = (by_type[type_] for by_type in self._lanes.values() if type_ in by_type)
            if not self._running_of[name] and not any(group in each.waiting for each in lanes):
                self._last.pop(name, None)
        return items

    def _take_from(self, lane: _TypeLane[T], type_: str, now: float) -> T | None:
        share = self._shares[type_]
        while lane.line:
            running, last, group = heapq.heappop(lane.line)
            name = type_, group
            line = lane.waiting.get(group)
            if not line or (running, last) != (self._running_of[name], self._last.get(name, 0)):
                continue  # out of date: a newer entry replaces it
            if share.group_limit and running >= share.group_limit:
                continue  # enters again when a task of its group ends
            if rest_s := self._rest_s(type_, group, now):
                heapq.heappush(self._resting, (now + rest_s, type_, group))
                continue
            return self._begin(lane, name)
        return None

    def _rest_s(self, type_: str, group: str, now: float) -> float:
        """Return for how long the rate of a group holds it back; 0 if its next task may begin, which then
        counts as begun. Groups that have long rested are forgotten each time that their number has
        doubled."""
        rate = self.rates.get(type_)
        if rate is None:
            return 0.0
        if len(rate) >= self._forget_at[type_]:
            rate.forget(now)
            self._forget_at[type_] = max(GROUPS_MIN, 2 * len(rate))
        return rate.take(group, 1, now)

    def _begin(self, lane: _TypeLane[T], name: tuple[str, str]) -> T:
        type_, group = name
        line = lane.waiting[group]
        item = line.popleft()
        if not line:
            del lane.waiting[group]
        lane.count -= 1
        self._count -= 1
        self._running[type_] += 1
        self._permits.spend(type_)
        self._running_of[name] += 1
        self._last[name] = next(self._taken)
        self._enter_all(type_, group)
        return item

    def _enter(self, lane: _TypeLane[T], type_: str, group: str) -> None:
        name = type_, group
        heapq.heappush(lane.line, (self._running_of[name], self._last.get(name, 0), group))

    def _enter_all(self, type_: str, group: str) -> bool:
        """Renew a group's entries wherever it waits; return False if it doesn't wait."""
        found = [lane for by_type in self._lanes.values() if (lane := by_type.get(type_)) is not None]
        waiting = [lane for lane in found if group in lane.waiting]
        for lane in waiting:
            self._enter(lane, type_, group)
        return bool(waiting)
