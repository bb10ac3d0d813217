"""Streams with a setting that there isn't, a value that can't be, or a handler of other messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import App, Context, StreamHandler

app = App("meters")


@dataclass
class Reading:
    meter: str


@dataclass
class Counter:
    count: int = 0


app.stream("a", keyy="meter")  # error
app.stream("a", gap_timeout="45")  # error
app.stream("a", key=7)  # error
app.stream("a", on_gap="wait")  # error
app.stream("a", max_jump="none")  # error


@app.stream("a", message=Reading)  # error
class OfTexts(StreamHandler[str]):
    def process(self, message: str, context: Context) -> None: ...


@app.stream("a", message=Reading)  # error
class NoHandler:
    pass


@app.stream("a", message=Reading)  # error
def of_texts(message: str, context: Context) -> None: ...


@app.stream("a", message=bytes)  # error
def of_dicts(message: dict[str, Any], context: Context) -> None: ...


@app.stream("a")  # error
def none() -> None: ...


@app.stream("a")  # error
def four(message: Reading, state: Total, context: Context, more: int) -> None: ...


@app.stream("a", message=Reading)  # error
def of_texts_with_state(message: str, state: Total) -> None: ...


@app.stream("a")
def counts(message: Reading, state: Counter) -> int:
    return state.count


counts.on_timer(7)  # error
counts.migrate(from_version="1")  # error
count: str = counts(Reading("m"), Counter())  # error


class Total(StreamHandler[Reading]):
    def process(self, message: str, context: Context) -> None: ...  # error
