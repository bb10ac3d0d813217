"""Dead letters of streams, and of any queue: listed, sent again, removed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.errors import ConfigError, HoldfastError, TooLarge
from holdfast.operate.records import Shows, body, moment, seq, split_key
from holdfast.operate.survey import stream_names
from holdfast.operate.tasks import counts, runners, services_of
from holdfast.ports.dead_letters import PAGE, dead_letters, in_order
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.streams import operations
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import make_producer
from holdfast.wiring import Services

T = TypeVar("T")

READ_MAX = 10_000
"""How many dead letters are read to find some of them."""

Act = Callable[[Queue, Sequence[str]], Awaitable[int]]
"""What is done with some dead letters of a queue; returns how many there were."""

Failed = Callable[[str, HoldfastError], None]
"""What is told of a queue, or of a dead letter, that failed; the others go on."""


class Reads(Protocol):
    """What makes each call that only reads."""

    async def __call__(self, call: Callable[[], Awaitable[T]], /) -> T:
        """Make the call."""


async def once(call: Callable[[], Awaitable[T]], /) -> T:
    """Make a call once."""
    return await call()


async def listed(
    services: Services, stream: str, key: str | None, failed: Failed, *, read: Reads = once
) -> AsyncIterator[DeadLetter]:
    """Dead letters of one stream, or of all. A queue that fails hides none of the others."""
    for name in [stream] if stream else await read(partial(stream_names, services)):
        try:
            async for letter in dead_letters(services.queue(name), key, read=read):
                yield letter
        except HoldfastError as error:
            if stream:
                raise
            failed(name, error)


async def ids_in_order(services: Services, stream: str, key: str | None, *, read: Reads = once) -> list[str]:
    """The ids of all dead letters of a stream, or of one key of it, in the order of their messages."""
    chosen = [letter async for letter in dead_letters(services.queue(stream), key, read=read)]
    return [letter.id for letter in sorted(chosen, key=in_order)]


def by_stream(ids: Iterable[str]) -> dict[str, list[str]]:
    """Ids of dead letters by the streams that they are of."""
    found: dict[str, list[str]] = {}
    for letter_id in ids:
        found.setdefault(stream_of(letter_id), []).append(letter_id)
    return found


def stream_of(letter_id: str) -> str:
    """The stream whose dead letter has this id."""
    return split_key(letter_id)[0]


async def redrive(services: Services, ids: Mapping[str, Sequence[str]], failed: Failed) -> int:
    """Send these dead letters, by their streams, again: messages to their queues, effects to their targets.
    Returns how many there were."""
    from holdfast.streams.redrive import redrive as redrive_letters  # noqa: PLC0415

    peer = functools.cache(services.peer)

    async def tell(key: str) -> str:
        return await operations.poke(services.coordinator(), peer(), key)

    return await _each_queue(
        services, ids, failed, lambda queue, some: redrive_letters(services.state(), queue, some, tell)
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
            for start in range(0, len(some), queue.max_batch):
                batch = some[start : start + queue.max_batch]
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


class LetterSample(NamedTuple):
    """Some dead letters of a queue, in order of id. ``next`` is the id after which there may be more; empty
    where there are none."""

    letters: Sequence[DeadLetter]
    next: str


async def sample(
    services: Services, queue: str, *, key: str | None = None, reason: str = "", after: str = "", limit: int
) -> LetterSample:
    """Dead letters of a queue after the id ``after``: at most ``limit``, of one key, and with a reason that
    contains this text, if given. At most ``READ_MAX`` are read for it."""
    found: list[DeadLetter] = []
    for _ in range(READ_MAX // PAGE):
        page = await services.queue(queue).dead_letters(PAGE, after, key)
        for letter in page:
            after = letter.id
            if reason in letter.reason:
                found.append(letter)
                if len(found) == limit:
                    return LetterSample(found, after)
        if len(page) < PAGE:
            return LetterSample(found, "")
    return LetterSample(found, after)


class LettersDone(msgspec.Struct):
    """What became of some dead letters: how many were ``asked`` for, ``done``, the ids that were ``missing``,
    and the texts of what ``failed``."""

    asked: int
    done: int
    missing: list[str]
    failed: list[str]


async def redrive_ids(services: Services, queue: str, ids: Sequence[str]) -> LettersDone:
    """Send exactly these dead letters of a queue again, in the order of their messages. Those of tasks get
    all their tries again."""
    letters, missing = await _with_ids(services, queue, ids)
    failed: list[str] = []
    owner = (await _task_queues(services)).get(queue)
    if owner is not None:
        app, task_type = owner
        async with services_of(services, app) as theirs:
            done = await make_producer(theirs, app).redrive(task_type, letters)
        return LettersDone(len(ids), done, missing, failed)
    done = await redrive(
        services,
        {queue: [letter.id for letter in letters]},
        lambda where, error: failed.append(f"{where}: {error}"),
    )
    return LettersDone(len(ids), done, missing, failed)


async def purge_ids(services: Services, queue: str, ids: Sequence[str]) -> LettersDone:
    """Remove exactly these dead letters of a queue for good."""
    letters, missing = await _with_ids(services, queue, ids)
    failed: list[str] = []
    done = await purge(
        services,
        {queue: [letter.id for letter in letters]},
        lambda where, error: failed.append(f"{where}: {error}"),
    )
    return LettersDone(len(ids), done, missing, failed)


async def _with_ids(services: Services, queue: str, ids: Sequence[str]) -> tuple[list[DeadLetter], list[str]]:
    """The dead letters with these ids in the order of their messages, and the ids that there are not."""
    left, found = {*ids}, list[DeadLetter]()
    async for letter in dead_letters(services.queue(queue)):
        if letter.id in left:
            found.append(letter)
            left.discard(letter.id)
            if not left:
                break
    return sorted(found, key=in_order), sorted(left)


async def _task_queues(services: Services) -> dict[str, tuple[str, str]]:
    """The queues of tasks, as far as they are known: the app and the type of each."""
    found = {}
    for app in await services.task_apps():
        async with services_of(services, app) as theirs:
            types = {name for name, _ in await counts(theirs, app)}
            types |= {runner.type for runner in await runners(theirs, app)}
        for name in types:
            with contextlib.suppress(ConfigError):  # a task that no queue could take
                found[task_queue(app, name)] = (app, name)
    return found


def letter_record(letter: DeadLetter, shown: Shows = body) -> dict[str, Any]:
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
        "attributes": letter.attributes,
        **shown(letter.body, "body"),
    }
