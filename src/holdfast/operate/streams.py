"""The operations on one stream: pause, resume, skip, reset, move, and its pending effects.

A stream is named by its full key, ``STREAM/KEY``. Its owner is notified of each change; an unreachable
owner notices it at its next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.common.acts import Effect
from holdfast.common.message import Place
from holdfast.common.protocol import Move
from holdfast.common.redaction import redact
from holdfast.common.text import counted
from holdfast.errors import HoldfastError, InvalidMessage, NotKnown
from holdfast.operate.actions import Action, Done, NoFields
from holdfast.operate.nodes import ask, named, owner_of
from holdfast.operate.records import Shows, body, moment, split_key
from holdfast.operate.survey import target_errors
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.sequencer import SKIP_MARK
from holdfast.streams import operations
from holdfast.streams.declared import run_by_nodes
from holdfast.wiring.services import Services

NAMES_MAX = 100
"""The most identities that are read to find a stream's latest results: some messages are skipped."""

Seq = Annotated[int, Meta(ge=0)]


class StreamRecord(msgspec.Struct):
    """A stream's checkpoint without its state. ``told`` is the owner of a changed stream, if it could be
    notified."""  # prose: the field's name

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


class Skip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to skip: the head, or all of ``run`` up to the seq ``through``."""

    through: Annotated[
        Seq | None,
        Meta(
            title="Through seq (empty: only the head)",
            description="The last seq to skip, even if its message has yet to come. Default: only the message"
            " at the head.",
        ),
    ] = None
    run: Annotated[
        Seq | None,
        Meta(
            title="Of run (empty: the current one)",
            description="The run in which 'through' counts. Default: the current one.",
        ),
    ] = None


class Reset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a stream to delete."""

    keep_place: Annotated[
        bool,
        Meta(title="Keep the place", description="Delete only the state; the stream continues at its place."),
    ] = False


class MoveTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node to move to."""

    to: Annotated[
        str,
        Meta(
            min_length=1, max_length=512, title="Move to", description="Name of the node, or its membership."
        ),
    ]


class DropEffects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pending effects to give up: those with these ids, those for a target, or all."""

    ids: Annotated[
        list[str],
        Meta(max_length=1000, description="Ids of effects, as `holdfast streams effects` lists them."),
    ] = []
    target: Annotated[
        str, Meta(max_length=2000, description="The target, as `holdfast streams effects` shows it.")
    ] = ""
    all: Annotated[bool, Meta(description="All pending effects.")] = False


class ResumedStream(msgspec.Struct):
    """A resumed stream, and how many of its ``parked`` dead letters were sent again."""

    stream: StreamRecord
    letters_sent: int


class DroppedEffects(msgspec.Struct):
    """A stream, and how many of its effects go to the dead letters."""

    stream: StreamRecord
    dropped: int


@partial(Action, name="pauseStream", title="Pause", unavailable="It is parked already.")
async def pause(services: Services, key: str, chosen: NoFields) -> Done[StreamRecord]:
    """Pause a stream. Its messages wait; those over its inbox limit become dead letters `parked`, which
    resume sends again.

    ```
    holdfast streams pause detect/cam-1
    ```
    """
    record, _ = await _changed(services, lambda: operations.pause(services.state(), key))
    return Done(record, _text(f"{key} is paused", record))


@partial(Action, name="resumeStream", title="Resume", unavailable="It isn't parked.")
async def resume(services: Services, key: str, chosen: NoFields) -> Done[ResumedStream]:
    """Resume a parked stream, and send its `parked` dead letters to the queue again, in order.

    ```
    holdfast streams resume detect/cam-1
    ```
    """
    queue = services.queue(split_key(key)[0])
    record, sent = await _changed(services, lambda: operations.resume(services.state(), queue, key))
    again = f"; {counted(sent, 'dead letter')} sent to its queue again" if sent else ""
    return Done(ResumedStream(record, sent), _text(f"{key} goes on{again}", record), record)


@partial(Action, name="skipInStream", title="Skip messages")
async def skip(services: Services, key: str, chosen: Skip) -> Done[StreamRecord]:
    """Skip the message at the head of a stream, or all up to one. If a skipped message comes (again), it
    becomes a dead letter.

    ```
    holdfast streams skip detect/cam-1
    holdfast streams skip detect/cam-1 --through 1500
    ```
    """
    if chosen.run is not None and chosen.through is None:
        raise InvalidMessage("field 'run' says in which run 'through' is; give both", "through")
    through, run = chosen.through, chosen.run
    record, _ = await _changed(services, lambda: operations.skip(services.state(), key, through, run))
    return Done(record, _text(f"messages of {key} are skipped", record))


