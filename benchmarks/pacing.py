"""Clients that send requests to gateways at an even pace, whether earlier ones are answered or not."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp


class Answered(NamedTuple):
    """One request: monotonic times, and its answer. A status of 0 stands for no answer."""

    due_at: float
    at: float
    status: int
    body: bytes


class Request(NamedTuple):
    """A request of a client."""

    url: str
    body: bytes
    content_type: str
    seq: int | None = None


class PacedClients(ABC):
    """Clients of ``streams``, each of which sends a request in turn, together ``per_s`` requests a second."""

    def __init__(self, streams: Sequence[str], per_s: float) -> None:
        self._per_s = per_s
        self._ending = False
        self.answered: dict[str, list[Answered]] = {stream: [] for stream in streams}

    @abstractmethod
    def request(self, stream: str, number: int) -> Request:
        """Return request ``number`` of a stream."""

    async def run(self) -> None:
        """Send until ``end``, and wait for all answers."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            due_at, number = time.monotonic(), 0
            while not self._ending:
                for stream in self.answered:
                    group.create_task(self._send(session, stream, number, due_at))
                    due_at += 1 / self._per_s
                    await asyncio.sleep(max(0.0, due_at - time.monotonic()))
                number += 1

    def end(self) -> None:
        """Stop sending once each stream has sent as many requests as the others."""
        self._ending = True

    async def _send(self, session: aiohttp.ClientSession, stream: str, number: int, due_at: float) -> None:
        url, body, content_type, seq = self.request(stream, number)
        headers = {"Content-Type": content_type} | ({} if seq is None else {"X-Seq": str(seq)})
        try:
            async with session.post(url, data=body, headers=headers) as response:
                status, answer = response.status, await response.read()
        except aiohttp.ClientError as error:
            status, answer = 0, repr(error).encode()
        self.answered[stream].append(Answered(due_at, time.monotonic(), status, answer))

    def errors(self) -> Counter[str]:
        """Count the answers that aren't results, by status and text."""
        return Counter(
            f"{each.status}: {each.body.decode(errors='replace')[:200]}"
            for answered in self.answered.values()
            for each in answered
            if each.status != 200
        )

    def waits_ms(self, streams: Sequence[str], since: float, until: float) -> list[list[float]]:
        """Return the times to the answers of requests that were due in that time, by stream."""
        return [
            [1000 * (each.at - each.due_at) for each in self.answered[key] if since <= each.due_at <= until]
            for key in streams
        ]
