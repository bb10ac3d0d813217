"""Makes and checks the queues of SQS: a queue, its dead-letter queue beside it, and the policy between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from holdfast.adapters.aws.channel import FIFO, RedrivePolicy, dead_letter_name
from holdfast.adapters.aws.client import DENIED, Refused
from holdfast.adapters.aws.message import MESSAGE_BYTES
from holdfast.adapters.aws.sqs import NoSuchQueue, Nothing, QueueUrl, Sqs

MAX_RECEIVES = 100
"""So many receives before the queue itself moves a message: tries are counted by its owner, so a high number
only ends what kills whoever receives it."""

MAX_RECEIVES_LOW = 10
RETENTION_S = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Made:
    """What was done to one queue. ``changed`` names the attributes that were not as asked."""

    name: str
    url: str
    action: Literal["created", "already right", "changed"]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a queue, and what to do about it if that is anything."""

    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


async def create_queues(
    sqs: Sqs,
    queue: str,
    *,
    visibility_s: float,
    max_receives: int = MAX_RECEIVES,
    tags: Mapping[str, str] | None = None,
    encrypt: bool = True,
    kms_key: str = "",
) -> list[Made]:
    """Make a queue and its dead-letter queue, or set right what is not as asked; nothing else is touched.

    Args:
        queue: its name; one that ends in ``.fifo`` makes both FIFO.
        visibility_s: for receives that don't say (those of Holdfast do).
        max_receives: receives before the queue itself moves a message to the dead letters.
        tags: added to both.
        encrypt: at rest, with keys of SQS; ``kms_key`` (an id, an alias or an ARN) uses that instead.

    Returns what was done, the dead-letter queue first. Raises ConfigError, which names the IAM action if one
    is missing, Unavailable, OutcomeUnknown.
    """


async def check_queue(sqs: Sqs, queue: str, *, visibility_s: float) -> list[Finding]:
    """What there is to say about a queue, given by name or URL: is it there, is its dead-letter queue, do they
    suit, and may these credentials ask. Never raises for what it finds out."""
