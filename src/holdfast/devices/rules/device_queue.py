"""The queue of one device: what its head may do next, and what becomes of a command.

A command is a row of the outbox's table. Its states and what moves it between them are one table, ``TABLE``.
The *head* is a second row, one for each device and lane: it says whether a command is out, and when there is
something to do next. Only the owner of a device's shard changes either.
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
"""Every move there is. What isn't here doesn't happen: a command that is out can't be cancelled, for the
device may be at it; an answer to one that isn't out changes nothing."""

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
    """The event that a head waits for: none; its turn; an answer; its device to come back."""

    IDLE = "idle"
    WAITING = "waiting"
    OUT = "out"
    HELD = "held"


class Head(msgspec.Struct, frozen=True):
    """The head of one lane of a device. ``command`` is the one that is out (or held after it was), else 0.
    ``due`` is the wall time at which there is something to do; None if there isn't.

    Its moves are ``out``, ``held``, ``resumed``, ``freed`` and ``idle``; nothing else changes its phase."""

    device: str
    lane: int
    shard: int
    phase: HeadPhase = HeadPhase.IDLE
    command: int = 0
    due: float | None = None

    @property
    def pair(self) -> tuple[str, int]:
        """The device and the lane of which it is the head."""
        return self.device, self.lane

    def out(self, command: int, due: float | None) -> Head:
        """Return it with ``command`` out, whose answer is waited for."""
        return msgspec.structs.replace(self, phase=HeadPhase.OUT, command=command, due=due)

    def held(self, command: int, due: float) -> Head:
        """Return it as it waits for its device to come back. ``command`` was out before, unless 0."""
        return msgspec.structs.replace(self, phase=HeadPhase.HELD, command=command, due=due)

    def resumed(self, shard: int, due: float) -> Head:
        """Return it as it waits for its turn, which the command that is out comes to first."""
        return msgspec.structs.replace(self, phase=HeadPhase.WAITING, shard=shard, due=due)

    def freed(self, due: float | None) -> Head:
        """Return it as it waits for its turn, with no command out."""
        return msgspec.structs.replace(self, phase=HeadPhase.WAITING, command=0, due=due)

    def idle(self) -> Head:
        """Return it without anything to do."""
        return msgspec.structs.replace(self, phase=HeadPhase.IDLE, command=0, due=None)

    def due_by(self, latest: float) -> Head:
        """Return it with something to do no later than ``latest``."""
        return msgspec.structs.replace(self, due=min(self.due or latest, latest))


class StoredCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command as it is stored. ``tries`` counts publications and is part of their ids; ``spent`` counts
    those that use up tries: not the ones that no device could hear. Times are wall times. ``spoilt`` says
    what in its row can't be read; such a command is never sent. ``reason`` says how it ended, or, while it is
    out, why the broker refused its last try. ``traceparent`` is its place in a trace ("": none)."""

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
        """The device and the lane to which it belongs."""
        return self.device, self.lane


NUMBER_MAX, TRIES_MAX = 2**63 - 1, 2**31 - 1
"""What the columns of a database hold."""

EPOCH_MAX = 10**10 - 1
"""Epochs are seconds since 1970, or a little more."""


class Correlation(msgspec.Struct, frozen=True):
    """The id of one try of a command: an answer that brings it back fits this try only. The epoch tells apart
    what was sent before a database was restored from a copy, whose numbers come again."""

    epoch: int
    command: int
    tries: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.command}.{self.tries}"

    @classmethod
    def longest(cls) -> str:
        """One that takes as much room as any."""
        return str(cls(epoch=EPOCH_MAX, command=NUMBER_MAX, tries=TRIES_MAX))

    @classmethod
    def parse(cls, text: str) -> Correlation:
        """Raises InvalidMessage for what was never sent."""
        parts = text.split(".")
        if len(text) > 60 or len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
            raise InvalidMessage(f"{text[:60]!r} is no id of a command")
        epoch, command, tries = map(int, parts)
        if max(epoch, command) > NUMBER_MAX or tries > TRIES_MAX:
            raise InvalidMessage(f"{text!r} is no id of a command: no database has such numbers")
        return cls(epoch, command, tries)


LATE_SHARE = 0.25
JITTER = 0.15

SLOW_MAX_S = 60.0
"""The least limit of what a device is seen to take for its answers."""

SLOW_SHARE = 1.5
"""How much longer a slow device is waited for than its answers have taken."""


class Patience(msgspec.Struct, frozen=True):
    """The settings that say how long and how often an outbox asks a device.

    Attributes:
        retry_s: a command without answer is sent again after this, then after twice as long, and so on.
        retry_max_s: at most this long.
        max_tries: then it has failed, and the next one goes.
        probe_s: how often a device that is known to be away is tried all the same.
    """

    retry_s: Seconds = 10.0
    retry_max_s: Seconds = 300.0
    max_tries: Count = 5
    probe_s: Seconds = 60.0

    def interval_s(self, spent: int, random: float, answers_after_s: float = 0.0) -> float:
        """Return how many seconds the ``spent``-th try is waited for: more than ``retry_s`` by what it may be
        sent late, and by some jitter; and longer where the device's answers were seen to take so long."""
        first_s = self.retry_s * (1.0 + LATE_SHARE + JITTER)
        backoff = Backoff(
            first_s, max(self.retry_max_s, first_s), (1.0 + LATE_SHARE) * self.retry_s / first_s
        )
        slow_s = min(answers_after_s, self.slowest_s)
        return max(backoff.delay_s(max(spent, 1), random), slow_s * SLOW_SHARE)

    def longest_s(self, answers_after_s: float = 0.0) -> float:
        """No answer, and no device, is waited for longer than this before something is done, if no device's
        answers take longer than ``answers_after_s``."""
        slow_s = min(answers_after_s, self.slowest_s) * SLOW_SHARE
        return max(max(self.retry_max_s, self.probe_s) * (1.0 + LATE_SHARE + JITTER), slow_s)

    @property
    def slowest_s(self) -> float:
        """The longest time, in seconds, that a device's answers count as taking; more counts as this."""
        return max(self.retry_max_s, SLOW_MAX_S)

    @property
    def late_s(self) -> float:
        """A try that couldn't be sent so long after it was marked as published isn't sent any more."""
        return LATE_SHARE * self.retry_s


class HeadVerdict(enum.Enum):
    """The decision about the command at the head."""

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
    """Decide what to do with ``entry``, whose turn or whose retry it is. ``away``: its device isn't there;
    ``paused``: an operator wants nothing sent to it."""
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
    """Return True if an answer is to the try of ``entry`` that is out."""
    return (
        entry.state is CommandState.PUBLISHED
        and entry.device == device
        and correlation == Correlation(entry.epoch, entry.id, entry.tries)
    )


def answers(entry: StoredCommand, device: str, correlation: Correlation) -> bool:
    """Return True if an answer is to any try of ``entry`` since it was first sent with its epoch: a slow
    device answers an earlier try after the next one was sent, and did the command all the same."""
    return (
        entry.device == device
        and (entry.epoch, entry.id) == (correlation.epoch, correlation.command)
        and 0 < correlation.tries <= entry.tries
    )


def is_out(head: Head | None) -> bool:
    """Return True if the device is waited for. A command may be out although it isn't: its head is held, or
    waits for its turn after it was."""
    return head is not None and head.phase is HeadPhase.OUT


def has_last_try(head: Head) -> bool:
    """Return True if a device that answered an earlier try may still have the last one before it."""
    return head.phase is HeadPhase.OUT and head.due is not None


def replaces(newer: StoredCommand, entry: StoredCommand) -> bool:
    """Return True if ``entry`` must not be sent any more, for ``newer`` has the same ``supersede_key``."""
    same = newer.device == entry.device and newer.supersede_key == entry.supersede_key is not None
    return same and newer.id > entry.id


def publish(entry: StoredCommand, epoch: int, now: float, *, counts: bool) -> StoredCommand:
    """``entry`` with one more try, which uses one up if it ``counts``."""
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
    """``entry`` at its end."""
    return msgspec.structs.replace(
        entry,
        state=TABLE[entry.state, cause],
        closed_at=now,
        answer=answer,
        reason=reason or REASONS[cause],
    )


def retry(entry: StoredCommand) -> StoredCommand:
    """``entry`` scheduled again, without expiry."""
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
    """Return the number of a device's shard, of ``shards`` that are numbered from 0."""
    return crc32(device.encode()) % shards
