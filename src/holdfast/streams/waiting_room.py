"""Has messages wait that no owner takes now: here, to be offered again after pauses, or in their queue.

A message that no owner has accepted is offered again after growing pauses. As a last resort, it goes back to
the queue, with jitter. A message whose owner has no room, and has reserved the key, goes back at once: the
owner takes it from there. If the queue knows no keys, the message waits here in the line of its key, as long
as the line has room.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Protocol

from holdfast.cluster.host import Host
from holdfast.common.message import Life
from holdfast.common.progress import chunks
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError
from holdfast.ports.queue import Queue
from holdfast.streams.forwarding import FORWARDS_MAX
from holdfast.streams.lines import Line
from holdfast.streams.pending_forwards import PendingForward, PendingForwards
from holdfast.streams.reservations import Reservations

LINE_SHARE = 4
"""The fraction (1/4) of the custody that the messages of one key may take while they wait for room."""

PAUSE_MAX_S = 30.0
"""The longest pause of a message that goes back because there is no room, in seconds: its owner expects it
back for twice as long (``AWAY_S``)."""

GAP_SHARE = 3
"""The fraction (1/3) of a stream's gap timeout that such a pause may take at most."""

_order = attrgetter("order")


class FullOwners(Protocol):
    """The owners on this node, for messages that found a full inbox. All keys are full keys."""

    def is_reserved(self, key: str) -> bool:
        """Return True if the key's owner here has reserved it at the queue."""

    def waits_for_gap(self, key: str) -> bool:
        """Return True if the key's owner here waits for a missing message."""


