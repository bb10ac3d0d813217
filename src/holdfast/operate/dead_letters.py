"""Dead letters of streams, and of any queue: listed, sent again, removed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.cluster.effect_dead_letters import EFFECT, TARGET
from holdfast.common.message import Place
from holdfast.common.redaction import redact
from holdfast.errors import ConfigError, HoldfastError, TooLarge
from holdfast.operate.records import Shows, body, moment, seq, split_key
from holdfast.operate.survey import stream_names
from holdfast.operate.tasks import counts, runners, services_of
from holdfast.ports.dead_letters import PAGE, Reads, at_once, batches, dead_letters, in_order
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.streams import operations
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import make_producer
from holdfast.wiring.services import Services

REDRIVE_ACTION, PURGE_ACTION = "send dead letters again", "remove dead letters"
"""What the audit log calls what is done, whether on a page, by the API or on the command line."""

READ_MAX = 10_000
"""How many dead letters are read to find some of them."""

KEYS_LOOKED_AT = 100
"""The most streams that are looked at before dead letters are sent again: each is a call to the state
store."""

NAMES_MAX = 10_000
"""The most identities of a stream that are read to find what it has passed."""

Act = Callable[[Queue, Sequence[str]], Awaitable[int]]
"""What is done with some dead letters of a queue; returns how many there were."""

Failed = Callable[[str, HoldfastError], None]
"""What is told of a queue, or of a dead letter, that failed; the others go on."""


async def listed(
    services: Services, stream: str, key: str | None, failed: Failed, *, read: Reads = at_once
) -> AsyncIterator[DeadLetter]:
    """Dead letters of one queue, or of all streams and types of tasks. A queue that fails hides none of the
    others."""
    for name in [stream] if stream else await _queue_names(services, failed, read):
        try:
            async for letter in dead_letters(services.queue(name), key, read=read):
                yield letter
        except HoldfastError as error:
            if stream:
                raise
            failed(name, error)


async def _queue_names(services: Services, failed: Failed, read: Reads) -> list[str]:
    streams = await read(partial(stream_names, services))
    return sorted({*streams, *await _task_queues(services, failed, read)})


async def ids_in_order(
    services: Services, stream: str, key: str | None, *, read: Reads = at_once
) -> list[str]:
    """The ids of all dead letters of a stream, or of one key of it, in the order of their messages."""
    chosen = [letter async for letter in dead_letters(services.queue(stream), key, read=read)]
    return [letter.id for letter in sorted(chosen, key=in_order)]


async def by_queue(services: Services, ids: Sequence[str], failed: Failed) -> dict[str, list[str]]:
    """Ids of dead letters by the queues that they are in. An id begins with the name of its stream, or of a
    type of tasks. The queue of a task's is found by reading, because the letter of a follow-up lies in the
    queue of the task before it."""
    away: list[tuple[str, HoldfastError]] = []
    owners = await _task_queues(services, lambda where, error: away.append((where, error)))
    streams: Collection[str] = ()
    if owners or away:
        with contextlib.suppress(HoldfastError):  # then all are looked for among the tasks'
            streams = await stream_names(services)
    types = {task_type for _, task_type in owners.values()}
    left = {
        letter_id for letter_id in ids if _prefix(letter_id) not in streams or _prefix(letter_id) in types
    }
    places: dict[str, str] = {}
    for queue in owners:
        if not left:
            break
        try:
            letters, missing = await _with_ids(services, queue, left)
        except HoldfastError as error:
            failed(queue, error)
            continue
        places |= {letter.id: queue for letter in letters}
        left = {*missing}
    if any(_prefix(letter_id) not in streams for letter_id in left):
        for told in away:
            failed(*told)
    found: dict[str, list[str]] = {}
    for letter_id in ids:
        found.setdefault(places.get(letter_id) or _prefix(letter_id), []).append(letter_id)
    return found


def _prefix(letter_id: str) -> str:
    return split_key(letter_id)[0]


class Passed(NamedTuple):
    """The dead letters that would only come back: their streams have passed their places. There may be
    ``more``."""

    ids: Sequence[str] = ()
    more: bool = False

    @property
    def warning(self) -> str:
        """The warning before they are sent again; "" for none."""
        if not self.ids:
            return ""
        count = f"{len(self.ids)} or more" if self.more else f"{len(self.ids)}"
        return (
            f"streams have passed the places of {count} of these, such as {self.ids[0]}: no handler will see"
            " them, and they come back as dead letters. To have one handled, send its body under a new seq or"
            " run, or reset its stream first"
        )


async def passed(services: Services, ids: Sequence[str]) -> Passed:
    """Find the letters of messages, of those with these ids, whose handlers won't see them when they are sent
    again. Of at most ``KEYS_LOOKED_AT`` streams; none where a service doesn't answer."""
    places: dict[str, list[tuple[str, Place]]] = {}
    for letter_id in ids:
        if len(parts := letter_id.rsplit(":", 2)) == 3 and parts[1].isdecimal():
            place = Place.named(":".join(parts[1:]))
            places.setdefault(parts[0], []).append((letter_id, place))
    state, found, by_identity = services.state(), list[str](), dict[str, dict[str, str]]()
    try:
        for key, some in list(places.items())[:KEYS_LOOKED_AT]:
            checkpoint = await state.peek(key)
            if checkpoint is None:
                continue
            recent = await state.identities(key, NAMES_MAX) if any(place.id for _, place in some) else ()
            known = msgspec.structs.replace(checkpoint, recent=tuple(recent))
            for letter_id, place in some:
                if operations.is_passed(known, place):
                    found.append(letter_id)
                    if place.id:
                        by_identity.setdefault(_prefix(letter_id), {})[letter_id] = place.id
        renamed = await _renamed(services, by_identity)
    except HoldfastError:
        return Passed()
    return Passed([each for each in found if each not in renamed], len(places) > KEYS_LOOKED_AT)


