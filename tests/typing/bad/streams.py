"""Streams with a setting that there isn't, a value that can't be, or a handler of other messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import App, Context, StreamHandler

app = App("meters")


@dataclass
class Reading:
    meter: str


app.stream("a", keyy="meter")  # error
app.stream("a", gap_timeout="45")  # error
app.stream("a", key=7)  # error
app.stream("a", on_gap="wait")  # error
app.stream("a", max_jump="none")  # error


@app.stream("a", message=Reading)  # error
class OfTexts(StreamHandler[str]):
    def process(self, message: str, context: Context) -> None: ...


@app.stream("a")  # error
class OfReadings(StreamHandler[Reading]):
    def process(self, message: Reading, context: Context) -> None: ...


@app.stream("a", message=Reading)  # error
class NoHandler:
    pass


@app.stream("a", message=Reading)  # error
def of_texts(message: str, context: Context) -> None: ...


@app.stream("a", message=bytes)  # error
def of_dicts(message: dict[str, Any], context: Context) -> None: ...


@app.stream("a")  # error
def without_context(message: dict[str, Any]) -> None: ...


class Total(StreamHandler[Reading]):
    def process(self, message: str, context: Context) -> None: ...  # error