@partial(
    Action,
    name="resetStream",
    title="Reset",
    confirm="Delete its state for good",
    warning="a reset deletes the state for good",
)
async def reset(services: Services, key: str, chosen: Reset) -> Done[StreamRecord]:
    """Delete a stream's state and place, as if it had never run. Messages that were handled before are
    handled again if they come again. Results stay.

    ```
    holdfast streams reset detect/cam-1 --yes
    ```
    """
    keep = chosen.keep_place
    record, _ = await _changed(services, lambda: operations.reset(services.state(), key, keep_place=keep))
    return Done(record, _text(f"the state of {key} is deleted", record))


@partial(
    Action,
    name="moveStream",
    title="Move",
    unavailable="No node owns it, or there is no other node.",
    status=202,
)
async def move(services: Services, key: str, chosen: MoveTo) -> Done[MovedStream]:
    """Move a stream to another node. It warms up there first; nothing waits meanwhile.

    ```
    holdfast move frames/cam-1 --to node-2
    ```
    """
    members = await services.coordinator().members()
    target, owner = named(members, chosen.to), await owner_of(services, members, key)
    if target.id == owner.id:
        moved = MovedStream(key, owner.name, target.name, was_there=True)
        return Done(moved, f"{key} is on {target.name} already")
    request = Move(owner.id, split_key(key)[0], key, target.id)
    await ask(services, owner, request, services.config.move_timeout_s * 2 + services.config.model_timeout_s)
    return Done(MovedStream(key, owner.name, target.name), f"{key} moves from {owner.name} to {target.name}")


@partial(
    Action,
    name="dropEffects",
    title="Give up effects",
    audit="drop effects",
    confirm="Give up all pending effects",
    warning="no target gets a dropped effect",
    unavailable="It has no pending effects.",
    form={"all": True},
)
async def drop_effects(services: Services, key: str, chosen: DropEffects) -> Done[DroppedEffects]:
    """Give up effects that no target has taken yet. They become dead letters, which `holdfast dlq redrive`
    sends to their targets again.

    ```
    holdfast streams drop-effects cameras/cam-1 --target alerts --yes
    holdfast streams drop-effects cameras/cam-1 5ccaf0a31d84cd9738d8d289580bcbd4 --yes
    ```
    """
    if sum((bool(chosen.ids), bool(chosen.target), chosen.all)) != 1:
        raise InvalidMessage("give one of 'ids', 'target' and 'all'", "ids")
    ids, target = chosen.ids, chosen.target
    record, count = await _changed(
        services, lambda: operations.drop_effects(services.state(), key, ids, target)
    )
    text = f"{counted(count, 'effect')} of {key} moved to the dead letters"
    return Done(DroppedEffects(record, count), _text(text, record), record)


ACTIONS: Sequence[Action[str]] = (pause, resume, skip, reset, move, drop_effects)
"""All actions on a stream, by its full key."""


async def _changed(
    services: Services, change: Callable[[], Awaitable[Checkpoint | tuple[Checkpoint, int]]]
) -> tuple[StreamRecord, int]:
    """Change a stream and notify its owner. Returns the stream and the count that the change returned. A
    wrong setting raises before the change."""
    coordinator, caller = services.coordinator(), services.caller()
    done = await change()
    checkpoint, count = done if isinstance(done, tuple) else (done, 0)
    told = await operations.poke(coordinator, caller, checkpoint.key)
    return msgspec.structs.replace(record_of(checkpoint), told=told), count


def _text(text: str, record: StreamRecord) -> str:
    place = "it has no place" if record.seq is None else f"it stands at run {record.run}, seq {record.seq}"
    parked = f"; parked: {record.parked}" if record.parked else ""
    owner = f"; {record.told} was notified" if record.told else ""
    return f"{text}; {place}, epoch {record.epoch}{parked}{owner}"


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


async def stream_warning(services: Services, stream: str) -> str:
    """Return a warning if nodes live and none runs the stream, as for a misspelt name; else an empty text."""
    try:
        declared = await run_by_nodes(services.coordinator())
    except HoldfastError:  # the messages wait in their queue anyway
        return ""
    if not declared or stream in declared:
        return ""
    return f"no node runs a stream {stream!r}; messages wait until one does. Nodes run {', '.join(declared)}"
