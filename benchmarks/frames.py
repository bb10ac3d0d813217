"""Frames for the benchmarks on SQS: a queue of them, and the load, the same for every contender.

They are sent with boto3, from a thread and straight to the server: none of these calls is counted.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

import boto3
from botocore.config import Config

BATCH = 10
CHECK_S = 0.02
CREDENTIALS = {
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
}
"""For a local server, which takes any."""


class FrameQueue:
    """A queue with its dead letter queue, and frames ``0, 1, …`` of each of ``videos`` videos in turn."""

    def __init__(
        self, name: str, port: int, videos: int, *, visibility_s: int, receives_max: int | None = None
    ) -> None:
        self.name = name
        self.videos = videos
        self.sent = 0
        self._sqs: Any = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name=CREDENTIALS["AWS_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(max_pool_connections=50),
        )
        self._dead_url = self._sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
        attributes = {"VisibilityTimeout": str(visibility_s)}
        if receives_max is not None:
            dead = self._attributes(self._dead_url, "QueueArn")["QueueArn"]
            policy = {"deadLetterTargetArn": dead, "maxReceiveCount": receives_max}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self._url = self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def url(self, port: int) -> str:
        """Where the queue is for those who call it through ``port``."""
        return f"http://127.0.0.1:{port}/000000000000/{self.name}"

    async def backlog(self, count: int, delay_s: int = 0) -> None:
        """Send frames as fast as it goes, to be shown ``delay_s`` after each was sent."""
        for start in range(0, count, BATCH):
            await self._send(min(BATCH, count - start), delay_s)

    async def paced(self, count: int, per_s: float) -> None:
        """Send frames at an even pace, ten at a time."""
        due_at = time.monotonic()
        for start in range(0, count, BATCH):
            await self._send(min(BATCH, count - start))
            due_at += BATCH / per_s
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))

    async def left(self) -> int:
        """Frames that are not deleted yet."""
        names = ["", "NotVisible", "Delayed"]
        counts = await asyncio.to_thread(
            self._attributes, self._url, *(f"ApproximateNumberOfMessages{name}" for name in names)
        )
        return sum(map(int, counts.values()))

    async def dead(self) -> int:
        """Frames among the dead letters."""
        counts = await asyncio.to_thread(self._attributes, self._dead_url, "ApproximateNumberOfMessages")
        return int(counts["ApproximateNumberOfMessages"])

    async def empty(self, timeout_s: float) -> None:
        """Wait until every frame is deleted, or dead. Raises RuntimeError if it takes longer."""
        deadline = time.monotonic() + timeout_s
        while left := await self.left():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} frames are still in the queue after {timeout_s:g} s")
            await asyncio.sleep(CHECK_S)

    async def _send(self, count: int, delay_s: int = 0) -> None:
        bodies = [_body(n % self.videos, n // self.videos) for n in range(self.sent, self.sent + count)]
        await asyncio.to_thread(self._send_batch, bodies, delay_s)
        self.sent += count

    def _send_batch(self, bodies: Sequence[str], delay_s: int) -> None:
        entries = [
            {"Id": str(n), "MessageBody": body, "DelaySeconds": delay_s} for n, body in enumerate(bodies)
        ]
        answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        if answer.get("Failed"):
            raise RuntimeError(f"not sent: {answer['Failed']}")

    def _attributes(self, url: str, *names: str) -> dict[str, str]:
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))
        attributes: dict[str, str] = answer["Attributes"]
        return attributes


def _body(video: int, frame: int) -> str:
    """A message as the replaced design has them."""
    return json.dumps(
        {
            "message_id": str(uuid.uuid4()),
            "video_id": f"v{video}",
            "frame_id": frame,
            "timestamp": time.time(),
            "s3_bucket": "frames",
            "s3_key": f"v{video}/{frame:06}.jpg",
        }
    )