async def _renamed(services: Services, queues: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Find the letters, of those with these ids and identities by their queues, whose messages don't hold
    their identities. Their queue gave them, and gives others when they are sent again."""
    renamed: set[str] = set()
    for name, identities in queues.items():
        letters, missing = await _with_ids(services, name, identities)
        renamed |= {each.id for each in letters if each.attributes.get("id") != identities[each.id]}
        renamed.update(missing)
    return renamed


async def redrive(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    """Send these dead letters, by their queues, again: messages and tasks to their queues, the latter with
    all their tries, and effects to their targets. Returns how many there were."""
    count = 0
    for queue, some in ids.items():
        try:
            owner = await _owner(services, queue)
            if owner is None:
                count += await _redrive_messages(services, {queue: some}, failed)
            else:
                letters, _ = await _with_ids(services, queue, some)
                count += await _redrive_tasks(services, owner, letters)
        except HoldfastError as error:
            failed(queue, error)
    return count


async def _redrive_tasks(services: Services, owner: tuple[str, str], letters: Sequence[DeadLetter]) -> int:
    app, task_type = owner
    async with services_of(services, app) as theirs:
        return await make_producer(theirs, app).redrive(task_type, letters)


async def _redrive_messages(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    from holdfast.streams.redrive import redrive as redrive_dead_letters  # noqa: PLC0415

    async def tell(key: str) -> str:
        return await operations.poke(services.coordinator(), services.caller(), key)

    return await _each_queue(
        services,
        ids,
        failed,
        lambda queue, some: redrive_dead_letters(services.state(), queue, some, tell, failed),
    )


async def purge(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    """Remove these dead letters, by their streams, for good. Returns how many there were."""
    return await _each_queue(services, ids, failed, lambda queue, some: queue.purge(some))


async def _each_queue(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed, act: Act) -> int:
    """Do something with dead letters, queue by queue, whatever becomes of those of others."""
    count = 0
    for name, some in ids.items():
        try:
            queue = services.queue(name)
            for batch in batches(queue, some):
                try:
                    count += await act(queue, batch)
                except TooLarge:  # which of them it is shows when they go one by one
                    for letter_id in batch:
                        try:
                            count += await act(queue, [letter_id])
                        except TooLarge as error:
                            failed(letter_id, error)
        except HoldfastError as error:
            failed(name, error)
    return count


class FoundDeadLetters(NamedTuple):
    """Dead letters of a queue, in order of id. ``looked_at`` is how many were read for them, and ``next`` the
    id after which there may be more; empty where there are none."""

    letters: Sequence[DeadLetter]
    looked_at: int
    next: str = ""


async def find(
    services: Services,
    queue: str,
    *,
    limit: int,
    key: str | None = None,
    holds: Callable[[DeadLetter], bool] | None = None,
    after: str = "",
    read_max: int = READ_MAX,
) -> FoundDeadLetters:
    """Dead letters of a queue after the id ``after``: at most ``limit``, of one key, and for which ``holds``
    returns True, if given. At most ``read_max`` are read for it."""
    page = min(limit, PAGE) if holds is None else PAGE
    found: list[DeadLetter] = []
    looked_at = 0
    async for letter in dead_letters(services.queue(queue), key, after=after, page=page):
        looked_at += 1
        if holds is None or holds(letter):
            found.append(letter)
        if len(found) == limit or looked_at == read_max:
            return FoundDeadLetters(found, looked_at, letter.id)
    return FoundDeadLetters(found, looked_at)


class DeadLettersDone(msgspec.Struct):
    """The outcome for some dead letters: how many were ``asked`` for, ``done``, the ids that were
    ``missing``, and the texts of what ``failed``."""

    asked: int
    done: int
    missing: list[str] = []
    failed: list[str] = []


async def redrive_ids(services: Services, queue: str, ids: Sequence[str]) -> DeadLettersDone:
    """Send exactly these dead letters of a queue again, in the order of their messages. Those of tasks get
    all their tries again."""
    letters, missing = await _with_ids(services, queue, ids)
    return msgspec.structs.replace(
        await redrive_dead_letters(services, queue, letters), asked=len(ids), missing=missing
    )


async def purge_ids(services: Services, queue: str, ids: Sequence[str]) -> DeadLettersDone:
    """Remove exactly these dead letters of a queue for good."""
    letters, missing = await _with_ids(services, queue, ids)
    return msgspec.structs.replace(
        await purge_dead_letters(services, queue, letters), asked=len(ids), missing=missing
    )


async def redrive_dead_letters(
    services: Services, queue: str, letters: Sequence[DeadLetter]
) -> DeadLettersDone:
    """Send these dead letters of a queue again, in this order. Those of tasks get all their tries again."""
    owner = await _owner(services, queue)
    if owner is None:
        return await _act_on(services, queue, letters, _redrive_messages)
    return DeadLettersDone(len(letters), await _redrive_tasks(services, owner, letters))


async def purge_dead_letters(
    services: Services, queue: str, letters: Sequence[DeadLetter]
) -> DeadLettersDone:
    """Remove these dead letters of a queue for good."""
    return await _act_on(services, queue, letters, purge)


async def _act_on(
    services: Services,
    queue: str,
    letters: Sequence[DeadLetter],
    act: Callable[[Services, Mapping[str, Sequence[str]], Failed], Awaitable[int]],
) -> DeadLettersDone:
    failed: list[str] = []
    count = await act(
        services,
        {queue: [letter.id for letter in letters]},
        lambda where, error: failed.append(f"{where}: {error}"),
    )
    return DeadLettersDone(len(letters), count, failed=failed)


async def _with_ids(
    services: Services, queue: str, ids: Collection[str]
) -> tuple[list[DeadLetter], list[str]]:
    """The dead letters with these ids in the order of their messages, and the ids that there are not."""
    left, found = {*ids}, list[DeadLetter]()
    async for letter in dead_letters(services.queue(queue)):
        if letter.id in left:
            found.append(letter)
            left.discard(letter.id)
            if not left:
                break
    return sorted(found, key=in_order), sorted(left)


async def _owner(services: Services, queue: str) -> tuple[str, str] | None:
    """The app and the type whose tasks a queue is for; None if it is a stream's."""
    errors: list[HoldfastError] = []
    owners = await _task_queues(services, lambda _, error: errors.append(error))
    if errors and queue not in owners and queue not in await stream_names(services):
        raise errors[0]  # sent again like a message, a task would go without its tries
    return owners.get(queue)


async def _task_queues(
    services: Services, failed: Failed, read: Reads = at_once
) -> dict[str, tuple[str, str]]:
    """The queues of tasks, as far as they are known: the app and the type of each. An app whose services
    fail hides none of the others."""
    try:
        apps = await read(services.task_apps)
    except HoldfastError as error:
        failed("tasks", error)
        return {}
    found = {}
    for app in apps:
        try:
            types = await read(partial(_types, services, app))
        except HoldfastError as error:
            failed(f"tasks of {app}", error)
            continue
        for name in types:
            with contextlib.suppress(ConfigError):  # a task that no queue could take
                found[task_queue(app, name)] = (app, name)
    return found


async def _types(services: Services, app: str) -> set[str]:
    """The types of an app's tasks."""
    async with services_of(services, app) as theirs:
        types = {name for name, _ in await counts(theirs, app)}
        return types | {runner.type for runner in await runners(theirs, app)}


def attributes(letter: DeadLetter) -> dict[str, str]:
    """The attributes of a dead letter, without the secrets in the target of an effect."""
    said = letter.attributes
    return {**said, TARGET: redact(said[TARGET])} if {EFFECT, TARGET} <= said.keys() else dict(said)


def dead_letter_record(letter: DeadLetter, shown: Shows = body) -> dict[str, Any]:
    """A dead letter as a JSON record, with its body as ``shown``."""
    return {
        "id": letter.id,
        "stream": letter.stream,
        "key": letter.key,
        "run": letter.run,
        "seq": seq(letter.seq),
        "at": moment(letter.at),
        "reason": letter.reason,
        "detail": letter.detail,
        "attributes": attributes(letter),
        **shown(letter.body, "body"),
    }
