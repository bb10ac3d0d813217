"""Streams that are declared as they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import msgspec
import pydantic

from holdfast import App, Context, StreamHandler

app = App("meters")


@dataclass
class Reading:
    meter: str
    number: int
    kwh: float


class Position(pydantic.BaseModel):
    ship: str


class Beat(msgspec.Struct):
    device: str


@app.stream(
    "readings",
    message=Reading,
    key=("meter", "device"),
    seq="number",
    run=("run", None),
    first_seq=0,
    gap_timeout_s=60,
    on_gap="hold",
    max_jump=None,
    models="weights",
)
class Total(StreamHandler[Reading]):
    unit = "kWh"

    def process(self, message: Reading, context: Context) -> dict[str, float]:
        return {message.meter: message.kwh}


class Fresh(Total):
    pass


assert_type(Total.unit, str)
app.stream("fresh", message=Reading)(Fresh)


@app.stream("anything")
class Anything(StreamHandler[dict[str, Any]]):
    async def process(self, message: dict[str, Any], context: Context) -> None: ...


class Wide(StreamHandler["Reading | Beat"]):
    def process(self, message: Reading | Beat, context: Context) -> None: ...


app.stream("wide", message=Beat)(Wide)


@app.stream("positions", message=Position)
def position(message: Position, context: Context) -> str:
    return message.ship


@app.stream("beats", message=Beat)
async def beat(message: Beat, context: Context) -> str:
    return message.device


@app.stream("dicts")
def from_dict(message: dict[str, Any], context: Context) -> None: ...


@app.stream("raw", message=bytes, key="device")
def raw(message: bytes, context: Context) -> bytes:
    return message


def in_a_test(context: Context) -> None:
    assert_type(position(Position(ship="x"), context), str)
