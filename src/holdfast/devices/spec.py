"""The declaration of an outbox: its devices, retries and limits."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Required, TypedDict

import msgspec
from msgspec import Meta

from holdfast.devices.rules.device_queue import Patience
from holdfast.devices.rules.dialect import Dialect, JsonDialect
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.rules.topics import Topics
from holdfast.errors import ConfigError
from holdfast.extend.tools import Count, Positive, Seconds, check_setting, check_settings

NAME_MAX = 32
PAYLOAD_MAX = 268_435_455
"""MQTT's own limit, in bytes."""
LABEL = "outbox:"
"""Prefix of outboxes' names at coordinators and nodes, which streams don't have."""
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,76}")


class CommandOptions(TypedDict, total=False):
    """The options of a command. See ``Outbox.add``."""

    dedupe_key: str | None
    supersede_key: str | None
    priority: int
    delay_s: float
    expires_in_s: float | None
    trace_id: str | None
    traceparent: str | None
    rollout: int | None


class CommandFields(CommandOptions):
    """A command for ``Outbox.add_many`` or a page: the arguments of ``Outbox.add`` but ``db``."""

    device: Required[str]
    command: Required[Any]


class Page(msgspec.Struct, frozen=True):
    """A page of commands from an API. Each has a ``dedupe_key`` if the API may return it again. ``more``: the
    next page is fetched at once."""

    commands: Sequence[CommandFields]
    cursor: str
    more: bool = True


NextPage = Callable[[str | None], Awaitable[Page]]
"""Fetches a page, given the cursor of the last page, or None at the beginning."""


OnRefused = Callable[[CommandFields, Exception], None]
"""Called with an invalid command of a page, and its error."""


class Source(msgspec.Struct, frozen=True):
    """An API from which commands are fetched whenever fewer than ``low`` wait, until ``high`` do. When it has
    no further commands, it is asked again after ``pause_s``."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    next_page: NextPage
    low: Count
    high: Count
    pause_s: Seconds
    refused: OnRefused | None = None

    def __post_init__(self) -> None:
        check_settings(f"source {self.name!r}", self)
        if self.low > self.high:
            raise ConfigError(
                f"source {self.name!r}: low is {self.low} and high {self.high}; make it 0 < low <= high"
            )


class OutboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared outbox. Made by ``App.outbox``; see there for the meaning of each setting."""

    name: str
    topics: Topics = Topics()
    dialect: Dialect = JsonDialect()
    patience: Patience = Patience()
    presence: PresenceRules = PresenceRules()
    shards: Annotated[int, Meta(ge=1, le=10_000)] = 1
    lanes: Annotated[int, Meta(ge=1, le=1_000)] = 1
    expires_in_s: Seconds | None = 7 * 86_400.0
    max_body: Annotated[int, Meta(ge=1, le=PAYLOAD_MAX)] = 131_072
    in_flight_max: Count = 10_000
    rate: Positive | None = None
    group: Callable[[str], str] | None = None
    group_rates: Mapping[str, Positive] = {}
    keep_s: Seconds = 7 * 86_400.0
    archive: bool = False
    briefs: str = ""

    def __post_init__(self) -> None:
        check_setting("outbox", "name", self.name, str)
        if not (self.name.replace("-", "_").isidentifier() and len(self.name) <= NAME_MAX):
            raise ConfigError(
                f"outbox name {self.name!r:.60} must be letters, digits, '_' and '-', at most {NAME_MAX},"
                " and begin with a letter"
            )
        check_settings(f"outbox {self.name!r}", self)
        patience = self.patience
        if patience.retry_max_s < patience.retry_s:
            raise ConfigError(
                f"outbox {self.name!r}: retry_max_s is {patience.retry_max_s}; make it retry_s"
                f" ({patience.retry_s}) or more"
            )
        if self.briefs and not QUEUE_NAME.fullmatch(self.briefs):
            raise ConfigError(
                f"outbox {self.name!r}: briefs is {self.briefs!r:.100}; give it the name of a queue: letters,"
                " digits, '-' and '_', 76 at most"
            )
        if self.group_rates and self.group is None:
            raise ConfigError(
                f"outbox {self.name!r}: group_rates needs group=, a function that returns a device's group"
            )

    @property
    def label(self) -> str:
        """The name of the outbox at coordinators and nodes."""
        return f"{LABEL}{self.name}"

    def key(self, shard: int) -> str:
        """Return the key under which a shard is claimed."""
        return f"{self.label}/{shard}"

    def identity(self, shard: int) -> str:
        """Return a shard's client id at the broker, by which one owner cuts off the one before."""
        return f"holdfast-{self.name}-{shard}"
