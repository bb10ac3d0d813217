"""What goes wrong between a node and the services: delay, loss, answers lost after their effect, requests
that arrive when nobody waits for them any more, and partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from simulator.loop import Gate

WAITING_CALLS = frozenset({"receive", "watch", "results", "changed"})
"""Calls that may wait in the service; they are not sent late."""


class Weather(msgspec.Struct, frozen=True):
    """How likely each trouble is, a call. Delays in seconds."""

    delay_s: float = 0.003
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    late_s: float = 8.0


def draw_weather(random: Random) -> Weather:
    """The weather of a seed: mostly calm, at times bad."""
    trouble = random.choice((0.0, 0.02, 0.1))
    return Weather(
        delay_s=random.choice((0.002, 0.01, 0.05)),
        lost=random.random() * trouble,
        answer_lost=random.random() * trouble,
        late=random.random() * trouble,
    )


class ServiceLine:
    """A node's line to the services: its weather, and where it is cut."""

    def __init__(
        self,
        gate: Gate,
        random: Random,
        weather: Weather,
        counts: Counter[str],
        on_trouble: Callable[[], None],
    ) -> None:
        self.gate = gate
        self.random = random
        self.weather = weather
        self.counts = counts
        self.cut: dict[str, None] = {}
        self.mute: dict[str, None] = {}
        """Services whose answers are lost, while requests arrive."""
        self.slow: dict[str, float] = {}
        """How long services take at most, on the way to them and back."""
        self.calls = 0
        self._on_trouble = on_trouble
        self._late: dict[asyncio.Task[Any], None] = {}

    async def carry(self, service: str, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make one call, in this weather."""
        await self.gate.enter()
        self.calls += 1
        random, weather = self.random, self.weather
        await asyncio.sleep(random.uniform(0.0002, weather.delay_s))
        if service in self.cut:
            self._on_trouble()
            await self._pause(random.uniform(0.5, 2.0))
            raise Unavailable(f"{service} is cut off")
        await self._drag(service)
        chance = random.random()
        if chance < weather.lost:
            self._note("request lost")
            await self.gate.enter()
            raise Unavailable(f"{service}.{name}: the request was lost")
        chance -= weather.lost
        if chance < weather.late and name not in WAITING_CALLS:
            self._note("request late")
            task = asyncio.ensure_future(self._later(random.uniform(0.05, weather.late_s), name, call))
            self._late[task] = None
            task.add_done_callback(self._late.pop)
            await self._pause(random.uniform(0.01, 0.3))
            raise OutcomeUnknown(f"{service}.{name}: no answer")
        chance -= weather.late
        answer: Any = None
        refusal: HoldfastError | None = None
        try:
            answer = await call()
        except HoldfastError as error:
            refusal = error
        await self._drag(service)
        if chance < weather.answer_lost or service in self.cut or service in self.mute:
            self._note("answer lost")
            await self._pause(random.uniform(0.01, 0.3))
            raise OutcomeUnknown(f"{service}.{name}: the answer was lost")
        await asyncio.sleep(random.uniform(0.0002, weather.delay_s))
        await self.gate.enter()
        if refusal is not None:
            raise refusal
        return answer

    async def _drag(self, service: str) -> None:
        if service in self.slow:
            await self._pause(self.random.uniform(0.0, self.slow[service]))

    async def uncut(self, service: str) -> None:
        """Wait while the line to ``service`` is cut."""
        while service in self.cut:  # noqa: ASYNC110 - cuts end by the scenario, which tells nobody
            await asyncio.sleep(0.5)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.gate.enter()

    async def _later(self, seconds: float, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        await asyncio.sleep(seconds)
        if name == "take":
            self._on_trouble()  # nobody gets what it delivers
        try:
            await call()
        except Exception:  # noqa: BLE001 - whatever it was, nobody hears of it
            self.counts["late request refused"] += 1

    def _note(self, trouble: str) -> None:
        self.counts[trouble] += 1
        self._on_trouble()


class Faulty:
    """A service as one node sees it: every call goes over the node's line."""

    def __init__(self, service: Any, name: str, line: ServiceLine) -> None:
        self._service = service
        self._name = name
        self._line = line

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._service, name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._line.carry(self._name, name, lambda: member(*args, **kwargs))

        self.__dict__[name] = call  # to find out what it is takes longer than to call it
        return call
