"""Dead letters of streams, and of any queue: listed, sent again, removed."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.errors import HoldfastError, TooLarge
from holdfast.operate.records import body, moment, seq, split_key
from holdfast.operate.survey import stream_names
from holdfast.ports.dead_letters import dead_letters, in_order
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.streams import operations
from holdfast.wiring import Services

T = TypeVar("T")

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


def letter_record(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a JSON record."""
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
        **body(letter.body, "body"),
    }
