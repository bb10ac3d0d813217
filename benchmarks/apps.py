"""The apps that the benchmarks run."""

from __future__ import annotations

import msgspec

from holdfast import App, Context


class Message(msgspec.Struct):
    """A message that says no more than its place."""

    key: str
    n: int


noop = App("noop")


@noop.stream("noop", key="key", seq="n", message=Message, first_seq=0)
def nothing(message: Message, context: Context) -> int:
    """Does nothing; its result tells that it was done."""
    return message.n
