"""What the SQS consumers of boto3 and aiobotocore have in common: their messages and their report.

Each receives ten, decodes each frame, does nothing with it, and deletes the ten in one call; in as many
threads or tasks, which share one client. Nothing is ordered, nothing is stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.apps import Camera

SETTINGS = (
    "receive ten, decode, delete ten in one call, long poll; unordered, nothing stored; one process, its best"
    " number of threads or tasks"
)
DECODER = msgspec.json.Decoder(Camera)


@dataclass
class Consumed:
    """How far a consumer has come, of the ``wanted`` frames."""

    wanted: int
    count: int = 0
    cpu_s: float = field(default_factory=time.process_time)

    @property
    def done(self) -> bool:
        """Nothing is left to receive."""
        return self.count >= self.wanted

    def process(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
        """Process a batch; returns the entries that delete it."""
        for message in messages:
            DECODER.decode(message["Body"])
        return [
            {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)
        ]

    def add(self, count: int) -> None:
        """So many more are deleted. When all are: say when that was, and what it took."""
        self.count += count
        if self.done:
            self._tell()

    def _tell(self) -> None:
        numbers = {"end_at": time.monotonic(), "cpu_s": time.process_time() - self.cpu_s}
        print(json.dumps(numbers), flush=True)


def arguments() -> tuple[str, int, int]:
    """The queue's URL, the frames to consume, and the threads or tasks."""
    return sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
