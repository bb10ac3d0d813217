"""CPU a call of one client: receives ten, deletes ten, and so on; boto3 one call after another, the others
with ``CALLERS`` at once: each is cheapest so.

Arguments: ``holdfast``, ``boto3`` or ``aiobotocore``; the queue's URL; how many frames are there. Prints the
microseconds of processor time for one call.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import boto3
import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config

from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.queue import SqsQueue
from holdfast.services.aws.sqs import Sqs
from holdfast.system.clock import SystemClock

CALLERS = 16
WARM_UP = 2 * CALLERS


def with_boto3(url: str, rounds: int) -> float:
    """Processor time of so many receives and deletes, in seconds."""
    client: Any = boto3.client("sqs", config=Config(parameter_validation=False))

    def call() -> None:
        messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        client.delete_message_batch(QueueUrl=url, Entries=_entries(messages))

    for _ in range(WARM_UP):
        call()
    begin_s = time.process_time()
    for _ in range(rounds - WARM_UP):
        call()
    return time.process_time() - begin_s


async def with_aiobotocore(url: str, rounds: int) -> float:
    """As with boto3."""
    async with get_session().create_client(
        "sqs", config=AioConfig(parameter_validation=False, max_pool_connections=CALLERS)
    ) as opened:
        client: Any = opened

        async def call() -> None:
            messages = (await client.receive_message(QueueUrl=url, MaxNumberOfMessages=10))["Messages"]
            await client.delete_message_batch(QueueUrl=url, Entries=_entries(messages))

        return await _spent(call, rounds)


async def with_holdfast(url: str, rounds: int) -> float:
    """As with boto3, with the queue that nodes have."""
    clock = SystemClock()
    client = AwsClient("sqs", clock)
    queue = SqsQueue(Sqs(client), url, clock)

    async def call() -> None:
        deliveries = await queue.receive(10, 0.0, 60.0, "benchmark")
        await queue.delete([delivery.receipt for delivery in deliveries])

    try:
        return await _spent(call, rounds)
    finally:
        await queue.close()
        await client.close()


async def _spent(call: Callable[[], Awaitable[None]], rounds: int) -> float:
    async def call_all(count: int) -> None:
        remaining = iter(range(count))

        async def call_some() -> None:
            for _ in remaining:
                await call()

        await asyncio.gather(*(call_some() for _ in range(CALLERS)))

    await call_all(WARM_UP)
    begin_s = time.process_time()
    await call_all(rounds - WARM_UP)
    return time.process_time() - begin_s


def _entries(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]


def main() -> None:
    """Measure one client."""
    name, url, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rounds = frames // 10
    if name == "boto3":
        spent_s = with_boto3(url, rounds)
    else:
        spent_s = uvloop.run({"aiobotocore": with_aiobotocore, "holdfast": with_holdfast}[name](url, rounds))
    print(1e6 * spent_s / (2 * (rounds - WARM_UP)), flush=True)


if __name__ == "__main__":
    main()