class WaitingRoom:
    """The messages that wait on one node. ``offer`` offers one again. ``is_placing`` returns True for one
    whose key is being placed."""

    def __init__(
        self,
        host: Host,
        forwards: PendingForwards,
        queues: Mapping[str, Queue],
        reservations: Reservations,
        gap_timeouts_s: Mapping[str, float],
        owners: FullOwners,
        *,
        offer: Callable[[PendingForward], None],
        is_placing: Callable[[PendingForward], bool],
    ) -> None:
        self._host = host
        self._clock, self._limits, self._tasks = host.clock, host.limits, host.tasks
        self._forwards = forwards
        self._queues = queues
        self._reservations = reservations
        self._gap_timeouts_s = gap_timeouts_s
        self._owners = owners
        self._offer = offer
        self._is_placing = is_placing
        self._deferred: list[tuple[float, int]] = []
        self.lines: dict[str, Line[PendingForward]] = {}
        """By key: the messages that wait for room."""
        self._lines_due: list[tuple[float, str]] = []
        self._leaving: dict[str, list[PendingForward]] = {}
        """By stream: messages that go back to the queue because there is no room."""
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Begin to offer messages again."""
        self._tasks.repeat(self._offer_deferred, self._clock, self._host.log)

    @property
    def count(self) -> int:
        """The number of messages that found no room and wait to be offered again."""
        return len(self._deferred) + sum(map(len, self.lines.values()))

    def is_crowded(self, stream: str) -> bool:
        """Return True if messages that wait for room fill half of the custody, or of the share of their key.
        At full speed, others would soon go back to the queue too, and return in any order. A key whose owner
        waits for a missing message doesn't count: that one is to be found soon."""
        lines = {key: line for key, line in self.lines.items() if not line.is_behind_gap}
        if len(self._deferred) + sum(map(len, lines.values())) > self._limits.custody_max / 2:
            return True
        return any(
            2 * len(line) > self._line_max and key.startswith(f"{stream}/") for key, line in lines.items()
        )

    def accepted(self, key: str) -> None:
        """Note that an owner has taken a message of a key."""
        if (line := self.lines.get(key)) is not None:
            line.accepted()

    def lapses(self, item: PendingForward) -> bool:
        """Return True if the delivery of a message must not be extended. A queue that keeps order delivers
        nothing of a key before what is in flight of it. If the owner waits for a missing message, the
        messages in line lapse, as the ones that it holds do, so that the missing one comes first."""
        line = self.lines.get(item.key) if self._queues[item.stream].fifo else None
        return line is not None and line.is_behind_gap

    # -- pauses -----------------------------------------------------------------------------------------

    def defer(self, item: PendingForward, *, is_foreign: bool = False) -> None:
        """Offer a message again after a pause. After the last try it goes back to the queue. ``is_foreign``:
        for another program."""
        self._forwards.take_from_owner(item)
        item.tries += 1
        if item.tries > self._limits.give_back_after or self._forwards.kept > self._limits.custody_max:
            if self._host.membership.alive:
                items = self._forwards.let_go([item])
                self._tasks.spawn(self._give_back(item.stream, items, at_once=not is_foreign))
                return
            item.tries = self._limits.give_back_after
        pause_s = self._limits.defer.delay_s(item.tries, self._clock.random())
        heapq.heappush(self._deferred, (self._clock.monotonic() + pause_s, item.number))
        self._changed.set()

    def leave(self, item: PendingForward) -> None:
        """Give a message back to the queue because another program owns the stream and receives for
        itself."""
        item.tries = self._limits.give_back_after
        self.defer(item, is_foreign=True)

    def find_room(self, item: PendingForward, verdict: str = "full") -> None:
        """Have a message wait that its owner here didn't take: in the queue, if it keeps the message for the
        owner."""
        if self._owners.is_reserved(item.key):
            self.put_back(item)
        elif verdict == "full":
            self.wait_for_room(item, is_behind_gap=self._owners.waits_for_gap(item.key))
        else:
            self.defer(item)

    # -- lines ------------------------------------------------------------------------------------------

    @property
    def _line_max(self) -> int:
        return max(1, self._limits.custody_max // LINE_SHARE)

    def wait_for_room(self, item: PendingForward, *, is_behind_gap: bool) -> None:
        """Have a message wait until its owner has room for it: in the line of its key, if the queue knows no
        keys. The highest one goes back to the queue if there are too many. ``is_behind_gap``: the owner waits
        for a missing message."""
        if self._queues[item.stream].by_key:
            self.defer(item)
            return
        self._forwards.take_from_owner(item)
        line = self.lines.get(item.key)
        if line is None:
            line = self.lines[item.key] = Line(_order, self.waits, FORWARDS_MAX)
            self._offer_later(item.key, line)
        line.refused()
        line.is_behind_gap = is_behind_gap
        self.join(line, item)

    def join(self, line: Line[PendingForward], item: PendingForward) -> None:
        """Add a message to a line."""
        line.add(item)
        is_over = len(line) > self._line_max or self._forwards.kept > self._limits.custody_max
        if is_over and self._host.membership.alive and (highest := line.pop_highest()) is not None:
            self._leave_for_room(highest)

    def waits(self, item: PendingForward) -> bool:
        """Return True if a message in a line still waits for its owner's room."""
        return item in self._forwards and not item.to and not self._is_placing(item)

    def _offer_later(self, key: str, line: Line[PendingForward]) -> None:
        pause_s = self._limits.defer.delay_s(1 + line.refusals, self._clock.random())
        heapq.heappush(self._lines_due, (self._clock.monotonic() + pause_s, key))
        self._changed.set()

    def _offer_line(self, key: str) -> None:
        """Offer the lowest of a line to the owner, until it has no room. An empty line stays until it is due
        the next time, because messages of it may be under way to the owner."""
        line = self.lines[key]
        was_empty = not line
        offered = line.offer()
        for index, item in enumerate(offered):
            self._offer(item)
            if self.waits(item):
                for behind in offered[index + 1 :]:
                    line.add(behind)
                break
        if was_empty:
            del self.lines[key]
        else:
            self._offer_later(key, line)

    async def _offer_deferred(self) -> None:
        while True:
            self._changed.clear()
            timeout_s = None
            if due := [heap[0][0] for heap in (self._deferred, self._lines_due) if heap]:
                timeout_s = max(0.0, min(due) - self._clock.monotonic())
            if timeout_s is None or timeout_s > 0:
                await self._clock.wait(self._changed, timeout_s)
            self._offer_due()

    def _offer_due(self) -> None:
        now = self._clock.monotonic()
        while self._deferred and self._deferred[0][0] <= now:
            item = self._forwards.get(heapq.heappop(self._deferred)[1])
            if item is not None and self.waits(item):
                self._offer(item)
        while self._lines_due and self._lines_due[0][0] <= now:
            self._offer_line(heapq.heappop(self._lines_due)[1])

    # -- back to the queue ------------------------------------------------------------------------------

    def put_back(self, item: PendingForward) -> None:
        """Put a message back to the queue, from which its owner takes it in order."""
        if not self._reservations.knows_keys(item.stream):
            self.defer(item)  # an owner of another version, with another queue
            return
        self._forwards.take_from_owner(item)
        self._forwards.end(item.number)
        item.held.become(Life.GIVEN_BACK)
        plain = item.key.partition("/")[2]
        self._reservations.put_back(item.stream, plain, [item.held], counted=item.suspect)

    def reserved(self, key: str) -> None:
        """Note that the owner here has reserved a key: what waits for room in it goes back to the queue."""
        for item in self._forwards:
            if item.key == key and not item.to and not self._is_placing(item):
                self.put_back(item)

    def _leave_for_room(self, item: PendingForward) -> None:
        """Give a message back to the queue because too many of its key wait, in calls with others."""
        if self._queues[item.stream].fifo:
            self._tasks.spawn(self._give_back(item.stream, self._forwards.let_go([item]), at_once=True))
            return
        self._forwards.end(item.number)
        self._host.stats.given_back += 1
        item.held.become(Life.GIVEN_BACK)
        leaving = self._leaving.setdefault(item.stream, [])
        leaving.append(item)
        if len(leaving) == 1:
            self._tasks.spawn(self._give_back_leaving(item.stream))

    async def _give_back_leaving(self, stream: str) -> None:
        """Give back what has gathered, the highest first, each for a pause that doubles with its receives."""
        leaving = sorted(self._leaving.pop(stream), key=_order, reverse=True)
        longest_s = min(PAUSE_MAX_S, max(1.0, self._gap_timeouts_s[stream] / GAP_SHARE))
        pauses = Backoff(self._limits.give_back_s, longest_s)
        for receives in sorted({item.held.receives for item in leaving}):
            some = [item for item in leaving if item.held.receives == receives]
            await self._return(stream, some, pauses.delay_s(receives, self._clock.random()))

    async def _give_back(self, stream: str, items: list[PendingForward], *, at_once: bool = False) -> None:
        """Give messages back to the queue, the highest first: one that keeps order then delivers none of them
        before the lowest is there. A pause would only stop the key of such a queue. ``at_once`` leaves it
        out, for messages that this program goes on with."""
        pause_s = self._limits.give_back_s * (0.5 + self._clock.random())
        if at_once and self._queues[stream].fifo:
            pause_s = 0.0
        for item in items:
            item.held.become(Life.GIVEN_BACK)
        self._host.stats.given_back += len(items)
        await self._return(stream, sorted(items, key=_order, reverse=True), pause_s)

    async def _return(self, stream: str, items: list[PendingForward], pause_s: float) -> None:
        receipts = [r.receipt for item in items for r in item.held.receipts if not r.stale]
        for batch in chunks(receipts, self._queues[stream].max_batch):
            try:
                await self._queues[stream].give_back(batch, pause_s)
            except HoldfastError as error:
                self._host.log.warning("cannot give messages back", error=str(error))

    async def give_back_all(self) -> int:
        """Give messages that no owner has accepted back to the queue, before a stop. Returns how many."""
        items = self._forwards.let_go([item for item in self._forwards if not item.accepted])
        for stream, queue in self._queues.items():
            own = [item for item in items if item.stream == stream]
            for start in range(0, len(own), queue.max_batch):
                await self._give_back(stream, own[start : start + queue.max_batch], at_once=True)
        return len(items)
