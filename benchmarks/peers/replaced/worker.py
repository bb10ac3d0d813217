"""One worker of the replaced design; the environment says where its services are.

Says ``ready`` when it is warm, then polls until it is terminated.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import boto3
import redis
from botocore.config import Config

from benchmarks.peers.replaced.lock import VideoLock

RESULTS = "results"
"""A Redis list of ``[video, frame, sent at, committed at]``, as JSON."""


class Worker:
    """Polls, locks, skips, processes, deletes."""

    def __init__(self, environment: os._Environ[str]) -> None:
        self._queue_url = environment["SQS_QUEUE_URL"]
        self._ttl_s = int(environment["LOCK_TTL_SECONDS"])
        self._renew_s = float(environment["LOCK_RENEWAL_INTERVAL_SECONDS"])
        self._idle_s = float(environment["PROCESSING_IDLE_TIMEOUT_SECONDS"])
        self._sqs: Any = boto3.client("sqs", config=Config(retries={"mode": "standard"}))
        self._redis = redis.Redis(host=environment["REDIS_HOST"], port=int(environment["REDIS_PORT"]))
        self._locks: dict[str, VideoLock] = {}
        self._active_at: dict[str, float] = {}

    def warm_up(self) -> None:
        """Connect to both services."""
        self._sqs.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=["VisibilityTimeout"])
        self._redis.ping()

    def run(self) -> None:
        """Poll for ever."""
        while True:
            received = self._sqs.receive_message(
                QueueUrl=self._queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=self._wait_s()
            )
            for message in received.get("Messages", ()):
                frame = json.loads(message["Body"])
                if self._owns(frame["video_id"]):
                    self._process(frame)
                    self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
            self._release_idle()

    def _wait_s(self) -> int:
        """A long poll, and no longer than until the next release is due."""
        return max(1, min(20, int(self._idle_s)))

    def _owns(self, video: str) -> bool:
        if video not in self._locks:
            lock = VideoLock(self._redis, video, self._ttl_s, self._renew_s)
            if not lock.acquire():
                return False
            self._locks[video] = lock
        return True

    def _process(self, frame: dict[str, Any]) -> None:
        """Store state and result, as the handler on Holdfast has them stored."""
        video, number = frame["video_id"], frame["frame_id"]
        with self._redis.pipeline() as together:
            together.set(f"state:{video}", number)
            together.rpush(RESULTS, json.dumps([video, number, frame["timestamp"], time.time()]))
            together.execute()
        self._active_at[video] = time.monotonic()

    def _release_idle(self) -> None:
        now = time.monotonic()
        for video in [v for v in self._locks if now - self._active_at[v] > self._idle_s]:
            self._locks.pop(video).release()


def main() -> None:
    """Work until terminated."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    worker = Worker(os.environ)
    worker.warm_up()
    print("ready", flush=True)
    worker.run()


if __name__ == "__main__":
    main()
