"""Reads the dead letters of a queue, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from holdfast.common.message import SEQ_DIGITS
from holdfast.common.progress import chunks
from holdfast.ports.queue import DeadLetter, Queue

T = TypeVar("T")

PAGE = 500


class Reads(Protocol):
    """Runs a read, for example with retries."""

    async def __call__(self, call: Callable[[], Awaitable[T]], /) -> T:
        """Return what the read returns."""


async def at_once(call: Callable[[], Awaitable[T]], /) -> T:
    """Make a call once."""
    return await call()


async def dead_letters(
    queue: Queue, key: str | None = None, *, after: str = "", page: int = PAGE, read: Reads = at_once
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters after the id ``after``, in order of id: all, or only of the plain ``key``. Each
    call reads ``page`` of them, and is made by ``read``."""
    while found := await read(partial(queue.dead_letters, page, after, key)):
        for letter in found:
            yield letter
        if queue.hides_dead_letters and len(found) < page:
            return  # another look would read them all again
        after = found[-1].id


def batches(queue: Queue, items: Sequence[T]) -> list[Sequence[T]]:
    """Cut dead letters, or their ids, into calls of ``redrive`` or ``purge``: as few as may be where each
    reads all dead letters."""
    return chunks(items, PAGE if queue.hides_dead_letters else queue.max_batch)


def in_order(letter: DeadLetter) -> tuple[str, int, int, int, str]:
    """Return a sort key: by key, and within a key in the order of its messages: by run and seq, or as they
    arrived. Where the queue doesn't know how they arrived, ids that end in a number are in the order of the
    number."""
    is_numbered = len(letter.seq) == SEQ_DIGITS and letter.seq.isdigit()
    turn = 0 if is_numbered else letter.turn or 0
    return letter.key, letter.run, turn, len(letter.seq), letter.seq
