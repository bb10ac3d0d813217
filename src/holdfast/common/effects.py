"""The pending effects of one stream or task: the ones to hand over now, and their changes in the next commit.

Effects with the same target and key form a *lane*. One run of a lane is handed over at a time: its oldest
effects. The target takes the first ones, as many as it can. The next run waits until the outcome is known, so
first hand-overs are in order. An effect that its target refuses keeps its place: a commit marks it, and then
it alone is handed over to the dead letters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from holdfast.common.acts import Effect, RefusedEffect, Send, effect_id
from holdfast.common.retry import Backoff

HOPS_MAX = 16
"""Maximum length of a chain of effects. A longer one is taken for a loop."""

TRY_AGAIN = Backoff(0.2, 300.0)
"""The pauses before an effect that failed is handed over again."""

RUN_MAX = 100
"""Maximum effects of one lane in one hand-over."""

REST_MAX_S = 300.0
"""Maximum seconds that a stream or a task rests without an owner while a target is away."""


class EffectLimits(msgspec.Struct, frozen=True):
    """The limits of a stream's pending effects. At the maximum count, or bytes of bodies, no further message
    runs. An effect that its target hasn't taken for ``timeout_s`` becomes a dead letter."""

    pending: int = 1000
    pending_bytes: int = 4 << 20
    timeout_s: float = 86_400.0


class PendingReport(msgspec.Struct, frozen=True):
    """A report on pending effects, for operators: their count, the wall time of the oldest, and the target
    that has failed most often, with its failures and the last error."""

    count: int
    oldest_at: float
    target: str
    failures: int
    error: str = ""


class EffectChanges(NamedTuple):
    """The pending effects that a commit drops, by id, and the ones that it marks as refused."""

    dropped: tuple[str, ...] = ()
    refused: tuple[RefusedEffect, ...] = ()


UNCHANGED = EffectChanges()


class EffectLane:
    """The effects of one stream to one target and key, oldest first."""

    __slots__ = ("effects", "error", "is_out", "retry_at", "tries")

    def __init__(self) -> None:
        self.effects: deque[Effect] = deque()
        self.begin()

    def begin(self) -> None:
        """Begin with the oldest effect, which has not been handed over yet."""
        self.is_out = False
        """True while the outcome of a hand-over isn't known, or a refusal isn't committed."""
        self.tries = 0
        self.retry_at = 0.0
        self.error = ""
        """The reason of the last failure."""

    def run(self) -> tuple[Effect, ...]:
        """Return the effects to hand over together: the oldest ones, or a refused one alone."""
        oldest = takewhile(lambda effect: not effect.refused, islice(self.effects, RUN_MAX))
        return tuple(oldest) or (self.effects[0],)


