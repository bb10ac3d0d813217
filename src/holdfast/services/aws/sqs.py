"""The API of SQS over a client: JSON both ways, batches whose entries fail one by one, names to URLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.services.aws.client import ANSWER_S, THROTTLED, AwsClient, AwsRefused, short_code

T = TypeVar("T")

MISSING = frozenset({"QueueDoesNotExist", "NonExistentQueue"})

STALE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"})
"""The error codes of SQS for a delivery that has lapsed or can't be held any longer."""

encode = msgspec.json.Encoder().encode


class EmptyAnswer(msgspec.Struct):
    """An answer without content: the call was done."""


class Attribute(msgspec.Struct, rename="pascal"):
    """An attribute of a message; ``binary_value`` is base64."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: str | None = None


class SqsMessage(msgspec.Struct, rename="pascal"):
    """A message as it is received. ``attributes`` are SQS's own."""

    message_id: str
    receipt_handle: str
    body: str = ""
    attributes: dict[str, str] = {}
    message_attributes: dict[str, Attribute] = {}


class ReceivedMessages(msgspec.Struct, rename="pascal"):
    messages: list[SqsMessage] | None = None


class FailedEntry(msgspec.Struct, rename="pascal"):
    """An entry of a batch that failed."""

    id: str
    code: str
    sender_fault: bool = False
    message: str | None = None

    @property
    def is_throttled(self) -> bool:
        return THROTTLED.search(self.code) is not None

    @property
    def is_stale(self) -> bool:
        return short_code(self.code) in STALE

    @property
    def is_final(self) -> bool:
        """Trying again changes nothing."""
        return self.is_stale or (self.sender_fault and not self.is_throttled)


class DoneEntry(msgspec.Struct, rename="pascal"):
    """An entry of a batch that was done."""

    id: str
    message_id: str = ""


class BatchAnswer(msgspec.Struct, rename="pascal"):
    successful: list[DoneEntry] | None = None
    failed: list[FailedEntry] | None = None


class QueueUrl(msgspec.Struct, rename="pascal"):
    queue_url: str


class QueueAttributes(msgspec.Struct, rename="pascal"):
    attributes: dict[str, str] = {}


class Sqs:
    """Calls to SQS. The parameter ``queue`` is a queue's URL."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}

    async def call(
        self,
        operation: str,
        resource: str,
        request: dict[str, Any],
        answer: type[T],
        timeout_s: float = ANSWER_S,
    ) -> T:
        """Make one call. ``resource`` is for errors. Raises as ``AwsClient.request`` does."""
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        reply = await self.client.request(
            operation, resource=resource, headers=headers, body=encode(request), timeout_s=timeout_s
        )
        decoder = self._decoders.get(answer)
        if decoder is None:
            decoder = self._decoders[answer] = msgspec.json.Decoder(answer)
        try:
            return decoder.decode(reply.body or b"{}")  # type: ignore[no-any-return]
        except UNREADABLE as error:
            raise OutcomeUnknown(
                f"sqs:{operation} on {resource}: the answer makes no sense: {error}"
            ) from error

    async def batch(
        self, operation: str, queue: str, entries: Sequence[dict[str, Any]], timeout_s: float = ANSWER_S
    ) -> tuple[dict[int, DoneEntry], dict[int, FailedEntry]]:
        """Make one call for up to ten entries, and another one for entries that failed through no fault of
        their own.

        Returns the result of each entry by its index. Temporary failures are included after the last try.
        Adds ``Id`` to the entries."""
        for index, entry in enumerate(entries):
            entry["Id"] = str(index)
        tries = (await self.client.place()).tries
        done: dict[int, DoneEntry] = {}
        failed: dict[int, FailedEntry] = {}
        remaining = entries
        for tried in range(1, tries + 1):
            request = {"QueueUrl": queue, "Entries": remaining}
            try:
                reply = await self.call(operation, queue, request, BatchAnswer, timeout_s)
            except Unavailable as error:
                if not done:
                    raise
                raise OutcomeUnknown(f"{len(done)} of {len(entries)} were done, then: {error}") from error
            done |= {int(item.id): item for item in reply.successful or ()}
            failed |= {int(item.id): item for item in reply.failed or ()}
            failed = {index: item for index, item in failed.items() if index not in done}
            again = {index: item for index, item in failed.items() if not item.is_final}
            if not again or tried == tries:
                break
            remaining = [entries[index] for index in sorted(again)]
            throttled = any(item.is_throttled for item in again.values())
            await self.client.pause(tried, throttled=throttled)
        return done, failed

    async def queue_url(self, name: str, account: str = "") -> str:
        """Return the URL of the queue ``name``. Raises NoSuchQueue."""
        request = {"QueueName": name} | ({"QueueOwnerAWSAccountId": account} if account else {})
        try:
            return (await self.call("GetQueueUrl", name, request, QueueUrl)).queue_url
        except AwsRefused as error:
            if error.code in MISSING:
                raise await self.no_queue(name) from error
            raise

    async def no_queue(self, queue: str) -> NoSuchQueue:
        """Return the error for a queue, given by name or URL, that isn't there."""
        region = (await self.client.place()).region
        return NoSuchQueue(
            f"there is no SQS queue {queue!r} in {region}: make it with 'holdfast queues create', or check"
            " whether region and account are right"
        )

    async def attributes(self, queue: str, *names: str) -> dict[str, str]:
        """Return attributes of a queue, all of them if none is named."""
        request = {"QueueUrl": queue, "AttributeNames": names or ("All",)}
        return (await self.call("GetQueueAttributes", queue, request, QueueAttributes)).attributes


class NoSuchQueue(ConfigError):
    """The queue doesn't exist."""


def not_done(operation: str, queue: str, failed: dict[int, FailedEntry], of: int) -> Exception:
    """Return the error for entries that failed for good."""
    first = next(iter(failed.values()))
    text = f"sqs:{operation} on {queue}: {len(failed)} of {of} failed ({first.code}: {first.message or ''})"
    if any(item.is_final for item in failed.values()):
        return ConfigError(text)
    return OutcomeUnknown(text)
