"""A message's identity, its place in a stream, and its life as a table."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from holdfast.errors import InvalidMessage

SeqKind = Literal["dense", "increasing", "absent"]

SEQ_DIGITS = 39
"""Width of a stored seq: 128 bits in decimal, as the longest FIFO numbers have."""

RUN_DIGITS = 20
NO_RUN = -1
"""The run of a message that carries none, in a stream whose owner counts the runs, until that one has it."""

KEY_BYTES_MAX = 512


class Life(enum.Enum):
    """Where a message stands in a node. ``NEXT`` says what may follow."""

    RECEIVED = "received"
    FORWARDED = "forwarded"
    WAITING = "waiting"
    RUNNING = "running"
    APPENDED = "appended"
    COMMITTED = "committed"
    BURIED = "buried"
    DELETED = "deleted"
    GIVEN_BACK = "given back"


NEXT: dict[Life, frozenset[Life]] = {
    # A delivery arrives, or comes back from an owner that is no more. It waits at its owner, is passed on,
    # is found done or late, has no key, or can't be placed.
    Life.RECEIVED: frozenset(
        {Life.WAITING, Life.FORWARDED, Life.COMMITTED, Life.APPENDED, Life.BURIED, Life.GIVEN_BACK}
    ),
    # In custody until the owner reports the commit; an owner that is lost or full sends it back.
    Life.FORWARDED: frozenset({Life.RECEIVED, Life.COMMITTED, Life.GIVEN_BACK}),
    # In an inbox. APPENDED without a run: a skip or a late record.
    Life.WAITING: frozenset({Life.RUNNING, Life.APPENDED, Life.COMMITTED, Life.RECEIVED}),
    Life.RUNNING: frozenset({Life.APPENDED, Life.WAITING, Life.RECEIVED}),
    # In a batch whose commit isn't answered: nothing may leave the queue on its account.
    Life.APPENDED: frozenset({Life.COMMITTED, Life.RECEIVED}),
    # Covered by an accepted commit: only now is it buried (where the commit set it aside) or deleted.
    Life.COMMITTED: frozenset({Life.BURIED, Life.DELETED}),
    Life.BURIED: frozenset({Life.DELETED}),
    Life.DELETED: frozenset(),
    Life.GIVEN_BACK: frozenset(),
}


def may_follow(now: Life, then: Life) -> bool:
    """True if the table allows the step."""
    return then in NEXT[now]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Seqs from ``first`` to ``last``, both included."""

    first: int
    last: int


class Place(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A message's run, seq and id. Where a stream has no seq, ``seq`` is 0 and ``id`` tells messages apart;
    otherwise ``id`` is empty. Places of one run compare as their seqs do."""

    run: int
    seq: int
    id: str = ""

    @property
    def name(self) -> str:
        """``run:seq``, the part of the identity after the key; the seq in fixed width."""
        return f"{self.run}:{self.id or fixed(self.seq)}"

    @classmethod
    def named(cls, name: str) -> Place:
        """The place that has this name."""
        run, _, rest = name.partition(":")
        if len(rest) == SEQ_DIGITS and rest.isdigit():
            return cls(int(run), int(rest))
        return cls(int(run), 0, rest)


def fixed(seq: int) -> str:
    """A seq as text that sorts as the number does."""
    return f"{seq:0{SEQ_DIGITS}d}"


def check_key(key: object, field: str) -> str:
    """A usable key, or InvalidMessage naming ``field``."""
    if isinstance(key, int) and not isinstance(key, bool) and key.bit_length() <= KEY_BYTES_MAX:
        key = str(key)  # of a much longer one Python makes no text
    if not isinstance(key, str) or not key:
        raise InvalidMessage(
            f"field {field!r} must be a non-empty text or an integer of {KEY_BYTES_MAX} bits at most,"
            " to be the stream's key",
            field,
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(
            f"field {field!r} holds text that UTF-8 can't carry (a lone surrogate)", field
        ) from None
    if size > KEY_BYTES_MAX:
        raise InvalidMessage(f"field {field!r} has {size} bytes; a key has {KEY_BYTES_MAX} at most", field)
    if not key.isprintable():
        raise InvalidMessage(f"field {field!r} holds control characters; a key must be printable", field)
    return key


def check_number(value: object, field: str, digits: int) -> int:
    """A usable seq or run, or InvalidMessage naming ``field``."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value.lstrip("0")[: digits + 1] or "0")  # enough to see that it is too long
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessage(f"field {field!r} must be an integer", field)
    if value < 0:
        raise InvalidMessage(f"field {field!r} must not be negative", field)
    if value >= 10**digits:
        raise InvalidMessage(f"field {field!r} is over {digits} digits", field)
    return value
