"""The timers of one stream, as the entries appended so far leave them, and the firing that is next.

A timer that is due is a head like a message: it is marked, tried, skipped and committed as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.common.acts import TimerChange
from holdfast.common.held import Held
from holdfast.common.message import TIMER_RUN, Life, Place
from holdfast.rules.streams.ledger import Timer

TIMERS = 64
"""The default of ``max_timers``."""

TIMER_BYTES_MAX = 1024
"""The largest body of a timer."""

REARM_S = 0.1
"""The least time between two firings of a timer that sets itself again."""

WALL_LOOK_S = 60.0
"""Seconds between two looks at the wall clock while a timer waits: the clock may have been set."""


def place_of(timer: Timer) -> Place:
    """Return the place of a timer's firing. It names the setting: a timer that is set again is another
    head."""
    return Place(TIMER_RUN, 0, f"{timer.name}:{timer.setting}")


class Timers:
    """The timers of one opening. Times are wall times."""

    __slots__ = ("_count", "_epoch", "firing", "firings", "standing", "stored")

    def __init__(self, epoch: int = 0, standing: Iterable[Timer] = ()) -> None:
        self._epoch = epoch
        self._count = 0
        self.stored = tuple(standing)
        """The timers as the last answered commit has them."""
        self.standing = {timer.name: timer for timer in self.stored}
        """The timers that stand, by name."""
        self.firing: Held | None = None
        """The firing that is next or runs."""
        self.firings: dict[Place, Held] = {}
        """All firings whose commit isn't answered yet."""

    @property
    def all(self) -> tuple[Timer, ...]:
        """The timers that stand."""
        return tuple(self.standing.values())

    @property
    def next_at(self) -> float | None:
        """The wall time at which the next timer is due; None without timers."""
        return min((timer.at for timer in self.standing.values()), default=None)

    def due(self, wall: float) -> Timer | None:
        """Return the timer that is due for the longest time."""
        return min(
            (timer for timer in self.standing.values() if timer.at <= wall),
            key=lambda timer: (timer.at, timer.name),
            default=None,
        )

    def at(self, held: Held) -> float | None:
        """Return the due time of the timer of this firing; None if the timer is gone."""
        return next((t.at for t in self.standing.values() if place_of(t) == held.place), None)

    def head(self, now: float, wall_ahead_s: float) -> Held | float | None:
        """Return the firing that may begin now, or has no tries left. Otherwise return the monotonic time of
        the next look; None without timers."""
        fired = self.firing
        at = None if fired is None else self.at(fired)
        if fired is not None and at is None:
            del self.firings[fired.place]  # its timer was set again, or cleared
            fired = None
        if fired is None:
            fired = self.firing = self._fire(now + wall_ahead_s)
        if fired is None:
            next_at = self.next_at
            return None if next_at is None else min(next_at - wall_ahead_s, now + WALL_LOOK_S)
        # The clock may have been set back since it was chosen, for its start had to be counted.
        begin_at = max(fired.retry_at, now if at is None else at - wall_ahead_s)
        if fired.spent or now >= begin_at:
            return fired
        return min(begin_at, max(fired.retry_at, now + WALL_LOOK_S))

    def _fire(self, wall: float) -> Held | None:
        timer = self.due(wall)
        if timer is None:
            return None
        fired = self.firings[place_of(timer)] = Held(place_of(timer), timer.body, {}, [])
        fired.become(Life.WAITING)
        return fired

    def revert(self, undone: Iterable[Held]) -> None:
        """Go back to the stored timers, and to the first of the firings that are undone. Settings are still
        distinct from all that were made before."""
        self.standing = {timer.name: timer for timer in self.stored}
        self.firing = next((held for held in undone if held.place.run == TIMER_RUN), self.firing)

    def would_be(self, changes: Iterable[TimerChange]) -> int:
        """Return how many timers there are after these changes."""
        names = set(self.standing)
        for change in changes:
            (names.discard if change.at is None else names.add)(change.name)
        return len(names)

    def change(self, changes: Iterable[TimerChange], not_before: float = 0.0) -> None:
        """Set and clear timers, in order. None is due before the wall time ``not_before``."""
        for change in changes:
            if change.at is None:
                self.standing.pop(change.name, None)
            else:
                self._count += 1
                setting = f"{self._epoch}.{self._count}"
                at = max(change.at, not_before)
                self.standing[change.name] = Timer(change.name, at, change.body, setting)

    def fired(self, held: Held) -> None:
        """Note that a firing was handled or skipped. Its timer is removed, unless it was set again since."""
        self.firing = None
        for timer in self.standing.values():
            if place_of(timer) == held.place:
                del self.standing[timer.name]
                return
