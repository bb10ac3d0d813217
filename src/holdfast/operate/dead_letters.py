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
"""The names of actions in the audit log."""

READ_MAX = 10_000
"""The most dead letters that are read to find some."""

KEYS_LOOKED_AT = 100
"""The most streams that are checked before dead letters are sent again: each is a call to the state store."""

NAMES_MAX = 10_000
"""The most identities of a stream that are read to find the messages that it has passed."""

BatchAct = Callable[[Queue, Sequence[str]], Awaitable[int]]
"""A function that acts on dead letters of a queue, and returns the number of existing ones."""

Failed = Callable[[str, HoldfastError], None]
"""A function for the error of a queue or of a dead letter; the others go on."""


async def listed(
    services: Services, stream: str, key: str | None, failed: Failed, *, read: Reads = at_once
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters of one queue, or of all streams and types of tasks. A queue that fails hides no
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
    """Return the ids of all dead letters of a stream, or of one key, in the order of their messages."""
    chosen = [letter async for letter in dead_letters(services.queue(stream), key, read=read)]
    return [letter.id for letter in sorted(chosen, key=in_order)]


async def by_queue(services: Services, ids: Sequence[str], failed: Failed) -> dict[str, list[str]]:
    """Return ids of dead letters by their queues. An id begins with the name of its stream, or of a type of
    tasks. The queue of a task's dead letter is found by reading, because that of a follow-up is in the
    queue of the task before it."""
    away: list[tuple[str, HoldfastError]] = []
    owners = await _task_queues(services, lambda where, error: away.append((where, error)))
    streams: Collection[str] = ()
    if owners or away:
        with contextlib.suppress(HoldfastError):  # then all are searched among the tasks'
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
        for failure in away:
            failed(*failure)
    found: dict[str, list[str]] = {}
    for letter_id in ids:
        found.setdefault(places.get(letter_id) or _prefix(letter_id), []).append(letter_id)
    return found


def _prefix(letter_id: str) -> str:
    return split_key(letter_id)[0]


class Passed(NamedTuple):
    """Dead letters that would only come back, because their streams have passed their places. There may be
    ``more``."""

    ids: Sequence[str] = ()
    more: bool = False

    @property
    def warning(self) -> str:
        """The warning before a redrive; "" for none."""
        if not self.ids:
            return ""
        count = f"{len(self.ids)} or more" if self.more else f"{len(self.ids)}"
        return (
            f"streams have passed the places of {count} of these, such as {self.ids[0]}: no handler will see"
            " them, and they come back as dead letters. To have one handled, send its body under a new seq or"
            " run, or reset its stream first"
        )


async def passed(services: Services, ids: Sequence[str]) -> Passed:
    """Find dead letters, of those with these ids, that no handler would see after a redrive. Checks at most
    ``KEYS_LOOKED_AT`` streams; finds none if a service doesn't answer."""
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
    """Find dead letters, of those with these ids and identities by queue, whose messages don't hold their
    identities: their queue gave these, and gives new ones after a redrive."""
    renamed: set[str] = set()
    for name, identities in queues.items():
        letters, missing = await _with_ids(services, name, identities)
        renamed |= {each.id for each in letters if each.attributes.get("id") != identities[each.id]}
        renamed.update(missing)
    return renamed


async def redrive(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    """Send these dead letters, by queue, again: messages and tasks to their queues, tasks with all their
    tries, and effects to their targets. Returns the number of existing ones."""
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

    async def notify(key: str) -> str:
        return await operations.poke(services.coordinator(), services.caller(), key)

    return await _each_queue(
        services,
        ids,
        failed,
        lambda queue, some: redrive_dead_letters(services.state(), queue, some, notify, failed),
    )


async def purge(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    """Remove these dead letters, by queue, for good. Returns the number of existing ones."""
    return await _each_queue(services, ids, failed, lambda queue, some: queue.purge(some))


async def _each_queue(
    services: Services, ids: Mapping[str, Sequence[str]], failed: Failed, act: BatchAct
) -> int:
    """Act on dead letters queue by queue, even if some queues fail."""
    count = 0
    for name, some in ids.items():
        try:
            queue = services.queue(name)
            for batch in batches(queue, some):
                try:
                    count += await act(queue, batch)
                except TooLarge:  # one by one, to find the large one
                    for letter_id in batch:
                        try:
                            count += await act(queue, [letter_id])
                        except TooLarge as error:
                            failed(letter_id, error)
        except HoldfastError as error:
            failed(name, error)
    return count


class FoundDeadLetters(NamedTuple):
    """Dead letters of a queue, in order of id. ``looked_at`` is the number that was read for them, and
    ``next`` the id after which there may be more; empty at the end."""

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
    """Return up to ``limit`` dead letters of a queue after the id ``after``: of one key, and for which
    ``holds`` returns True. At most ``read_max`` are read."""
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
    """The outcome for some dead letters: the numbers ``asked`` for and ``done``, the ``missing`` ids, and
    the errors of the ``failed`` ones."""

    asked: int
    done: int
    missing: list[str] = []
    failed: list[str] = []


Act = Callable[[Services, str, Sequence[DeadLetter]], Awaitable[DeadLettersDone]]
"""A function that acts on dead letters of a queue."""


async def act_on_ids(services: Services, queue: str, ids: Sequence[str], act: Act) -> DeadLettersDone:
    """Act on exactly the dead letters of a queue with these ids, in the order of their messages."""
    letters, missing = await _with_ids(services, queue, ids)
    return msgspec.structs.replace(await act(services, queue, letters), asked=len(ids), missing=missing)


async def redrive_dead_letters(
    services: Services, queue: str, letters: Sequence[DeadLetter]
) -> DeadLettersDone:
    """Send these dead letters of a queue again, in this order. Tasks get all their tries again."""
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
    """Return the dead letters with these ids in the order of their messages, and the missing ids."""
    left, found = {*ids}, list[DeadLetter]()
    async for letter in dead_letters(services.queue(queue)):
        if letter.id in left:
            found.append(letter)
            left.discard(letter.id)
            if not left:
                break
    return sorted(found, key=in_order), sorted(left)


async def _owner(services: Services, queue: str) -> tuple[str, str] | None:
    """Return app and type of a queue of tasks; None for the queue of a stream."""
    errors: list[HoldfastError] = []
    owners = await _task_queues(services, lambda _, error: errors.append(error))
    if errors and queue not in owners and queue not in await stream_names(services):
        raise errors[0]  # a task that is sent like a message would not get its tries
    return owners.get(queue)


async def _task_queues(
    services: Services, failed: Failed, read: Reads = at_once
) -> dict[str, tuple[str, str]]:
    """Return the known queues of tasks, each with app and type. An app whose services fail hides no
    others."""
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
    async with services_of(services, app) as theirs:
        types = {name for name, _ in await counts(theirs, app)}
        return types | {runner.type for runner in await runners(theirs, app)}


def attributes(letter: DeadLetter) -> dict[str, str]:
    """Return the attributes of a dead letter, without secrets in the target of an effect."""
    found = dict(letter.attributes)
    if {EFFECT, TARGET} <= found.keys():
        found[TARGET] = redact(found[TARGET])
    return found


def dead_letter_record(letter: DeadLetter, shown: Shows = body) -> dict[str, Any]:
    """Return a dead letter as a JSON record, with its body as ``shown``."""
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
