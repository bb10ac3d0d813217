"""The requests and replies between nodes, in MessagePack.

Unknown fields are ignored, so a newer node may add some. A change that an older node would misread makes a
new version beside the one before: :data:`~holdfast.common.protocol_versions.OUR_VERSIONS`. A renamed message
keeps its tag on the wire.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.common.message import NO_RUN, RUN_DIGITS, SEQ_DIGITS

_DIGITS = f"^[0-9]{{1,{max(RUN_DIGITS, SEQ_DIGITS)}}}$"

Number = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=_DIGITS)]
"""A run or seq: an integer, or its decimal text if it is too large for MessagePack. ``int()`` reads both."""


Run = Annotated[int, Meta(ge=NO_RUN)] | Annotated[str, Meta(pattern=_DIGITS)]
"""A run, or ``NO_RUN`` for a message without one, whose owner counts the runs."""


def number(value: int) -> Number:
    """Return a run or seq in the form of messages."""
    return value if value < 2**64 else str(value)


FORWARD_OVERHEAD_BYTES = 64 * 1024
"""Maximum bytes that a forward adds to its messages."""


class ForwardedDelivery(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a message, with body and receipt, that one node sends to another.

    ``number`` is the sender's number for it in answers and reports. ``expires_in_s`` is the sender's estimate
    of the visibility that is left; ``age_s`` are the seconds since the queue delivered it. ``after`` is the
    seq of the message before it, if the queue reports it. ``counted`` is true if an owner counted the run.
    ``turn`` is the message's place in the order of arrival, if the queue knows it.
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
    turn: Number | None = None


class ForwardAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The called node's answer about one forwarded delivery.

    ``accepted``: it holds the message and will report. ``full``: it has no room now. ``no``: it isn't the
    owner; ``member`` and ``epoch`` describe the owner, if it knows one. ``held_back``: the message waits
    behind a missing one or behind effects that a target doesn't take; or the node has no room and waits for a
    missing one. ``reserved``: it has no room and has reserved the key, so the message goes back to the queue,
    and the owner takes it from there.
    """

    number: int
    verdict: str
    member: str = ""
    epoch: int = 0
    held_back: bool = False
    reserved: bool = False


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Deliveries for streams that ``to`` owns. ``sender`` keeps them until a report at ``reply_to``."""

    to: str
    sender: str
    reply_to: str
    deliveries: list[ForwardedDelivery] = msgspec.field(name="parcels")


class SettleReport(msgspec.Struct, frozen=True, tag="SettleReport"):
    """A report to a sender on its pending forwards. ``settled`` ones end: a commit covers them, or they are
    duplicates. ``returned`` ones are to be offered again."""

    to: str
    sender: str
    settled: list[int]
    returned: list[int]


class Probe(msgspec.Struct, frozen=True, tag=True):
    """A question whether the membership ``to`` is alive at this address."""

    to: str


class Warm(msgspec.Struct, frozen=True, tag=True):
    """A request to prepare to own ``key``: load its models and read its state, without opening it. ``deep``:
    its owner has reserved it at the queue. ``missing`` names what the stream waits for, and ``waited_s`` the
    seconds since when."""

    to: str
    stream: str
    key: str
    deep: bool = False
    missing: str = ""
    waited_s: float = 0.0


class StreamChanged(msgspec.Struct, frozen=True, tag="Poke"):
    """A request to the owner to read the state store, because an operator has changed the stream."""

    to: str
    stream: str
    key: str


class WakeUp(msgspec.Struct, frozen=True, tag="Nudge"):
    """A request to the member with the claim on ``key`` to own the stream, because it is due."""

    to: str
    stream: str
    key: str


class Move(msgspec.Struct, frozen=True, tag=True):
    """A request to move an owned stream to the membership ``target``."""

    to: str
    stream: str
    key: str
    target: str


class RebalanceRequest(msgspec.Struct, frozen=True, tag="Shed"):
    """A request to move owned work with a load of about ``amount`` slots to the membership ``target``. The
    reply's text is the amount that moved, such as the number of streams."""

    to: str
    target: str
    amount: float


class Explain(msgspec.Struct, frozen=True, tag=True):
    """A question about an owned stream. The reply's text is a JSON object."""

    to: str
    stream: str
    key: str


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """A question for at most ``most`` owned streams that wait, and their reasons. The reply's text is a JSON
    object."""

    to: str
    most: int


class LookAtTask(msgspec.Struct, frozen=True, tag=True):
    """A question about a task that runs on the node. The reply's text is a JSON object."""

    to: str
    task_id: str = msgspec.field(name="trace")


class Busiest(msgspec.Struct, frozen=True, tag=True):
    """A question for the ``most`` owned streams with the highest figure ``by``, among the streams in ``only``
    if it isn't empty. The reply's text is a JSON list."""

    to: str
    most: int
    by: str
    only: list[str] = []


class RunningTasks(msgspec.Struct, frozen=True, tag=True):
    """A question for at most ``most`` running attempts, the oldest first. The reply's text is a JSON list."""

    to: str
    most: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """A request to the node to move everything to other nodes, then end."""

    to: str


class Query(msgspec.Struct, frozen=True, tag=True):
    """A query of ``key``, to be answered within ``timeout_s``. ``request`` is JSON."""

    to: str
    stream: str
    key: str
    request: bytes
    timeout_s: float


class Answers(msgspec.Struct, frozen=True, tag=True):
    """The reply to a Forward, with one answer per delivery."""

    answers: list[ForwardAnswer]


class Done(msgspec.Struct, frozen=True, tag=True):
    """The reply to other requests. If ``ok`` is False, the node refuses for the reason ``text``.
    ``reserves``: it will reserve a key with ``deep`` in its Warm, which an older version doesn't."""

    ok: bool = True
    text: str = ""
    reserves: bool = False


class QueryReply(msgspec.Struct, frozen=True, tag=True):
    """The reply to a Query: the answer, encoded as a result, with the epoch and number of its commit; or the
    name of a ``fault`` and the error."""

    body: bytes | None = None
    epoch: int = 0
    number: int = 0
    fault: str = ""
    error: str = ""


class UnknownMember(msgspec.Struct, frozen=True, tag="Stranger"):
    """The reply to a request for a membership that isn't alive here. ``member`` is alive here instead."""

    member: str = ""


Request = (
    Forward
    | SettleReport
    | Probe
    | Warm
    | StreamChanged
    | WakeUp
    | Move
    | RebalanceRequest
    | Explain
    | Waiting
    | LookAtTask
    | Busiest
    | RunningTasks
    | Drain
    | Query
)
Reply = Answers | Done | QueryReply | UnknownMember
