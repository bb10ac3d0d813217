"""The operations on one stream: pause, resume, skip, reset, move, and its pending effects.

A stream is named by its full key, ``STREAM/KEY``. Whoever owns it is told of each change; where the owner
can't be reached, it notices at its next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.common.acts import Effect
from holdfast.common.message import Place
from holdfast.common.protocol import Move
from holdfast.common.redaction import redact
from holdfast.errors import NotKnown, OperationRefused
from holdfast.operate.nodes import ask, named, owner_of
from holdfast.operate.records import Shows, body, moment, split_key
from holdfast.operate.survey import target_errors
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.sequencer import SKIP_MARK
from holdfast.streams import operations
from holdfast.wiring.services import Services

NAMES_MAX = 100
"""The most identities that are read to find a stream's latest results: some messages are skipped."""


class StreamRecord(msgspec.Struct):
    """A stream's checkpoint without its state. ``told`` is the node that owned the stream when it was
    changed, if it could be told of the change."""

    stream: str
    key: str
    epoch: int
    number: int
    run: int | None
    seq: int | None
    parked: str
    done: int
    skipped: int
    state_bytes: int
    at: str
    told: str = ""


class MovedStream(msgspec.Struct):
    """A stream that moves from one node to another, by their names. ``was_there``: nothing had to move."""

    key: str
    source: str
    target: str
    was_there: bool = False


async def pause(services: Services, key: str) -> StreamRecord:
    """Stop a stream where it stands. Raises OperationRefused."""
    told = _teller(services)
    return await told(await operations.pause(services.state(), key))


async def resume(services: Services, key: str) -> tuple[StreamRecord, int]:
    """Let a parked stream go on. Returns it, and how many of its ``parked`` dead letters were sent to the
    queue again. Raises OperationRefused."""
    told, queue = _teller(services), services.queue(split_key(key)[0])
    checkpoint, sent = await operations.resume(services.state(), queue, key)
    return await told(checkpoint), sent


async def skip(
    services: Services, key: str, through: int | None = None, run: int | None = None
) -> StreamRecord:
    """Pass over the message at the head, or all of ``run`` up to the seq ``through``. Raises
    OperationRefused."""
    if run is not None and through is None:
        raise OperationRefused(f"{key}: run {run} says in which run 'through' is; give both")
    told = _teller(services)
    return await told(await operations.skip(services.state(), key, through, run))


async def reset(services: Services, key: str, *, keep_place: bool = False) -> StreamRecord:
    """Forget a stream's state, and unless ``keep_place`` its place too. Raises OperationRefused."""
    told = _teller(services)
    return await told(await operations.reset(services.state(), key, keep_place=keep_place))


async def drop_effects(
    services: Services, key: str, ids: Collection[str] = (), target: str = ""
) -> tuple[StreamRecord, int]:
    """Give up the pending effects with these ids, or for this target, or all. Returns the stream, and how
    many effects go to the dead letters. Raises OperationRefused."""
    told = _teller(services)
    checkpoint, count = await operations.drop_effects(services.state(), key, ids, target)
    return await told(checkpoint), count


async def move(services: Services, key: str, to: str) -> MovedStream:
    """Have a stream move to the node ``to``, a name or a membership. Raises OperationRefused where nobody
    owns it, or no such node lives."""
    members = await services.coordinator().members()
    target, owner = named(members, to), await owner_of(services, members, key)
    if target.id == owner.id:
        return MovedStream(key, owner.name, target.name, was_there=True)
    request = Move(owner.id, split_key(key)[0], key, target.id)
    await ask(services, owner, request, services.config.move_timeout_s * 2 + services.config.model_timeout_s)
    return MovedStream(key, owner.name, target.name)


async def pending_effects(services: Services, key: str) -> tuple[Sequence[Effect], dict[str, str]]:
    """Return the effects that a stream has sent and no target has taken yet, oldest first, and the last
    errors of targets that take nothing at present. Raises OperationRefused for a stream that the state store
    doesn't have."""
    checkpoint = await services.state().peek(key)
    if checkpoint is None:
        raise NotKnown(f"no stream {key!r} in the state store; `holdfast status` lists them")
    return checkpoint.effects, await target_errors(services) if checkpoint.effects else {}


def effect_record(effect: Effect, errors: Mapping[str, str], shown: Shows = body) -> dict[str, Any]:
    """A pending effect as a JSON record, with the last error of its target, of those in ``errors``, and with
    its body as ``shown``."""
    target = redact(effect.target)
    return {
        "id": effect.id,
        "target": target,
        "key": effect.key,
        "cause": effect.cause,
        "at": moment(effect.at),
        "not_before": moment(effect.not_before),
        "refused": effect.refused,
        "error": "" if effect.refused else errors.get(target, ""),
        **shown(effect.body, "body"),
    }


def record_of(checkpoint: Checkpoint) -> StreamRecord:
    """A checkpoint as a record."""
    stream, key = split_key(checkpoint.key)
    return StreamRecord(
        stream=stream,
        key=key,
        epoch=checkpoint.epoch,
        number=checkpoint.number,
        run=checkpoint.log.run if checkpoint.log else None,
        seq=checkpoint.log.last if checkpoint.log else None,
        parked=checkpoint.parked,
        done=checkpoint.done,
        skipped=checkpoint.skipped,
        state_bytes=len(checkpoint.state or b""),
        at=moment(checkpoint.at),
    )


def _teller(services: Services) -> Callable[[Checkpoint], Awaitable[StreamRecord]]:
    """Open what tells the owner of a stream that was changed, and then returns the stream. Call it before
    the change, because a wrong setting must stop the change and not only its report."""
    coordinator, caller = services.coordinator(), services.caller()

    async def told(checkpoint: Checkpoint) -> StreamRecord:
        record = record_of(checkpoint)
        record.told = await operations.poke(coordinator, caller, checkpoint.key)
        return record

    return told


async def latest_results(services: Services, checkpoint: Checkpoint, limit: int) -> Sequence[Logged]:
    """The results of a stream's latest messages, newest first, as far as they are kept and its checkpoint
    has their names, which it has not for timers."""
    if checkpoint.log is None:
        return []
    log, state = checkpoint.log, services.state()
    known = await state.identities(checkpoint.key, NAMES_MAX)
    names = [name for name in reversed(known) if not name.startswith(SKIP_MARK)][:limit]
    if not known:
        first = max(log.start, log.seq - limit + 1)
        names = [Place(log.run, seq).name for seq in range(log.seq, first - 1, -1)]
    found = await asyncio.gather(*(state.result(checkpoint.key, name) for name in names))
    return [logged for logged in found if logged is not None]
