"""A consumer with aiobotocore. Says ``ready`` when warm, and what it took when it has consumed all."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from benchmarks.peers.sqs_consumer import Consumed, arguments


async def consume_all() -> None:
    """Consume."""
    url, wanted, tasks = arguments()
    config = AioConfig(max_pool_connections=tasks, retries={"mode": "standard"}, parameter_validation=False)
    async with get_session().create_client("sqs", config=config) as opened:
        client: Any = opened
        await client.receive_message(QueueUrl=url, WaitTimeSeconds=0)
        consumed = Consumed(wanted)
        print("ready", flush=True)

        async def consume() -> None:
            while not consumed.done:
                answer = await client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                if messages := answer.get("Messages"):
                    await client.delete_message_batch(QueueUrl=url, Entries=consumed.process(messages))
                    consumed.add(len(messages))

        await asyncio.gather(*(consume() for _ in range(tasks)))


def main() -> None:
    """Consume on the loop that Holdfast's nodes have too."""
    uvloop.run(consume_all())


if __name__ == "__main__":
    main()
