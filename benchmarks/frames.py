"""Frames for the benchmarks on SQS: a queue of them, and the load, the same for every contender.

They are sent with Holdfast's client, the fastest, straight to the server: none of these calls is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

import boto3
import msgspec

from holdfast.ports.queue import Outgoing
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.queue import SqsQueue
from holdfast.services.aws.sqs import Sqs
from holdfast.system.clock import SystemClock
from simulator.servers import FauxqsServer

BATCH = 10
SENDERS = 8
CHECK_S = 0.02


@asynccontextmanager
async def sqs_server() -> AsyncIterator[FauxqsServer]:
    """The fastest SQS server there is for a laptop, to which all clients of this process and its children
    are led from here on."""
    async with FauxqsServer() as server:
        os.environ.update(server.environment())
        yield server


class FrameQueue:
    """A queue with its dead letter queue, on the server of :func:`sqs_server`, and frames ``0, 1, …`` of each
    of ``videos`` videos in turn."""

    def __init__(self, name: str, videos: int, *, visibility_s: int, receives_max: int | None = None) -> None:
        self.name = name
        self.videos = videos
        self.sent = 0
        self._sqs: Any = boto3.client("sqs")
        self._dead_url = self._sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
        attributes = {"VisibilityTimeout": str(visibility_s)}
        if receives_max is not None:
            dead = self._attributes(self._dead_url, "QueueArn")["QueueArn"]
            policy = {"deadLetterTargetArn": dead, "maxReceiveCount": receives_max}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self._url = self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        clock = SystemClock()
        self._client = AwsClient("sqs", clock)
        self._sending = SqsQueue(Sqs(self._client), name, clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sending.close()
        await self._client.close()

    @property
    def url(self) -> str:
        """Where the queue is. Clients go to ``AWS_ENDPOINT_URL`` all the same."""
        return f"{os.environ['AWS_ENDPOINT_URL']}/000000000000/{self.name}"

    async def backlog(self, count: int, delay_s: int = 0) -> None:
        """Send frames as fast as it goes, to be shown ``delay_s`` after each was sent."""
        batches = iter(range(self.sent, self.sent + count, BATCH))
        end = self.sent = self.sent + count

        async def send() -> None:
            for start in batches:
                await self._send(range(start, min(start + BATCH, end)), delay_s)

        await asyncio.gather(*(send() for _ in range(SENDERS)))

    async def left(self) -> int:
        """Frames that are not deleted yet."""
        names = ["", "NotVisible", "Delayed"]
        counts = await asyncio.to_thread(
            self._attributes, self._url, *(f"ApproximateNumberOfMessages{name}" for name in names)
        )
        return sum(map(int, counts.values()))

    async def empty(self, timeout_s: float) -> None:
        """Wait until every frame is deleted, or dead. Raises RuntimeError if it takes longer."""
        deadline = time.monotonic() + timeout_s
        while left := await self.left():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} frames are still in the queue after {timeout_s:g} s")
            await asyncio.sleep(CHECK_S)

    async def _send(self, numbers: Iterable[int], delay_s: int = 0) -> None:
        at = time.time() + delay_s
        bodies = [_body(number % self.videos, number // self.videos, at) for number in numbers]
        await self._sending.send([Outgoing(body, delay_s=delay_s) for body in bodies])

    def _attributes(self, url: str, *names: str) -> dict[str, str]:
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))
        attributes: dict[str, str] = answer["Attributes"]
        return attributes


def _body(video: int, frame: int, at: float) -> bytes:
    """A message as the replaced design has them. ``at``: when it shows."""
    return msgspec.json.encode(
        {
            "message_id": str(uuid.uuid4()),
            "video_id": f"v{video}",
            "frame_id": frame,
            "timestamp": at,
            "s3_bucket": "frames",
            "s3_key": f"v{video}/{frame:06}.jpg",
        }
    )