class Effects:
    """The pending effects of one opening of a stream, or of one task: ``count`` of them. ``now`` is monotonic
    seconds, ``wall`` the wall time."""

    __slots__ = (
        "_bytes",
        "_flying",
        "_lane_of",
        "_lanes",
        "_limits",
        "_refused",
        "_taken",
        "count",
        "is_full",
        "is_idle",
        "taken_at",
    )

    def __init__(self, limits: EffectLimits, pending: Iterable[Effect] = ()) -> None:
        self._limits = limits
        self._lanes: dict[tuple[str, ...], EffectLane] = {}
        self._lane_of: dict[str, tuple[str, ...]] = {}
        self.count = self._bytes = 0
        self._taken: list[str] = []
        self._refused: list[RefusedEffect] = []
        self._flying = UNCHANGED
        self.is_full = False
        """True while no further message may run."""
        self.is_idle = True
        """True while nothing is pending, and no commit has changes of effects."""
        self.taken_at = 0.0
        """Monotonic time at which the first effect was taken that no commit has dropped."""
        for effect in pending:
            self.add(effect)

    def report(self) -> PendingReport | None:
        """Return a report on pending effects; None without any."""
        if not self._lanes:
            return None
        lane = max(self._lanes.values(), key=lambda lane: (lane.tries, -lane.effects[0].number))
        oldest_at = min(lane.effects[0].at for lane in self._lanes.values())
        target = "" if lane.effects[0].refused else lane.effects[0].target
        return PendingReport(self.count, oldest_at, target or "the dead letters", lane.tries, lane.error)

    @property
    def is_out(self) -> bool:
        """True while the outcome of a hand-over isn't known."""
        return any(lane.is_out for lane in self._lanes.values())

    @property
    def has_taken(self) -> bool:
        """True while a commit is to drop effects that were taken."""
        return bool(self._taken)

    @property
    def has_refused(self) -> bool:
        """True while a commit is to mark effects that were refused."""
        return bool(self._refused)

    # -- hand-over ------------------------------------------------------------------------------------------

    def hand_over(self, now: float, wall: float) -> list[tuple[Effect, ...]]:
        """Return the runs of effects to hand over now. Each needs an answer, which names its first effect:
        ``taken``, ``refused`` or ``failed``."""
        ready: list[tuple[Effect, ...]] = []
        for lane in self._lanes.values():
            if not lane.is_out and lane.retry_at <= now and lane.effects[0].not_before <= wall:
                lane.is_out = True
                ready.append(lane.run())
        return ready

    def next_at(self, now: float, wall: float) -> float | None:
        """Return the monotonic time of the next hand-over that needs no answer before."""
        waits = [
            max(lane.retry_at, now + lane.effects[0].not_before - wall)
            for lane in self._lanes.values()
            if not lane.is_out
        ]
        return min(waits, default=None)

    def taken(self, effect_id: str, count: int, now: float) -> None:
        """Note that the target has taken the first ``count`` effects of a run. The next commit drops them."""
        if (lane := self.lane(effect_id)) is None:
            return
        if not self._taken:
            self.taken_at = now
        for _ in range(count):
            self._taken.append(lane.effects[0].id)
            self._remove(lane)

    def refused(self, effect_id: str, reason: str) -> None:
        """Note that the target refuses the first effect of a run. It becomes a dead letter after a commit has
        marked it."""
        if self.lane(effect_id) is not None:
            self._refused.append(RefusedEffect(effect_id, reason))

    def failed(self, effect_id: str, now: float, wall: float, error: str) -> None:
        """Note that the hand-over failed. The run is handed over again later; after ``timeout_s`` its first
        effect is refused. ``error`` is the reason, empty if unknown."""
        if (lane := self.lane(effect_id)) is None:
            return
        lane.error = error or lane.error
        effect = lane.effects[0]
        if not effect.refused and wall - effect.at > self._limits.timeout_s:
            hours = self._limits.timeout_s / 3600
            last = f"; its last error: {lane.error}" if lane.error else ""
            self.refused(effect_id, f"its target took nothing for {hours:g} hours (effect_timeout_s){last}")
            return
        lane.is_out = False
        lane.tries += 1
        lane.retry_at = now + TRY_AGAIN.delay_s(lane.tries, 0.5)

    # -- commits --------------------------------------------------------------------------------------------

    def compose(self) -> EffectChanges:
        """Return the changes of pending effects for the next commit."""
        if not self._taken and not self._refused:
            self._flying = UNCHANGED
        else:
            self._flying = EffectChanges(tuple(self._taken), tuple(self._refused))
            self._taken, self._refused = [], []
        return self._flying

    def committed(self, added: Iterable[Effect]) -> None:
        """Note that the commit is confirmed: its effects are pending, and refused ones go to the dead
        letters."""
        for refused in self._flying.refused:
            lane = self._lanes[self._lane_of[refused.id]]
            lane.effects[0] = msgspec.structs.replace(lane.effects[0], refused=refused.reason)
            lane.begin()
        self._flying = UNCHANGED
        for effect in added:
            self.add(effect)
        self.is_idle = not self.count and not self._taken and not self._refused

    def revert(self) -> None:
        """Note that the commit failed. The next one has its changes."""
        self._taken = [*self._flying.dropped, *self._taken]
        self._refused = [*self._flying.refused, *self._refused]
        self._flying = UNCHANGED

    def due(self, now: float, wall: float) -> float:
        """Return the wall time from which the stream needs an owner for its effects; 0 for never."""
        waits = [
            wall if lane.is_out else max(wall + lane.retry_at - now, lane.effects[0].not_before)
            for lane in self._lanes.values()
        ]
        return min(waits, default=0.0)

    def rest_until(self, now: float, wall: float) -> float:
        """Return the wall time until which the stream may rest without an owner; 0 for ever. The older the
        effects of a failing target are, the longer is the rest."""
        waits = [
            max(
                wall + lane.retry_at - now,
                lane.effects[0].not_before,
                wall + min(REST_MAX_S, (wall - lane.effects[0].at) / 4) if lane.tries else wall,
            )
            for lane in self._lanes.values()
        ]
        return min(waits, default=0.0)

    def lane(self, effect_id: str) -> EffectLane | None:
        """Return the lane whose oldest effect this is, if its outcome isn't known yet."""
        lane = self._lanes.get(self._lane_of.get(effect_id, ()))
        waits = lane is not None and lane.is_out and lane.effects[0].id == effect_id
        return lane if waits and all(refused.id != effect_id for refused in self._refused) else None

    def add(self, effect: Effect) -> None:
        """Add a pending effect."""
        alone = (effect.id,) if effect.not_before > effect.at else ()  # it delays no other effect
        name = (effect.target, effect.key, *alone)
        self._lane_of[effect.id] = name
        self._lanes.setdefault(name, EffectLane()).effects.append(effect)
        self._size_changed(1, len(effect.body))

    def _remove(self, lane: EffectLane) -> None:
        effect = lane.effects.popleft()
        name = self._lane_of.pop(effect.id)
        lane.begin()
        if not lane.effects:
            del self._lanes[name]
        self._size_changed(-1, -len(effect.body))

    def _size_changed(self, count: int, size: int) -> None:
        self.count += count
        self._bytes += size
        self.is_idle = False  # until a commit has said so
        self.is_full = self.count >= self._limits.pending or self._bytes >= self._limits.pending_bytes


