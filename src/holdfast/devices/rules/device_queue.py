"""The queue of one device: the states of a command, and the head of a lane.

A command is a row of the outbox's table; ``TABLE`` has its states and their changes. The *head* is a second
row, one for each lane of a device: it says which command is out, and when there is something to do next. Only
the owner of a device's shard changes either.
"""

from __future__ import annotations

import enum
from zlib import crc32

import msgspec

from holdfast.errors import InvalidMessage
from holdfast.extend.tools import Backoff, Count, Seconds


class CommandState(enum.StrEnum):
    """The state of a command."""

    SCHEDULED = "scheduled"
    PUBLISHED = "published"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class Cause(enum.StrEnum):
    """An event of a command, which may change its state."""

    PUBLISH = "publish"
    ANSWER = "answer"
    REFUSE = "refuse"
    GIVE_UP = "give up"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    CANCEL = "cancel"
    RETRY = "retry"


TABLE: dict[tuple[CommandState, Cause], CommandState] = {
    (CommandState.SCHEDULED, Cause.PUBLISH): CommandState.PUBLISHED,
    (CommandState.SCHEDULED, Cause.EXPIRE): CommandState.EXPIRED,
    (CommandState.SCHEDULED, Cause.SUPERSEDE): CommandState.SUPERSEDED,
    (CommandState.SCHEDULED, Cause.CANCEL): CommandState.FAILED,
    (CommandState.PUBLISHED, Cause.PUBLISH): CommandState.PUBLISHED,
    (CommandState.PUBLISHED, Cause.ANSWER): CommandState.ACKNOWLEDGED,
    (CommandState.PUBLISHED, Cause.REFUSE): CommandState.FAILED,
    (CommandState.PUBLISHED, Cause.GIVE_UP): CommandState.FAILED,
    (CommandState.PUBLISHED, Cause.EXPIRE): CommandState.EXPIRED,
    (CommandState.FAILED, Cause.RETRY): CommandState.SCHEDULED,
    (CommandState.EXPIRED, Cause.RETRY): CommandState.SCHEDULED,
}
"""All changes of state. Others don't happen: a published command can't be cancelled, because the device may
be working on it, and an answer to a command that isn't published changes nothing."""

CLOSED = frozenset(
    {CommandState.ACKNOWLEDGED, CommandState.FAILED, CommandState.EXPIRED, CommandState.SUPERSEDED}
)

REASONS = {
    Cause.ANSWER: "",
    Cause.REFUSE: "the device refused",
    Cause.GIVE_UP: "no answer in all tries",
    Cause.EXPIRE: "expired",
    Cause.SUPERSEDE: "superseded by a newer command",
    Cause.CANCEL: "cancelled",
}


class HeadPhase(enum.StrEnum):
    """The event that a head waits for: none, its turn, an answer, or the return of its device."""

    IDLE = "idle"
    WAITING = "waiting"
    OUT = "out"
    HELD = "held"


class Head(msgspec.Struct, frozen=True):
    """The head of one lane of a device. ``command`` is the command that is out, or was when the head was
    held; 0 if none was. ``due`` is the wall time of the next step; None without one.

    Only ``out``, ``held``, ``resumed``, ``freed`` and ``idle`` change its phase."""

    device: str
    lane: int
    shard: int
    phase: HeadPhase = HeadPhase.IDLE
    command: int = 0
    due: float | None = None

    @property
    def pair(self) -> tuple[str, int]:
        """The device and the lane."""
        return self.device, self.lane

    def out(self, command: int, due: float | None) -> Head:
        """Return the head after ``command`` was sent."""
        return msgspec.structs.replace(self, phase=HeadPhase.OUT, command=command, due=due)

    def held(self, command: int, due: float) -> Head:
        """Return the head while it waits for its device to come back. ``command`` was out before, unless
        0."""
        return msgspec.structs.replace(self, phase=HeadPhase.HELD, command=command, due=due)

    def resumed(self, shard: int, due: float) -> Head:
        """Return the head in wait for its turn. The command that was out goes first."""
        return msgspec.structs.replace(self, phase=HeadPhase.WAITING, shard=shard, due=due)

    def freed(self, due: float | None) -> Head:
        """Return the head in wait for its turn, with no command out."""
        return msgspec.structs.replace(self, phase=HeadPhase.WAITING, command=0, due=due)

    def idle(self) -> Head:
        """Return the head of an empty queue."""
        return msgspec.structs.replace(self, phase=HeadPhase.IDLE, command=0, due=None)

    def due_by(self, latest: float) -> Head:
        """Return the head with its next step at ``latest`` or sooner."""
        return msgspec.structs.replace(self, due=min(self.due or latest, latest))


