"""The timers of one stream, as the entries appended so far leave them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.common.acts import TimerChange
from holdfast.common.held import Held
from holdfast.common.message import TIMER_RUN, Place
from holdfast.rules.streams.ledger import Timer

TIMERS = 64
"""How many timers a stream can have, unless it is declared otherwise."""

TIMER_BYTES_MAX = 1024
"""The largest body of a timer."""

REARM_S = 0.1
"""The least time between two firings of a timer that sets itself again."""


def place_of(timer: Timer) -> Place:
    """Return the place of a timer's firing. It names the setting: a timer set anew is another head."""
    return Place(TIMER_RUN, 0, f"{timer.name}:{timer.setting}")


class Timers:
    """The timers of one opening. Times are wall times."""

    __slots__ = ("_count", "_epoch", "standing")

    def __init__(self, epoch: int = 0, standing: Iterable[Timer] = ()) -> None:
        self._epoch = epoch
        self._count = 0
        self.standing = {timer.name: timer for timer in standing}
        """The timers that stand, by name."""

    @property
    def all(self) -> tuple[Timer, ...]:
        """The timers that stand."""
        return tuple(self.standing.values())

    @property
    def next_at(self) -> float | None:
        """The wall time at which the next timer is due; None if there is none."""
        return min((timer.at for timer in self.standing.values()), default=None)

    def due(self, wall: float) -> Timer | None:
        """Return the timer that is due for the longest time."""
        return min(
            (timer for timer in self.standing.values() if timer.at <= wall),
            key=lambda timer: (timer.at, timer.name),
            default=None,
        )

    def at(self, held: Held) -> float | None:
        """Return when the timer is due whose firing this is; None if it stands no more."""
        return next((t.at for t in self.standing.values() if place_of(t) == held.place), None)

    def reset(self, standing: Iterable[Timer]) -> None:
        """Go back to these timers. Settings are still told apart from all that were made before."""
        self.standing = {timer.name: timer for timer in standing}

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
        """Remove the timer whose firing this is, unless it was set anew since."""
        for timer in self.standing.values():
            if place_of(timer) == held.place:
                del self.standing[timer.name]
                return
