"""Tasks and their outcomes over two queues with one call for each step, as a worker without batches does."""

from __future__ import annotations

from typing import Any

import boto3


class Unbatched:
    """A producer and its worker in turn, with boto3."""

    def __init__(self) -> None:
        self._sqs: Any = boto3.client("sqs")
        self._tasks, self._outcomes = (
            self._sqs.create_queue(QueueName=f"unbatched-{name}")["QueueUrl"]
            for name in ("tasks", "outcomes")
        )

    def run(self, tasks: int) -> None:
        """Send so many tasks, do them, and read their outcomes."""
        for n in range(tasks):
            self._sqs.send_message(QueueUrl=self._tasks, MessageBody=f"task {n}")
            task = self._receive(self._tasks)
            self._sqs.send_message(QueueUrl=self._outcomes, MessageBody=f"did {task['Body']}")
            self._delete(self._tasks, task)
            self._delete(self._outcomes, self._receive(self._outcomes))

    def _receive(self, url: str) -> Any:
        (message,) = self._sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        return message

    def _delete(self, url: str, message: Any) -> None:
        self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
