"""The observed state of the demo's live part: nodes, streams, owners and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.extend import Change, Member

RATE_S = 2.0
"""Rates are taken over this time."""


class CommittedResult(NamedTuple):
    """A line of the results log. ``at`` is wall time; ``owner`` the node that had the stream."""

    frame: int
    at: float
    owner: str
    result: dict[str, Any]


@dataclass(slots=True)
class PictureNode:
    """One membership. ``name``: the shown name; ``place``: the supervisor's name of the node in all its
    lives, ``life``: in this one; ``metrics``: the URL of its metrics."""

    name: str
    place: str
    life: str
    metrics: str
    state: Literal["running", "draining", "ended", "killed"] = "running"
    duplicates: int = 0


@dataclass(slots=True)
class Stream:
    """One stream. ``frames`` is how many will be sent."""

    frames: int
    sent: int = 0
    owner: str = ""
    moves: int = 0
    failovers: int = 0
    committed: list[CommittedResult] = field(default_factory=list)


class Kill(NamedTuple):
    """A node killed at a wall time, with the streams it owned."""

    at: float
    node: str
    keys: tuple[str, ...]


class Event(NamedTuple):
    """An event to show, ``at_s`` seconds after the first frame; None: before it."""

    at_s: float | None
    text: str


class Picture:
    """Collects observations in their order. ``frames``: the number of frames of each stream."""

    def __init__(self, frames: Mapping[str, int], now: Callable[[], float]) -> None:
        self.now = now
        self.began_at: float | None = None
        self.nodes: dict[str, PictureNode] = {}
        self.streams = {key: Stream(count) for key, count in frames.items()}
        self.events: list[Event] = []
        self.kill: Kill | None = None
        self._back: set[str] = set()

    @property
    def frames(self) -> int:
        """Frames that will be sent."""
        return sum(stream.frames for stream in self.streams.values())

    @property
    def sent(self) -> int:
        """Frames sent so far."""
        return sum(stream.sent for stream in self.streams.values())

    @property
    def committed(self) -> int:
        """Results so far."""
        return sum(len(stream.committed) for stream in self.streams.values())

    @property
    def running(self) -> int:
        """Nodes that run and stay."""
        return sum(node.state == "running" for node in self.nodes.values())

    @property
    def moves(self) -> int:
        """The number of times that a living node handed a stream to another."""
        return sum(stream.moves for stream in self.streams.values())

    @property
    def failovers(self) -> int:
        """The number of times that a stream was taken over from a dead node."""
        return sum(stream.failovers for stream in self.streams.values())

    @property
    def duplicates(self) -> int:
        """Duplicate deliveries that nodes dropped."""
        return sum(node.duplicates for node in self.nodes.values())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first frame."""
        return 0.0 if self.began_at is None else self.now() - self.began_at

    def name(self, member: str) -> str:
        """Return the shown name of a membership's node; "" for one that never joined."""
        node = self.nodes.get(member)
        return node.name if node else ""

    def owned(self, name: str) -> list[str]:
        """Return the streams of a node."""
        return [key for key, stream in self.streams.items() if stream.owner == name]

    def rate(self, name: str) -> float:
        """Return the frames a second that a node has committed lately."""
        since = self.now() - RATE_S
        recent = 0
        for stream in self.streams.values():
            for line in reversed(stream.committed):
                if line.at < since:
                    break
                recent += line.owner == name
        return recent / min(RATE_S, max(self.elapsed_s, 0.1))

    # -- observations

    def begin(self) -> None:
        """The first frame is sent now."""
        self.began_at = self.now()

    def note(self, text: str) -> None:
        """Note an event."""
        self.events.append(Event(None if self.began_at is None else self.elapsed_s, text))

    def changed(self, change: Change) -> None:
        """A change at the coordinator."""
        if change.kind == "joined" and change.member is not None:
            self._joined(change.member)
        elif change.kind == "left" and change.member is not None:
            self._left(change.member)
        elif change.claim is not None:
            key, node = change.claim.key.partition("/")[2], self.nodes.get(change.claim.member)
            if node is not None and key in self.streams:
                self._claimed(self.streams[key], node)

    def _joined(self, member: Member) -> None:
        place = member.name.rpartition("-")[0]
        lives = sum(node.place == place for node in self.nodes.values())
        name = f"{place}·{lives + 1}" if lives else place
        known = any(node.life == member.name for node in self.nodes.values())
        self.nodes[member.id] = PictureNode(name, place, member.name, member.load.metrics)
        how = "joined" if not lives else "lost its membership and joined again" if known else "started again"
        self.note(f"{place} {how}, as {name}" if lives else f"{name} {how}")

    def _left(self, member: Member) -> None:
        node = self.nodes.get(member.id)
        if node is not None and node.state != "killed":
            if node.state == "draining":
                self.note(f"{node.name} drained and ended")
            node.state = "ended"

    def _claimed(self, stream: Stream, node: PictureNode) -> None:
        """Count a move from a living node, or a failover from a dead one."""
        before = next((other for other in self.nodes.values() if other.name == stream.owner), None)
        if before is not None and before is not node:
            moved = before.state in ("running", "draining")
            stream.moves += moved
            stream.failovers += not moved
        stream.owner = node.name

    def killed(self, member: str) -> None:
        """A node is killed now."""
        node = self.nodes[member]
        node.state = "killed"
        keys = tuple(self.owned(node.name))
        self.kill = Kill(self.now(), node.name, keys)
        self.note(f"{node.name} killed (SIGKILL), the owner of {len(keys)} streams")

    def draining(self, member: str) -> None:
        """A node gets the signal to end now."""
        node = self.nodes[member]
        node.state = "draining"
        self.note(f"{node.name} drains (SIGTERM), the owner of {len(self.owned(node.name))} streams")

    def result(self, key: str, line: CommittedResult) -> None:
        """The next line of the results log."""
        self.streams[key].committed.append(line)
        kill = self.kill
        if kill and key in kill.keys and key not in self._back and goes_on(line, kill):
            self._back.add(key)
            self.note(f"{key} goes on at {line.owner} after {1000 * (line.at - kill.at):.0f} ms")


def goes_on(line: CommittedResult, kill: Kill) -> bool:
    """True for a commit of another node after the kill."""
    return line.at >= kill.at and line.owner != kill.node
