"""Makes and checks queues on SQS: a queue, its dead-letter queue, and the policy between them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.ports.queue_setup import Made, QueueFinding
from holdfast.services.aws.channel import FIFO, RedrivePolicy, dead_letter_name
from holdfast.services.aws.client import DENIED, AwsRefused
from holdfast.services.aws.message import MESSAGE_BYTES
from holdfast.services.aws.sqs import EmptyAnswer, NoSuchQueue, QueueUrl, Sqs

MAX_RECEIVES = 100
"""Receives after which the queue itself moves a message to the dead letters. Owners count tries, so this high
number is only for messages that kill every receiver."""

MAX_RECEIVES_LOW = 10
RETENTION_S = 14 * 24 * 3600


async def create_queues(
    sqs: Sqs,
    queue: str,
    *,
    visibility_s: float,
    max_receives: int = MAX_RECEIVES,
    tags: Mapping[str, str] | None = None,
    encrypt: bool = False,
    kms_key: str = "",
) -> list[Made]:
    """Make a queue and its dead-letter queue, or correct their attributes; nothing else is changed.

    Args:
        queue: its name; one that ends in ``.fifo`` makes both FIFO.
        visibility_s: the visibility of receives that set none (Holdfast's set it).
        max_receives: receives before the queue itself moves a message to the dead letters.
        tags: added to both.
        encrypt: ask for encryption at rest with keys of SQS, which AWS gives new queues by itself;
            ``kms_key`` (an id, an alias or an ARN) asks for that key instead.

    Returns what was done, the dead-letter queue first. Raises ConfigError, which names the IAM action if one
    is missing, Unavailable, OutcomeUnknown.
    """
    maker = _QueueMaker(sqs, queue.endswith(FIFO), dict(tags or {}), encrypt, kms_key)
    dead = dead_letter_name(queue)
    with contextlib.suppress(NoSuchQueue):
        there = await sqs.attributes(await sqs.queue_url(queue), "RedrivePolicy")
        dead, _ = RedrivePolicy.of(there).target(queue)
    beside = await maker.make(dead, {"MessageRetentionPeriod": str(RETENTION_S)})
    arn = (await sqs.attributes(beside.url, "QueueArn"))["QueueArn"]
    policy = msgspec.json.encode(RedrivePolicy(arn, max_receives)).decode()
    hidden_s = str(math.ceil(visibility_s))
    return [beside, await maker.make(queue, {"VisibilityTimeout": hidden_s, "RedrivePolicy": policy})]


async def check_queue(sqs: Sqs, queue: str, *, visibility_s: float) -> list[QueueFinding]:
    """Return findings about a queue, given by name or URL: whether it and its dead-letter queue exist,
    whether their attributes fit, and what the credentials don't allow. A fault is a finding and never raises
    an error.

    It receives one message, if there is one, and shows it again at once; it sends and deletes none."""
    checker = _Checker(sqs)
    await checker.check(queue, visibility_s)
    return checker.findings


class _QueueMaker:
    """Makes queues with the same kind, tags and encryption."""

    def __init__(self, sqs: Sqs, fifo: bool, tags: dict[str, str], encrypt: bool, kms_key: str) -> None:
        self._sqs = sqs
        self._fifo = fifo
        self._tags = tags
        self._encrypt = encrypt
        self._kms_key = kms_key

    async def make(self, name: str, wanted: dict[str, str]) -> Made:
        wanted = {"MaximumMessageSize": str(MESSAGE_BYTES)} | wanted
        try:
            url = await self._sqs.queue_url(name)
        except NoSuchQueue:
            return await self._create(name, wanted | self._encryption({}))
        there = await self._sqs.attributes(url)
        wanted |= self._encryption(there)
        changes = {key: value for key, value in wanted.items() if not _same(key, there.get(key), value)}
        if changes:
            await self._sqs.call(
                "SetQueueAttributes", name, {"QueueUrl": url, "Attributes": changes}, EmptyAnswer
            )
        changed = [*changes, *await self._tag(name, url)]
        return Made(name, url, "changed" if changed else "already right", tuple(changed))

    async def _create(self, name: str, wanted: dict[str, str]) -> Made:
        if self._fifo:
            wanted = wanted | {"FifoQueue": "true"}
        request: dict[str, Any] = {"QueueName": name, "Attributes": wanted}
        if self._tags:
            request["tags"] = self._tags
        made = await self._sqs.call("CreateQueue", name, request, QueueUrl)
        return Made(name, made.queue_url, "created")

    async def _tag(self, name: str, url: str) -> list[str]:
        if not self._tags:
            return []
        reply = await self._sqs.call("ListQueueTags", name, {"QueueUrl": url}, Tags)
        lacking = {key: value for key, value in self._tags.items() if (reply.tags or {}).get(key) != value}
        if lacking:
            await self._sqs.call("TagQueue", name, {"QueueUrl": url, "Tags": lacking}, EmptyAnswer)
        return [f"tag {key}" for key in lacking]

    def _encryption(self, there: Mapping[str, str]) -> dict[str, str]:
        """Return the attributes of encryption to set. A queue that has its own key keeps it."""
        if self._kms_key:
            return {"KmsMasterKeyId": self._kms_key}
        if self._encrypt and not there.get("KmsMasterKeyId"):
            return {"SqsManagedSseEnabled": "true"}
        return {}


class _Checker:
    """Collects findings about one queue and its dead-letter queue."""

    def __init__(self, sqs: Sqs) -> None:
        self._sqs = sqs
        self.findings: list[QueueFinding] = []

    async def check(self, queue: str, visibility_s: float) -> None:
        url = await self._find(queue, what="the queue")
        if not url:
            return
        name = url.rpartition("/")[2]
        there = await self._attributes(url)
        policy = RedrivePolicy.of(there or {})
        if there is not None:
            self._judge(name, there, policy, visibility_s)
        await self._probe(url)
        dead = await self._find(*policy.target(name), what="its dead-letter queue")
        if dead:
            if (there := await self._attributes(dead)) is not None:
                self._judge_dead(dead.rpartition("/")[2], there)
            await self._probe(dead)

    async def _find(self, queue: str, account: str = "", *, what: str) -> str:
        try:
            url = queue if "/" in queue else await self._sqs.queue_url(queue, account)
        except HoldfastError as error:
            self._note("error", str(error))
            return ""
        self._note("ok", f"{what} is {url}")
        return url

    async def _attributes(self, url: str) -> dict[str, str] | None:
        try:
            return await self._sqs.attributes(url)
        except HoldfastError as error:
            self._note("error", str(error))
            return None

    def _judge(self, name: str, there: Mapping[str, str], policy: RedrivePolicy, visibility_s: float) -> None:
        receives, hidden_s = int(policy.max_receive_count), int(there.get("VisibilityTimeout", 0))
        if not policy.dead_letter_target_arn:
            self._warn(f"{name} has no redrive policy: a message that kills its receivers returns for ever")
        elif receives < MAX_RECEIVES_LOW:
            self._warn(
                f"{name} moves messages to its dead letters after {receives} receives (maxReceiveCount): a"
                " receive is not a try, so healthy ones will be among them"
            )
        if hidden_s < visibility_s:
            self._warn(
                f"{name} hides what is received for {hidden_s} s, not {visibility_s:g}, from a receiver that"
                " doesn't say for how long"
            )
        if (size := int(there.get("MaximumMessageSize", MESSAGE_BYTES))) < MESSAGE_BYTES:
            self._warn(f"{name} takes no messages over {size} bytes (MaximumMessageSize)")

    def _judge_dead(self, name: str, there: Mapping[str, str]) -> None:
        kept_s = int(there.get("MessageRetentionPeriod", RETENTION_S))
        if kept_s < RETENTION_S:
            self._warn(f"{name} keeps dead letters for {kept_s / 86400:.3g} days; SQS would for 14")

    async def _probe(self, url: str) -> None:
        """Make each call of a node in a way that has no effect, and note the calls that aren't allowed."""
        name = url.rpartition("/")[2]
        fifo = {"MessageGroupId": "-", "MessageDeduplicationId": "-"} if url.endswith(FIFO) else {}
        shown = {"MaxNumberOfMessages": 1, "VisibilityTimeout": 0, "WaitTimeSeconds": 0}
        junk = {"Id": "0", "ReceiptHandle": "-", "VisibilityTimeout": 0}
        invalid = {"Id": "0", "MessageBody": "\0"} | fifo
        asked: list[tuple[str, dict[str, Any]]] = [
            ("ReceiveMessage", shown),
            ("ChangeMessageVisibilityBatch", {"Entries": [junk]}),
            ("DeleteMessageBatch", {"Entries": [{"Id": "0", "ReceiptHandle": "-"}]}),
            ("SendMessageBatch", {"Entries": [invalid, invalid]}),  # not distinct: refused as a whole
        ]
        for operation, request in asked:
            try:
                await self._sqs.call(operation, name, {"QueueUrl": url} | request, EmptyAnswer)
            except AwsRefused as error:
                if DENIED.search(error.code):
                    self._note("error", str(error))
            except HoldfastError as error:
                self._note("error", str(error))
                return

    def _warn(self, text: str) -> None:
        self._note("warning", text, "run 'holdfast queues create'")

    def _note(self, level: Literal["ok", "warning", "error"], text: str, fix: str = "") -> None:
        self.findings.append(QueueFinding(level, text, fix))


class Tags(msgspec.Struct, rename="pascal"):
    """A queue's tags."""

    tags: dict[str, str] | None = None


def _same(name: str, there: str | None, wanted: str) -> bool:
    if name == "RedrivePolicy" and there:
        return RedrivePolicy.of({name: there}) == RedrivePolicy.of({name: wanted})
    return there == wanted
