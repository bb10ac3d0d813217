"""A cluster for each test, and queues on SQS where it wants them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from holdfast.services.aws.admin import create_queues
from holdfast.services.aws.channel import dead_letter_name
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.sqs import EmptyAnswer, Sqs
from holdfast.system.clock import SystemClock
from simulator.servers import FauxqsServer
from tests.nodes.cluster import Cluster
from tests.nodes.site import Receiver
from tests.serving import served

MakeCluster = Callable[..., Cluster]
MakeQueue = Callable[[str], Awaitable[None]]


@pytest.fixture
async def make_cluster(tmp_path: Path) -> AsyncIterator[MakeCluster]:
    """Make the services of a cluster; its nodes end with the test."""
    made: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        made.append(Cluster(tmp_path, **settings))
        return made[-1]

    yield make
    for cluster in made:
        await cluster.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of HTTP."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as made:
        yield made


@pytest.fixture
async def make_queue(
    fauxqs_server: FauxqsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeQueue]:
    """Make a queue and its dead-letter queue, on a server of SQS that whoever calls AWS finds."""
    for variable, value in fauxqs_server.environment().items():
        monkeypatch.setenv(variable, value)
    client = AwsClient("sqs", SystemClock())
    sqs = Sqs(client)
    made: list[str] = []

    async def make(name: str) -> None:
        made.extend([name, dead_letter_name(name)])
        await create_queues(sqs, name, visibility_s=60, encrypt=False)

    yield make
    for name in made:
        await sqs.call("DeleteQueue", name, {"QueueUrl": await sqs.queue_url(name)}, EmptyAnswer)
    await client.close()


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    """A receiver, whose URL the app knows."""
    made = Receiver()
    async with served(web.post("/hooks", made.take)) as url:
        monkeypatch.setenv("CHAOS_HOOKS", f"{url}/hooks")
        yield made
