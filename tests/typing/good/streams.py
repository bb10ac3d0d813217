"""Streams that are declared as they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import msgspec
import pydantic

from holdfast import App, Context, Stream, StreamHandler

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


@app.stream("inferred")
class Inferred(StreamHandler[Reading]):
    def process(self, message: Reading, context: Context) -> None: ...


@dataclass
class Meter:
    kwh: float = 0.0


@app.stream("message alone")
def alone(message: Reading) -> str:
    return message.meter


@app.stream("state")
def add(message: Reading, meter: Meter) -> float:
    meter.kwh += message.kwh
    return meter.kwh


@app.stream("state and context", message=Reading, initial=lambda key: Meter(float(key)), version=2)
async def add_later(message: Reading, meter: Meter, context: Context) -> float:
    return meter.kwh


@add_later.on_timer("silent")
def silent(meter: Meter, context: Context) -> None: ...


@add_later.on_query
def ask(request: str, meter: Meter) -> float:
    return meter.kwh


@add_later.migrate(from_version=1)
def rename(state: dict[str, Any]) -> dict[str, Any]:
    return state


assert_type(add, Stream[Reading, Meter, float])
assert_type(alone, Stream[Reading, None, str])


async def called(context: Context) -> None:
    assert_type(add(Reading("m", 0, 1.0), Meter()), float)
    assert_type(await add_later(Reading("m", 0, 1.0), Meter(), context), float)


def in_a_test(context: Context) -> None:
    assert_type(position(Position(ship="x"), context), str)
