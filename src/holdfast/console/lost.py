"""The nodes that a console has seen end without a drain: when, and what has become of their streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.common.text import counted, duration
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member

KEPT_S = 3600.0
"""For how long a lost node is shown."""

NODES_MAX = 200
"""The most lost nodes that are remembered. A cluster that loses more has other worries than their list."""


class LostNode(msgspec.Struct, frozen=True):
    """A node that ended without a drain, at the wall time ``at``. It had ``streams``: of these, ``elsewhere``
    are on other nodes, and the rest on none."""

    name: str
    id: str
    address: str
    at: float
    streams: int
    elsewhere: int

    @property
    def sentence(self) -> str:
        """A sentence about what has become of its streams."""
        if not self.streams:
            return "it had no streams"
        left = self.streams - self.elsewhere
        are = "is" if self.elsewhere == 1 else "are"
        said = f"{self.elsewhere} of its {counted(self.streams, 'stream')} {are} on other nodes"
        return f"{said}; {left} on none, until their next message" if left else said


class _Loss(msgspec.Struct, frozen=True):
    member: Member
    ended_at: float
    wall_at: float
    keys: Collection[str]


class LostNodes:
    """The nodes that were lost within the last hour. ``members`` returns the living members by id, ``owned``
    the full keys of the streams of a membership, and ``owner`` the membership that has claimed a stream."""

    def __init__(
        self,
        clock: Clock,
        members: Callable[[], Collection[Member]],
        owned: Callable[[str], Collection[str]],
        owner: Callable[[str], str],
    ) -> None:
        self._clock = clock
        self._members = members
        self._owned = owned
        self._owner = owner
        self._losses: dict[str, _Loss] = {}

    def left(self, member: Member) -> None:
        """Take that a membership has ended, with the member as it was last known. Who tells it later may know
        better that it drained."""
        if member.foreign:
            return
        if member.load.draining:
            self._losses.pop(member.id, None)
        elif member.id not in self._losses and member.name:
            now, wall, keys = self._clock.monotonic(), self._clock.wall(), self._owned(member.id)
            self._losses[member.id] = _Loss(member, now, wall, keys)
            while len(self._losses) > NODES_MAX:
                del self._losses[next(iter(self._losses))]

    def all(self) -> Sequence[LostNode]:
        """Return them, the last one first. A node that has joined again isn't lost."""
        now, living = self._clock.monotonic(), {member.id: member for member in self._members()}
        processes = {_process(member) for member in living.values()}
        self._losses = {key: loss for key, loss in self._losses.items() if now - loss.ended_at < KEPT_S}
        return [
            LostNode(
                loss.member.name,
                loss.member.id,
                loss.member.address,
                loss.wall_at,
                len(loss.keys),
                sum(self._owner(key) in living for key in loss.keys),
            )
            for loss in reversed(self._losses.values())
            if _process(loss.member) not in processes
        ]


def lost_since(node: LostNode, now: float) -> str:
    """Say how long ago a node was lost, and what has become of its streams."""
    return f"{node.name} ended without a drain {duration(now - node.at)} ago: {node.sentence}"


def _process(member: Member) -> tuple[str, str, float]:
    return member.name, member.address, member.load.started_at
