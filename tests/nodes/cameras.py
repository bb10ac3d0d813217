"""Clients of gateways: cameras that send frame after frame, and check the responses."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any, NamedTuple

import aiohttp

from tests.nodes.acting_app import follow
from tests.nodes.cluster import LOOK_S, PATIENCE_S, until

KEYS = [f"cam-{i}" for i in range(12)]
FRAMES = 70
LATER = (0, 502, 503, 504)
"""Answers after which a client may send the same again; 0 is a connection that broke."""


class Said(NamedTuple):
    """One answer."""

    status: int
    body: Any
    owner: str = ""


class Camera:
    """One client: sends its frames one after the other, and stores the responses. ``patient``: sends what
    failed again, to the next gateway."""

    def __init__(self, key: str, *, timeout_s: float = 30.0, patient: bool = False) -> None:
        self.key = key
        self.said: list[Any] = []
        self.owners: list[str] = []
        self.at: list[float] = []
        self.retries = 0
        self._patient = patient
        self._timeout_ms = round(timeout_s * 1000)

    async def shoot(self, session: aiohttp.ClientSession, gateways: list[str], frames: int) -> None:
        """Send frames by one gateway after the other."""
        for n in range(len(self.said), len(self.said) + frames):
            said = await self._send(session, gateways[n % len(gateways)], n)
            begun, turn = time.monotonic(), n
            while self._patient and said.status in LATER and time.monotonic() < begun + PATIENCE_S:
                await asyncio.sleep(LOOK_S)
                self.retries += 1
                turn += 1
                said = await self._send(session, gateways[turn % len(gateways)], n)
            assert said.status == 200, (self.key, n, said)
            self.said.append(said.body)
            self.owners.append(said.owner)
            self.at.append(time.time())

    async def _send(self, session: aiohttp.ClientSession, gateway: str, n: int) -> Said:
        try:
            async with session.post(
                f"{gateway}/process/{self.key}",
                json={"key": self.key, "n": n},
                headers={"X-Seq": str(n), "X-Timeout-Ms": str(self._timeout_ms)},
            ) as response:
                body = await response.json(content_type=None)
                return Said(response.status, body, response.headers.get("X-Owner", ""))
        except aiohttp.ClientError as error:
            return Said(0, repr(error))

    def check(self) -> None:
        """Each answer was computed from all frames before, each once."""
        digest = ""
        for n, body in enumerate(self.said):
            digest = follow(digest, n)
            assert (body["n"], body["digest"]) == (n, digest), f"{self.key} at {n}"

    @property
    def stall_s(self) -> float:
        """The longest wait for an answer."""
        return max(b - a for a, b in pairwise(self.at))


class Cameras:
    """All clients of a test; ``settings`` are the arguments of each :class:`Camera`."""

    def __init__(self, session: aiohttp.ClientSession, gateways: list[str], **settings: Any) -> None:
        self.session = session
        self.gateways = gateways
        self.all = [Camera(key, **settings) for key in KEYS]

    async def shoot(self, frames: int = FRAMES) -> None:
        """Every camera sends so many frames."""
        async with asyncio.TaskGroup() as group:
            for camera in self.all:
                group.create_task(camera.shoot(self.session, self.gateways, frames))

    async def until(self, frames: int) -> None:
        """Until every camera has had so many answers."""
        await until(lambda: all(len(camera.said) >= frames for camera in self.all), f"{frames} answers")

    async def more(self, frames: int) -> None:
        """Until every camera has had so many more."""
        await self.until(max(len(camera.said) for camera in self.all) + frames)

    def check(self) -> None:
        """As :meth:`Camera.check`, of all."""
        for camera in self.all:
            camera.check()

    @property
    def retries(self) -> int:
        """How often they sent something again."""
        return sum(camera.retries for camera in self.all)
