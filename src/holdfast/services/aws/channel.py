"""One SQS queue, by name or URL. The queue of messages and the queue of dead letters share this code."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.services.aws.client import ANSWER_S
from holdfast.services.aws.message import Entry, batches
from holdfast.services.aws.sqs import ReceivedMessages, Sqs, SqsMessage, not_done

HOLD_MAX_S = 12 * 3600
CHANGE_S = 5.0
"""Seconds for one try to extend or delete. It is short, because deliveries lapse meanwhile, and a second try
is harmless."""

GROUP = re.compile(r"[!-~]{1,128}")
OWN = "holdfast."
"""The prefix of groups that aren't keys."""

FIFO = ".fifo"
SYSTEM_ATTRIBUTES = (
    "ApproximateReceiveCount",
    "SequenceNumber",
    "MessageGroupId",
    "SentTimestamp",
    "AWSTraceHeader",
)


class RedrivePolicy(msgspec.Struct, rename="camel"):
    """The queue to which SQS itself moves messages that it delivered too often."""

    dead_letter_target_arn: str = ""
    max_receive_count: int = 0

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> Self:
        """Read the policy from a queue's attributes; an empty one without it."""
        policy = attributes.get("RedrivePolicy", "{}")
        return msgspec.json.decode(policy, type=cls, strict=False)  # in some the count is text

    def target(self, queue: str) -> tuple[str, str]:
        """Name and account (``""``: the same) of the queue for the dead letters of the queue so named."""
        if self.dead_letter_target_arn:
            *_, account, name = self.dead_letter_target_arn.split(":")
            return name, account
        return dead_letter_name(queue), ""


def dead_letter_name(queue: str) -> str:
    """Return the default name of a queue's dead-letter queue."""
    return f"{queue.removesuffix(FIFO)}-dlq{FIFO if queue.endswith(FIFO) else ''}"


class Channel:
    """One SQS queue. Times are rounded up to the whole seconds that SQS counts in."""

    def __init__(self, sqs: Sqs, queue: str, clock: Clock) -> None:
        self.sqs = sqs
        self.name = queue.rpartition("/")[2]
        self.fifo = queue.endswith(FIFO)
        self._url = queue if "/" in queue else ""
        self._clock = clock

    async def url(self) -> str:
        """Return the queue's URL. Raises NoSuchQueue."""
        if not self._url:
            self._url = await self.sqs.queue_url(self.name)
        return self._url

    async def send(
        self, entries: Sequence[Entry], groups: Sequence[str], dedupe_ids: Sequence[str] = ()
    ) -> list[str]:
        """Send messages, each in its group (``""``: one of its own), and return their ids. ``dedupe_ids`` are
        their deduplication ids (``""``: a new one).

        On FIFO queues a repeated call sends nothing twice. Raises TooLarge before anything is sent."""
        if self.fifo:
            call = self._clock.new_id()
            for index, (entry, group) in enumerate(zip(entries, groups, strict=True)):
                given = dedupe_ids[index] if dedupe_ids else ""
                entry["MessageDeduplicationId"] = given or f"{call}-{index}"
                entry["MessageGroupId"] = _group(group) if group else f"{OWN}{call}-{index}"
        ids: list[str] = []
        for batch in batches(entries):
            try:
                done, failed = await self.sqs.batch("SendMessageBatch", await self.url(), batch)
            except Unavailable as error:
                if not ids:
                    raise
                raise OutcomeUnknown(f"{len(ids)} of {len(entries)} were sent, then: {error}") from error
            if failed:
                raise not_done("SendMessageBatch", self.name, failed, len(batch))
            ids += [done[index].message_id for index in range(len(batch))]
        return ids

    async def receive(self, limit: int, wait_s: float, visibility_s: float) -> list[SqsMessage]:
        """Return up to ``limit`` messages, waiting up to ``wait_s``, which is 20 seconds at most."""
        wait = math.ceil(wait_s)
        request = {
            "QueueUrl": await self.url(),
            "MaxNumberOfMessages": limit,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": _visibility(visibility_s),
            "MessageSystemAttributeNames": SYSTEM_ATTRIBUTES,
            "MessageAttributeNames": ["All"],
        }
        if self.fifo:  # a repetition of ours is answered with the same messages
            request["ReceiveRequestAttemptId"] = self._clock.new_id()
        reply = await self.sqs.call("ReceiveMessage", self.name, request, ReceivedMessages, wait + ANSWER_S)
        return reply.messages or []

    async def hide(self, receipts: Sequence[str], seconds: float) -> list[str]:
        """Set the seconds after which messages become visible again; returns the stale receipts."""
        timeout = _visibility(seconds)
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": timeout} for receipt in receipts]
        return await self._change("ChangeMessageVisibilityBatch", receipts, entries)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete messages; returns the receipts that are stale, where SQS says so."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return await self._change("DeleteMessageBatch", receipts, entries)

    async def attributes(self, *names: str) -> dict[str, str]:
        """Return the queue's attributes of these names, or all."""
        return await self.sqs.attributes(await self.url(), *names)

    async def _change(self, operation: str, receipts: Sequence[str], entries: list[Entry]) -> list[str]:
        if not entries:
            return []
        _, failed = await self.sqs.batch(operation, await self.url(), entries, CHANGE_S)
        stale = [receipts[index] for index, item in failed.items() if item.is_stale]
        if len(stale) < len(failed):
            others = {index: item for index, item in failed.items() if not item.is_stale}
            raise not_done(operation, self.name, others, len(entries))
        return stale


def _group(key: str) -> str:
    """Return the FIFO group of a key: itself, where SQS allows it."""
    return key if GROUP.fullmatch(key) else f"{OWN}{hashlib.sha256(key.encode()).hexdigest()}"


def _visibility(seconds: float) -> int:
    return min(HOLD_MAX_S, max(0, math.ceil(seconds)))
