"""The list prices of calls to SQS and S3 in us-east-1, in dollars for a million.

SQS counts each 64 KiB of a call as one, so large calls cost more.
"""

from __future__ import annotations

SQS, SQS_FIFO = 0.40, 0.50

WRITES = (
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateMultipartUpload",
    "ListObjectsV2",
    "PutObject",
    "UploadPart",
)
FREE = ("AbortMultipartUpload", "DeleteObject", "DeleteObjects")

S3: dict[tuple[str, str], float] = {
    ("s3", ""): 0.40,
    **{("s3", operation): 5.0 for operation in WRITES},
    **{("s3", operation): 0.0 for operation in FREE},
}


def sqs(queue: str) -> dict[tuple[str, str], float]:
    """Return the price of all calls to queues that are named by this pattern."""
    return {("sqs", ""): SQS_FIFO if queue.endswith(".fifo") else SQS}