class StoredCommand(msgspec.Struct, frozen=True):
    """A command as a store has it. Times are wall times.

    Attributes:
        tries: how often it was published; the number is part of the id of each try.
        spent: the tries that count against ``max_tries``. A try that reached no device doesn't.
        reason: why it ended; while it is published, why the broker refused its last try.
        traceparent: its place in a trace; empty if it has none.
        spoilt: the fields of its row that can't be read. Such a command is never sent.
    """

    id: int
    device: str
    lane: int
    shard: int
    state: CommandState
    body: bytes
    priority: int = 0
    not_before: float = 0.0
    expires_at: float | None = None
    tries: int = 0
    spent: int = 0
    epoch: int = 0
    dedupe_key: str | None = None
    supersede_key: str | None = None
    trace_id: str = ""
    rollout: int | None = None
    created_at: float = 0.0
    published_at: float | None = None
    closed_at: float | None = None
    answer: bytes | None = None
    reason: str = ""
    traceparent: str = ""
    spoilt: str = ""

    @property
    def pair(self) -> tuple[str, int]:
        """The device and the lane."""
        return self.device, self.lane


NUMBER_MAX, TRIES_MAX = 2**63 - 1, 2**31 - 1
"""The largest values of the columns of a database."""

EPOCH_MAX = 10**10 - 1
"""Epochs are seconds since 1970, or a little more."""


class Correlation(msgspec.Struct, frozen=True):
    """The id of one try of a command, which the answer brings back. The epoch differs after a database was
    restored from a copy and gives the same numbers again."""

    epoch: int
    command: int
    tries: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.command}.{self.tries}"

    @classmethod
    def longest(cls) -> str:
        """Return the longest id."""
        return str(cls(epoch=EPOCH_MAX, command=NUMBER_MAX, tries=TRIES_MAX))

    @classmethod
    def parse(cls, text: str) -> Correlation:
        """Read an id. Raises InvalidMessage for a text that is not the id of a try."""
        parts = text.split(".")
        if len(text) > 60 or len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
            raise InvalidMessage(f"{text[:60]!r} is not the id of a command")
        epoch, command, tries = map(int, parts)
        if max(epoch, command) > NUMBER_MAX or tries > TRIES_MAX:
            raise InvalidMessage(f"{text!r} is not the id of a command: its numbers are too large")
        return cls(epoch, command, tries)


LATE_SHARE = 0.25
"""Part of ``retry_s`` after which a marked try isn't sent any more."""

JITTER = 0.15
"""Largest random part of a retry interval."""

SLOW_MAX_S = 60.0
"""Answer time in seconds that is remembered in any case, however short ``retry_max_s`` is."""

SLOW_SHARE = 1.5
"""Factor between a slow device's answer time and the wait for its next answer."""


class Patience(msgspec.Struct, frozen=True):
    """The settings of how long and how often an outbox asks a device.

    Attributes:
        retry_s: a command without an answer is sent again after this time, then after twice the time, and so
            on.
        retry_max_s: the longest such time.
        max_tries: the tries after which a command has failed.
        probe_s: the time between tries on a device that is known to be away.
    """

    retry_s: Seconds = 10.0
    retry_max_s: Seconds = 300.0
    max_tries: Count = 5
    probe_s: Seconds = 60.0

    def interval_s(self, spent: int, random: float, answers_after_s: float = 0.0) -> float:
        """Return for how many seconds the ``spent``-th try is waited for: ``retry_s``, the time that it may
        be sent late, and jitter; longer for a device whose answers have taken ``answers_after_s``."""
        first_s = self.retry_s * (1.0 + LATE_SHARE + JITTER)
        backoff = Backoff(
            first_s, max(self.retry_max_s, first_s), (1.0 + LATE_SHARE) * self.retry_s / first_s
        )
        slow_s = min(answers_after_s, self.slowest_s)
        return max(backoff.delay_s(max(spent, 1), random), slow_s * SLOW_SHARE)

    def longest_s(self, answers_after_s: float = 0.0) -> float:
        """Return the longest wait for an answer or for a device, if no device's answers take longer than
        ``answers_after_s``."""
        slow_s = min(answers_after_s, self.slowest_s) * SLOW_SHARE
        return max(max(self.retry_max_s, self.probe_s) * (1.0 + LATE_SHARE + JITTER), slow_s)

    @property
    def slowest_s(self) -> float:
        """The longest answer time, in seconds, that is remembered of a device."""
        return max(self.retry_max_s, SLOW_MAX_S)

    @property
    def late_s(self) -> float:
        """The seconds after which a try that was marked as published isn't sent any more."""
        return LATE_SHARE * self.retry_s


