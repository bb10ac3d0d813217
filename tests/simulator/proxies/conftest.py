"""A plain client of SQS, with no signature and no second tries, so that a test sees each answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from simulator.proxies import SqsFaults


class Sqs:
    """Calls one endpoint."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: str) -> None:
        self._http = http
        self._endpoint = endpoint
        self.queue = ""

    async def make_queue(self, name: str, **attributes: str) -> None:
        """Make the queue that later calls are about."""
        made = await self("CreateQueue", QueueUrl=None, QueueName=name, Attributes=attributes)
        self.queue = made["QueueUrl"]

    async def __call__(self, operation: str, **request: Any) -> dict[str, Any]:
        """An answer's body; raises Refused for one that isn't 200."""
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{operation}",
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request",
        }
        body = {"QueueUrl": self.queue} | request
        body = {name: value for name, value in body.items() if value is not None}
        async with self._http.post(f"{self._endpoint}/", json=body, headers=headers) as answer:
            said = await answer.json(content_type=None)
            if answer.status != 200:
                raise Refused(answer.status, said["__type"].split("#")[-1])
            return said or {}

    async def send(self, *bodies: str) -> None:
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
        assert not (await self("SendMessageBatch", Entries=entries)).get("Failed")

    async def receive(self, limit: int = 10, visibility_s: int = 30, wait_s: int = 0) -> list[dict[str, Any]]:
        said = await self(
            "ReceiveMessage",
            MaxNumberOfMessages=limit,
            VisibilityTimeout=visibility_s,
            WaitTimeSeconds=wait_s,
            MessageSystemAttributeNames=["All"],
        )
        return said.get("Messages") or []

    async def counts(self) -> tuple[int, int]:
        """Messages ready and in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        said = (await self("GetQueueAttributes", AttributeNames=names))["Attributes"]
        return int(said[names[0]]), int(said[names[1]])


class Refused(Exception):
    """An answer that isn't 200: its status and code."""


@pytest.fixture(params=["moto", "fauxqs"])
def backend(request: pytest.FixtureRequest) -> str:
    """The endpoint of a real server."""
    endpoint: str = request.getfixturevalue(f"{request.param}_server").endpoint
    return endpoint


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def faults(backend: str) -> AsyncIterator[SqsFaults]:
    async with SqsFaults(backend, seed=5) as proxy:
        yield proxy


@pytest.fixture
async def sqs(http: aiohttp.ClientSession, faults: SqsFaults) -> Sqs:
    """A client through the proxy, and a queue of its own."""
    client = Sqs(http, faults.endpoint)
    await client.make_queue(f"faults-{uuid4().hex}")
    return client


@pytest.fixture
def direct(http: aiohttp.ClientSession, backend: str, sqs: Sqs) -> Sqs:
    """A client past the proxy, of the same queue."""
    client = Sqs(http, backend)
    client.queue = sqs.queue
    return client
