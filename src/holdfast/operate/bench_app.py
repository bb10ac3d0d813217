"""The app that ``holdfast bench`` runs: it counts the messages of each key."""

from __future__ import annotations

import os
from dataclasses import dataclass

from holdfast import App

STREAM_VARIABLE = "HOLDFAST_BENCH_STREAM"
"""The environment variable with the name of the stream, which is another one for each run."""

DEFAULT_STREAM = "bench"

app = App("bench")


@dataclass
class Numbered:
    """A message of 100 bytes or so."""

    key: str
    number: int
    filling: str = "x" * 60


@dataclass
class Counted:
    """The number of messages of a key."""

    messages: int = 0


@app.stream(os.environ.get(STREAM_VARIABLE, DEFAULT_STREAM), seq="number", first_seq=0)
def count(message: Numbered, counted: Counted) -> int:
    counted.messages += 1
    return counted.messages
