"""The effects and timers that a handler asks for in addition to its result, and effects as they are
stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

HOPS = "hops"
"""The attribute that counts the effects that led to a message."""

HOPS_DIGITS = 9
"""Maximum digits of a number of hops. Holdfast writes no longer one, and stores may not hold it."""


class Send(msgspec.Struct, frozen=True, array_like=True):
    """An effect as a handler sends it: to ``target``, a name or a URL, under the target's ``key`` ("": none),
    ``delay_s`` after its commit."""

    target: str
    key: str
    body: bytes
    delay_s: float = 0.0


class TimerChange(msgspec.Struct, frozen=True, array_like=True):
    """A timer that a handler sets to the wall time ``at``; None clears it."""

    name: str
    at: float | None
    body: bytes = b""


class Acts(msgspec.Struct, frozen=True, array_like=True):
    """The effects and the changes of timers that a handler asked for while it handled one message or woke."""

    sends: tuple[Send, ...] = ()
    timers: tuple[TimerChange, ...] = ()


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """A body that a handler sends to a target. It is committed with the state of its stream, or stored with
    the outcome of its task, and handed over afterwards.

    ``number`` is the commit that added it, and ``place`` its place in that commit; pending effects are in
    that order. A task has one commit, number 0. ``id`` is made of them (see :func:`effect_id`). ``key`` is
    the target's key. ``cause`` is the identity (without the stream's key) of the message that sent it, or the
    task id; ``hops`` counts the effects that led to it. ``at`` is the wall time of its commit, ``not_before``
    the earliest wall time of its first hand-over. ``refused`` is the reason why its target refuses it: it
    then goes to the dead letters. ``traceparent`` is its sender's place in a trace, "" for none.
    """

    number: int
    place: int
    id: str
    target: str
    key: str
    body: bytes
    cause: str
    at: float
    not_before: float = 0.0
    hops: int = 0
    refused: str = ""
    traceparent: str = ""


_decode_effects = msgspec.msgpack.Decoder(tuple[Effect, ...]).decode


def encode_effects(effects: Sequence[Effect]) -> bytes:
    """Encode effects for the record of a task; empty for none."""
    return msgspec.msgpack.encode(effects) if effects else b""


def decode_effects(data: bytes) -> tuple[Effect, ...]:
    """Decode the bytes of ``encode_effects``."""
    return _decode_effects(data) if data else ()


class RefusedEffect(msgspec.Struct, frozen=True, array_like=True):
    """A pending effect that its target refuses, with the reason."""

    id: str
    reason: str


def effect_id(key: str, epoch: int, number: int, place: int) -> str:
    """Return the id of an effect, 32 characters that no other effect has: an epoch is issued once, and one
    commit with a number is accepted in it. Seqs would repeat after a reset."""
    return hashlib.sha256(f"{key}\n{epoch}.{number}.{place}".encode()).hexdigest()[:32]


def hops_of(attributes: Mapping[str, str]) -> int:
    """Return the number of effects that led to the message with these attributes."""
    hops = attributes.get(HOPS, "")
    return int(hops) if hops.isascii() and hops.isdigit() and len(hops) <= HOPS_DIGITS else 0
