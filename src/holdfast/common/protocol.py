"""What nodes say to each other. Encoded as MessagePack; unknown fields are ignored, so that a newer
node may add some. A change that an older node would misread raises ``VERSION``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.common.message import NO_RUN, RUN_DIGITS, SEQ_DIGITS

VERSION = 1

_DIGITS = f"^[0-9]{{1,{max(RUN_DIGITS, SEQ_DIGITS)}}}$"

Number = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=_DIGITS)]
"""A run or seq: an integer, or its decimal text where MessagePack has no integer so large. ``int()`` reads
both."""


Run = Annotated[int, Meta(ge=NO_RUN)] | Annotated[str, Meta(pattern=_DIGITS)]
"""A run, or ``NO_RUN`` for a message that carries none and whose owner is to count it."""


def number(value: int) -> Number:
    """A run or seq as it travels."""
    return value if value < 2**64 else str(value)


FORWARD_OVERHEAD_BYTES = 64 * 1024
"""What a forward adds to the messages in it, at most."""


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a message, body and receipt, on its way between nodes.

    ``number`` is the sender's own name for it, used in answers and reports. ``expires_in_s`` is what is
    left of its visibility as the sender reckons, ``age_s`` how long ago the queue gave it out. ``after`` is
    the seq of the message before it, where the queue told. ``counted`` is true where an owner
    counted the run.
    """

    number: int
    stream: str
    key: str
    run: Run
    seq: Number
    id: str
    receipt: str
    body: bytes
    attributes: dict[str, str]
    expires_in_s: float
    receives: int
    age_s: float = 0.0
    after: Number | None = None
    counted: bool = False


class ParcelAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What the node addressed says of one parcel.

    ``accepted``: it holds it and will report. ``full``: no room now. ``no``: it isn't the owner;
    ``member`` and ``epoch`` name the one it knows, if any.
    """

    number: int
    verdict: str
    member: str = ""
    epoch: int = 0


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Parcels for the streams that ``to`` owns. ``sender`` is who keeps custody, at ``reply_to``."""

    to: str
    sender: str
    reply_to: str
    parcels: list[Parcel]


class SettleReport(msgspec.Struct, frozen=True, tag="SettleReport"):
    """To a sender: ``settled`` parcels are covered by a commit (or proved duplicates), custody ends;
    ``returned`` ones go back into the sender's custody, to be offered again."""

    to: str
    sender: str
    settled: list[int]
    returned: list[int]


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Is the membership ``to`` alive at this address?"""

    to: str


class Warm(msgspec.Struct, frozen=True, tag=True):
    """Get ready to own ``key`` (models loaded, state peeked) without opening it."""

    to: str
    stream: str
    key: str


class Poke(msgspec.Struct, frozen=True, tag=True):
    """Look at the state store: an operator changed the stream."""

    to: str
    stream: str
    key: str


class Move(msgspec.Struct, frozen=True, tag=True):
    """Move an owned stream to the membership ``target``."""

    to: str
    stream: str
    key: str
    target: str


class Shed(msgspec.Struct, frozen=True, tag=True):
    """Move streams that make up a load of about ``amount`` slots to the membership ``target``. The reply's
    text is how many."""

    to: str
    target: str
    amount: float


class Explain(msgspec.Struct, frozen=True, tag=True):
    """What is known of an owned stream where it is? The reply's text is a JSON object."""

    to: str
    stream: str
    key: str


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """Which owned streams wait, ``most`` of them, and for what? The reply's text is a JSON object."""

    to: str
    most: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Bring everything to other nodes, then end."""

    to: str


class Answers(msgspec.Struct, frozen=True, tag=True):
    """Reply to a Forward, one answer a parcel."""

    answers: list[ParcelAnswer]


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reply to the rest. ``ok`` False: the node can't, and ``text`` says why."""

    ok: bool = True
    text: str = ""


class Stranger(msgspec.Struct, frozen=True, tag=True):
    """Reply to a request addressed to a membership that doesn't live here."""

    member: str = ""


Request = Forward | SettleReport | Probe | Warm | Poke | Move | Shed | Explain | Waiting | Drain
Reply = Answers | Done | Stranger
