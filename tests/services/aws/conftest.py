"""What tests on AWS share: a server, an account, and queues of their own."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from holdfast.ports.clock import Clock
from holdfast.services.aws import dead_letters
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.sqs import QueueUrl, Sqs
from holdfast.system.clock import SystemClock

REGION = "eu-west-1"

GLANCE_S = 0.0
"""How long to wait for what is there: unlike SQS itself, the servers look everywhere at once."""


class QuickClock(SystemClock):
    """Sleeps are noted, and over at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    """Credentials that mean nothing, and none of this machine's settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/credentials")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all dead letters ends with the last."""
    monkeypatch.setattr(dead_letters, "SCAN_WAIT_S", GLANCE_S)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture(params=["fauxqs"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of a server that speaks SQS."""
    endpoint: str = request.getfixturevalue(f"{request.param}_server").endpoint
    return endpoint


@pytest.fixture
async def sqs(server: str, clock: Clock) -> AsyncIterator[Sqs]:
    client = AwsClient("sqs", clock, region=REGION, endpoint=server)
    yield Sqs(client)
    await client.close()


@pytest.fixture(params=["standard"])
async def queue_name(request: pytest.FixtureRequest, sqs: Sqs) -> str:
    """The name of a new queue, its dead-letter queue beside it."""
    end, fifo = (".fifo", {"FifoQueue": "true"}) if request.param == "fifo" else ("", {})
    name = f"q-{uuid4().hex}"
    dead = await sqs.call(
        "CreateQueue", "dlq", {"QueueName": f"{name}-dlq{end}", "Attributes": fifo}, QueueUrl
    )
    arn = (await sqs.attributes(dead.queue_url, "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 100})
    await sqs.call(
        "CreateQueue",
        "q",
        {"QueueName": name + end, "Attributes": fifo | {"RedrivePolicy": policy}},
        QueueUrl,
    )
    return name + end