class EffectMaker:
    """Makes the effects of one commit, in the order in which they were sent."""

    def __init__(self, key: str, epoch: int, number: int, wall: float) -> None:
        self._key = key
        self._epoch = epoch
        self._number = number
        self._wall = wall
        self.made: list[Effect] = []

    def add(self, sends: Iterable[Send], cause: str, hops: int, traceparent: str = "") -> None:
        """Add the effects that the handler of ``cause`` sent. ``hops`` counts the effects that led to
        ``cause``."""
        for send in sends:
            reason = (
                "" if hops < HOPS_MAX else f"a chain of {HOPS_MAX} effects led to it, so it seems endless"
            )
            self._make(send, cause, hops + 1, reason, traceparent)

    def again(self, effect: Effect) -> None:
        """Add an effect that the store has lost."""
        delay_s = max(0.0, effect.not_before - self._wall)
        send = Send(effect.target, effect.key, effect.body, delay_s)
        self._make(send, effect.cause, effect.hops, effect.refused, effect.traceparent)

    def set_aside(self, body: bytes, cause: str, reason: str) -> None:
        """Add the dead letter of a timer that is skipped."""
        self._make(Send("", "", body), cause, 0, reason)

    def _make(self, send: Send, cause: str, hops: int, refused: str, traceparent: str = "") -> None:
        place = len(self.made)
        self.made.append(
            Effect(
                self._number,
                place,
                effect_id(self._key, self._epoch, self._number, place),
                send.target,
                send.key,
                send.body,
                cause,
                at=self._wall,
                not_before=self._wall + send.delay_s if send.delay_s > 0 else 0.0,
                hops=hops,
                refused=refused,
                traceparent=traceparent,
            )
        )
