"""The handler that the simulator runs: its results prove by themselves in what order, and with what
state, they were computed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from holdfast.streams.handler import Context, StreamHandler

START = "start"


class Number(msgspec.Struct):
    """A message of the simulated stream."""

    key: str
    run: int
    seq: int
    fails: int = 0
    fill: int = 0


def link(chain: str, run: int, seq: int) -> str:
    """The next value of the chain."""
    return hashlib.blake2b(f"{chain}:{run}:{seq}".encode(), digest_size=8).hexdigest()


class Chain(StreamHandler[Number]):
    """Keeps a hash chain over everything handled. A lost, doubled or reordered message breaks it."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.chain: str = START if state is None else json.loads(state)["chain"]

    def process(self, message: Number, context: Context) -> Any:
        if message.fails < 0 or context.attempt <= message.fails:
            raise ValueError("this message fails")
        before, self.chain = self.chain, link(self.chain, message.run, message.seq)
        result = {"run": message.run, "seq": message.seq, "before": before, "after": self.chain}
        return result | {"fill": "x" * message.fill} if message.fill else result

    def snapshot(self) -> bytes:
        return json.dumps({"chain": self.chain}).encode()
