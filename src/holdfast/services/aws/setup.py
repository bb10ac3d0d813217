"""The setup of the queues of an app's streams: creation, checks, and the rights that they need."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.ports.queue_setup import Made, QueueFinding
from holdfast.services.aws.admin import check_queue, create_queues
from holdfast.services.aws.channel import RedrivePolicy, dead_letter_name
from holdfast.services.aws.client import DENIED, AwsRefused
from holdfast.services.aws.sqs import MISSING, NoSuchQueue, Sqs
from holdfast.services.aws.url import SqsUrl

ANY = "*"
QUEUE_ACTIONS = (
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
    "sqs:SendMessage",
)
ACCOUNT = re.compile(r"/(\d{12})/[^/]+$")


class SqsSetup:
    """The setup of the queues of streams: it makes and checks them, and states the rights that they need."""

    def __init__(self, sqs: Sqs, url: SqsUrl) -> None:
        self._sqs = sqs
        self._url = url

    async def create(
        self, stream: str, *, visibility_s: float, tags: Mapping[str, str], encrypt: bool, kms_key: str
    ) -> list[Made]:
        """Like :func:`create_queues`, for a stream."""
        queue = self._url.queue(stream).rpartition("/")[2]
        return await create_queues(
            self._sqs, queue, visibility_s=visibility_s, tags=tags, encrypt=encrypt, kms_key=kms_key
        )

    async def check(self, stream: str, *, visibility_s: float) -> list[QueueFinding]:
        """Like :func:`check_queue`, for a stream."""
        return await check_queue(self._sqs, self._url.queue(stream), visibility_s=visibility_s)

    async def lacking(self, stream: str) -> str:
        """Return a description of what is missing for a stream's queue; empty if nothing is missing.
        What can't be checked now, or with these credentials, isn't reported. Raises ConfigError if
        the queue itself, the region, or accepted credentials are missing."""
        queue = self._url.queue(stream)
        with _if_permitted():
            name, account = await self._dead_letter_queue(queue)
            try:
                await self._sqs.queue_url(name, account)
            except NoSuchQueue:
                return (
                    f"queue {queue!r} has no dead-letter queue {name!r}: a message that can't be handled is"
                    " repeated until there is one; make it with 'holdfast queues create'"
                )
        return ""

    async def _dead_letter_queue(self, queue: str) -> tuple[str, str]:
        """Name and account of the queue for a queue's dead letters."""
        try:
            url = queue if "/" in queue else await self._sqs.queue_url(queue)
            there = await self._sqs.attributes(url, "RedrivePolicy")
        except AwsRefused as error:
            if error.code in MISSING:
                raise await self._sqs.no_queue(queue) from error
            raise
        return RedrivePolicy.of(there).target(queue.rpartition("/")[2])

    async def identity(self) -> str:
        """Region and source of the credentials, for people. Raises ConfigError, Unavailable."""
        region = (await self._sqs.client.place()).region
        return f"credentials found ({await self._sqs.client.identity()}), region {region}"

    async def statement(self, streams: Iterable[str]) -> dict[str, Any]:
        """Return the IAM statement of what a node must be allowed on the queues of ``streams``."""
        try:
            region = (await self._sqs.client.place()).region
        except ConfigError:
            region = ANY
        arns: list[str] = []
        for stream in streams:
            queue = self._url.queue(stream)
            account = found[1] if (found := ACCOUNT.search(queue)) else ANY
            name = queue.rpartition("/")[2]
            arns += [
                f"arn:{partition(region)}:sqs:{region}:{account}:{each}"
                for each in (name, dead_letter_name(name))
            ]
        return {"Sid": "HoldfastQueues", "Effect": "Allow", "Action": list(QUEUE_ACTIONS), "Resource": arns}


@contextlib.contextmanager
def _if_permitted() -> Iterator[None]:
    """Ignore refusals for lack of rights, and outages."""
    try:
        yield
    except (Unavailable, OutcomeUnknown):
        pass
    except AwsRefused as error:
        if not DENIED.search(error.code):
            raise


def object_statements(bucket: str, prefix: str, region: str = ANY) -> list[dict[str, Any]]:
    """Return the IAM statements of what a node must be allowed on its objects; on every bucket, and only to
    read, if none is named. (Without the right to list a bucket, a missing object looks forbidden.)"""
    arn, below = (
        f"arn:{partition(region)}:s3:::{bucket or ANY}",
        f"{prefix.strip('/')}/" if prefix.strip("/") else "",
    )
    actions = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"] if bucket else ["s3:GetObject"]
    return [
        {"Sid": "HoldfastObjects", "Effect": "Allow", "Action": actions, "Resource": f"{arn}/{below}*"},
        {"Sid": "HoldfastBucket", "Effect": "Allow", "Action": "s3:ListBucket", "Resource": arn},
    ]


def partition(region: str) -> str:
    """Return the part of AWS that a region is in, as ARNs name it."""
    for prefix in ("cn", "us-gov"):
        if region.startswith(f"{prefix}-"):
            return f"aws-{prefix}"
    return "aws"
