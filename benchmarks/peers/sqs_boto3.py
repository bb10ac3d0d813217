"""A consumer with boto3. Says ``ready`` when warm, and what it took when it has consumed all."""

from __future__ import annotations

import threading
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.peers.sqs_consumer import Consumed, arguments


def main() -> None:
    """Consume."""
    url, wanted, threads = arguments()
    config = Config(max_pool_connections=threads, retries={"mode": "standard"}, parameter_validation=False)
    client: Any = boto3.client("sqs", config=config)
    client.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    consumed = Consumed(wanted)
    lock = threading.Lock()
    print("ready", flush=True)

    def consume() -> None:
        while not consumed.done:
            answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            if messages := answer.get("Messages"):
                client.delete_message_batch(QueueUrl=url, Entries=consumed.process(messages))
                with lock:
                    consumed.add(len(messages))

    running = [threading.Thread(target=consume) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    main()
