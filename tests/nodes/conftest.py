"""A cluster for each test, and queues on SQS where it wants them."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.nodes.cluster import Cluster

from holdfast.adapters.aws.admin import create_queues
from holdfast.adapters.aws.client import AwsClient
from holdfast.adapters.aws.sqs import Sqs
from holdfast.adapters.system.clock import SystemClock
from holdfast.testing.servers import FauxqsServer

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
async def make_queue(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeQueue]:
    """Make a queue and its dead-letter queue, on a server of SQS that whoever calls AWS finds."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(name: str) -> None:
            sqs = await stack.enter_async_context(FauxqsServer())
            for variable, value in sqs.environment().items():
                monkeypatch.setenv(variable, value)
            client = AwsClient("sqs", SystemClock())
            await create_queues(Sqs(client), name, visibility_s=60, encrypt=False)
            await client.close()

        yield make
