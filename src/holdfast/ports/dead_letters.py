"""Reads the dead letters of a queue, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from holdfast.ports.queue import DeadLetter, Queue

PAGE = 500


async def at_once(call: Callable[[], Awaitable[list[DeadLetter]]]) -> list[DeadLetter]:
    """Make each call once."""
    return await call()


async def dead_letters(
    queue: Queue,
    key: str | None = None,
    *,
    read: Callable[[Callable[[], Awaitable[list[DeadLetter]]]], Awaitable[list[DeadLetter]]] = at_once,
) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, or those of the plain ``key``, in order of id. ``read`` makes each call."""
    after = ""
    while page := await read(partial(queue.dead_letters, PAGE, after, key)):
        for letter in page:
            yield letter
        after = page[-1].id


def in_order(letter: DeadLetter) -> tuple[str, int, str]:
    """A sort key: by key, and within a key in the order of its messages."""
    return letter.key, letter.run, letter.seq