class HeadVerdict(enum.Enum):
    """The decision about the command of a head."""

    SEND = "send"
    PROBE = "probe"
    HOLD = "hold"
    EXPIRE = "expire"
    GIVE_UP = "give up"


def judge(
    entry: StoredCommand,
    phase: HeadPhase,
    now: float,
    *,
    away: bool,
    patience: Patience,
    paused: bool = False,
) -> HeadVerdict:
    """Decide what to do with ``entry``, which is next or unanswered. ``away``: its device isn't there;
    ``paused``: an operator has paused its device."""
    if entry.expires_at is not None and entry.expires_at <= now:
        return HeadVerdict.EXPIRE
    if paused:
        return HeadVerdict.HOLD
    if away:
        return HeadVerdict.PROBE if phase is HeadPhase.HELD else HeadVerdict.HOLD
    if entry.spent >= patience.max_tries:
        return HeadVerdict.GIVE_UP
    return HeadVerdict.SEND


def fits(entry: StoredCommand, device: str, correlation: Correlation) -> bool:
    """Return whether an answer is to the last try of ``entry``, which is out."""
    return (
        entry.state is CommandState.PUBLISHED
        and entry.device == device
        and correlation == Correlation(entry.epoch, entry.id, entry.tries)
    )


def answers(entry: StoredCommand, device: str, correlation: Correlation) -> bool:
    """Return whether an answer is to any try of ``entry`` under its epoch. A slow device answers an earlier
    try after the next one was sent, and has done the command."""
    return (
        entry.device == device
        and (entry.epoch, entry.id) == (correlation.epoch, correlation.command)
        and 0 < correlation.tries <= entry.tries
    )


def is_out(head: Head | None) -> bool:
    """Return whether the head waits for an answer. A command may be published without that: its head is held,
    or waits for its turn after it was held."""
    return head is not None and head.phase is HeadPhase.OUT


def has_last_try(head: Head) -> bool:
    """Return whether a device that answered an earlier try may still receive the last one."""
    return head.phase is HeadPhase.OUT and head.due is not None


def replaces(newer: StoredCommand, entry: StoredCommand) -> bool:
    """Return whether ``newer`` replaces ``entry`` by its ``supersede_key``, so that ``entry`` isn't sent."""
    same = newer.device == entry.device and newer.supersede_key == entry.supersede_key is not None
    return same and newer.id > entry.id


def publish(entry: StoredCommand, epoch: int, now: float, *, counts: bool) -> StoredCommand:
    """Return ``entry`` with one more try. ``counts``: the try counts against ``max_tries``."""
    return msgspec.structs.replace(
        entry,
        state=TABLE[entry.state, Cause.PUBLISH],
        tries=entry.tries + 1,
        spent=entry.spent + counts,
        epoch=epoch,
        published_at=now,
        reason="",
    )


def close(
    entry: StoredCommand, cause: Cause, now: float, *, answer: bytes | None = None, reason: str = ""
) -> StoredCommand:
    """Return ``entry`` in its final state."""
    return msgspec.structs.replace(
        entry,
        state=TABLE[entry.state, cause],
        closed_at=now,
        answer=answer,
        reason=reason or REASONS[cause],
    )


def retry(entry: StoredCommand) -> StoredCommand:
    """Return ``entry`` scheduled again, without expiry."""
    return msgspec.structs.replace(
        entry,
        state=TABLE[entry.state, Cause.RETRY],
        spent=0,
        expires_at=None,
        closed_at=None,
        answer=None,
        reason="",
    )


def shard_of(device: str, shards: int) -> int:
    """Return the number of a device's shard, from 0."""
    return crc32(device.encode()) % shards
