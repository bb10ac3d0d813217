"""Nodes that ended without a drain while the console ran, and where their streams are now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.common.text import counted, duration
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member

KEPT_S = 3600.0
"""Seconds for which a lost node is shown."""

NODES_MAX = 200
"""The most lost nodes that are kept."""


class LostNode(msgspec.Struct, frozen=True):
    """A node that ended without a drain at the wall time ``at``. Of its ``streams``, ``elsewhere`` are on
    other nodes now, and the rest on none."""

    name: str
    id: str
    address: str
    at: float
    streams: int
    elsewhere: int

    @property
    def sentence(self) -> str:
        """The whereabouts of its streams, in words."""
        if not self.streams:
            return "it had no streams"
        left = self.streams - self.elsewhere
        are = "is" if self.elsewhere == 1 else "are"
        found = f"{self.elsewhere} of its {counted(self.streams, 'stream')} {are} on other nodes"
        return f"{found}; {left} on none, until their next message" if left else found


class _Loss(msgspec.Struct, frozen=True):
    member: Member
    ended_at: float
    wall_at: float
    keys: Collection[str]


class LostNodes:
    """The nodes that were lost within the last hour. ``members`` returns the living members, ``owned`` the
    full keys of a membership's streams, and ``owner`` the membership that has claimed a stream."""

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
        """Take the end of a membership, with the last known state of its member. A later report may know
        that it was draining."""
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
        """Return the lost nodes, the last one first. A node that has joined again isn't lost."""
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
    """Return in words how long ago a node was lost, and where its streams are."""
    return f"{node.name} ended without a drain {duration(now - node.at)} ago: {node.sentence}"


def _process(member: Member) -> tuple[str, str, float]:
    return member.name, member.address, member.load.started_at
