"""A message's identity, its place in a stream, and its life as a table."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from holdfast.errors import InvalidMessage

SeqKind = Literal["dense", "increasing", "absent"]

SEQ_DIGITS = 39
"""The width of a stored seq: 128 bits in decimal, like the longest FIFO numbers."""

RUN_DIGITS = 20
NO_RUN = -1
"""The run of a message without one, in a stream whose owner counts the runs, until the owner sets it."""

TIMER_RUN = -2
"""The run of a timer's firing, whose place isn't one among the messages."""

TIMER_NAME = "wake"
"""The text for ``TIMER_RUN`` in names of places."""

KEY_BYTES_MAX = 512

_JOINERS = "\u200c\u200d"


class Life(enum.StrEnum):
    """The state of a message in a node; ``NEXT`` has the states that may follow. States are texts because
    their lookup is several times faster, and a message passes about six of them."""

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
    # A delivery arrives, or comes back from an owner that has ended. It then waits at its owner, is
    # forwarded, is found done or late, has no key, or can't be placed.
    Life.RECEIVED: frozenset(
        {Life.WAITING, Life.FORWARDED, Life.COMMITTED, Life.APPENDED, Life.BURIED, Life.GIVEN_BACK}
    ),
    # A pending forward until the owner reports the commit. It comes back if the owner is lost or full.
    Life.FORWARDED: frozenset({Life.RECEIVED, Life.COMMITTED, Life.GIVEN_BACK}),
    # In an inbox. APPENDED without a run: a skip or a late record.
    Life.WAITING: frozenset({Life.RUNNING, Life.APPENDED, Life.COMMITTED, Life.RECEIVED}),
    Life.RUNNING: frozenset({Life.APPENDED, Life.WAITING, Life.RECEIVED}),
    # In a batch whose commit isn't confirmed: its deliveries must stay in the queue.
    Life.APPENDED: frozenset({Life.COMMITTED, Life.RECEIVED}),
    # Covered by an accepted commit: only now is it dead-lettered (if the commit set it aside) or deleted. A
    # task's message goes back to its queue while a target doesn't take its effects.
    Life.COMMITTED: frozenset({Life.BURIED, Life.DELETED, Life.GIVEN_BACK}),
    Life.BURIED: frozenset({Life.DELETED}),
    Life.DELETED: frozenset(),
    Life.GIVEN_BACK: frozenset(),
}


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The seqs from ``first`` to ``last``, both included."""

    first: int
    last: int


class Place(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A message's run, seq and id. If the stream has no seqs, ``seq`` is 0 and ``id`` identifies the message;
    otherwise ``id`` is empty. Places of one run compare as their seqs do."""

    run: int
    seq: int
    id: str = ""

    @property
    def name(self) -> str:
        """The identity without the key: ``run:seq``, with the seq in fixed width. A timer's firing has
        ``wake:`` in place of the run."""
        run = TIMER_NAME if self.run == TIMER_RUN else self.run
        return f"{run}:{self.id or str(self.seq).zfill(SEQ_DIGITS)}"

    @property
    def timer(self) -> str:
        """The name of the timer that fires here; "" for a message's place."""
        return self.id.rpartition(":")[0] if self.run == TIMER_RUN else ""

    @classmethod
    def named(cls, name: str) -> Place:
        """Return the place that has this name."""
        run, _, rest = name.partition(":")
        if run == TIMER_NAME:
            return cls(TIMER_RUN, 0, rest)
        if len(rest) == SEQ_DIGITS and rest.isdigit():
            return cls(int(run), int(rest))
        return cls(int(run), 0, rest)


def is_timer_name(name: str) -> bool:
    """Return True if this is the name of the place of a timer's firing, and not that of a message."""
    return name.startswith(f"{TIMER_NAME}:")


class CommitPlace(msgspec.Struct, frozen=True):
    """A commit of a stream, and the wall time at which it was answered."""

    epoch: int
    number: int
    at: float


def fixed(seq: int) -> str:
    """Return a seq as a text that sorts as the number does."""
    return str(seq).zfill(SEQ_DIGITS)


def check_text(text: object, field: str) -> str:
    """Return a text that every store accepts, of Python's own type. Raises InvalidMessage for ``field``."""
    if not isinstance(text, str):
        raise InvalidMessage(f"field {field!r} is {text!r:.100}; it must be a text", field)
    if type(text) is str and text.isascii():
        return text
    try:
        return text.encode().decode()  # encoders know no other type of text, such as NumPy's
    except UnicodeEncodeError:
        raise InvalidMessage(
            f"field {field!r} holds text that UTF-8 can't carry (a lone surrogate)", field
        ) from None


def check_key(key: object, field: str) -> str:
    """Return a valid key. Raises InvalidMessage for ``field``."""
    if isinstance(key, int) and not isinstance(key, bool) and key.bit_length() <= KEY_BYTES_MAX:
        key = str(key)  # Python makes no text of a much longer number
    if not isinstance(key, str) or not key:
        raise InvalidMessage(
            f"field {field!r} must be a non-empty text or an integer of {KEY_BYTES_MAX} bits at most,"
            " to be the stream's key",
            field,
        )
    key = check_text(key, field)
    size = len(key) if key.isascii() else len(key.encode())
    if size > KEY_BYTES_MAX:
        raise InvalidMessage(f"field {field!r} has {size} bytes; a key has {KEY_BYTES_MAX} at most", field)
    if wrong := unprintable(key):
        raise InvalidMessage(f"field {field!r} holds {wrong}, which is not printable; leave it out", field)
    return key


def unprintable(text: str) -> str:
    """Return the first unprintable character of ``text``, such as ``U+000A``, or "". Joiners of zero width
    are allowed: Persian words and many emoji are spelt with them."""
    found = next((letter for letter in text if not letter.isprintable() and letter not in _JOINERS), "")
    return f"U+{ord(found):04X}" if found else ""


def check_number(value: object, field: str, digits: int) -> int:
    """Return a valid seq or run. Raises InvalidMessage for ``field``."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value.lstrip("0")[: digits + 1] or "0")  # enough to see that it is too long
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessage(f"field {field!r} must be an integer", field)
    if value < 0:
        raise InvalidMessage(f"field {field!r} must not be negative", field)
    if value >= 10**digits:
        raise InvalidMessage(f"field {field!r} is over {digits} digits", field)
    return value
