"""The declaration of a stream: where its messages carry key and seq, and how it handles them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.common.effects import EffectLimits
from holdfast.common.message import NO_RUN, SeqKind
from holdfast.common.retry import Backoff
from holdfast.common.settings import Count, Milliseconds, Seconds, check_settings
from holdfast.errors import ConfigError
from holdfast.rules.streams.timers import TIMERS
from holdfast.streams.handler import StreamHandler

QUEUE_NUMBER = "queue"
"""As ``seq`` of a stream, this means the queue's own number of the message."""

MAX_JUMP = 1_000_000
"""The default of ``max_jump`` in a dense stream."""

BACKOFF = Backoff(0.2, 10.0)
"""The default of ``backoff``."""

EFFECTS = EffectLimits()
"""The defaults of the limits of pending effects."""


def names_of(given: Any) -> tuple[Any, ...]:
    """Return a setting that is one name, several or none as a tuple."""
    return given if isinstance(given, tuple) else () if given is None else (given,)


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """A declared stream. Made by ``App.stream``, which describes each setting."""

    name: str
    handler: type[StreamHandler[Any]]
    message: Any = dict
    key: str | tuple[str, ...] = "key"
    seq: str | tuple[str, ...] | None = None
    run: str | tuple[str | None, ...] | None = None
    seq_prefix: str = ""
    body_field: str = "url"
    seq_kind: SeqKind = "absent"
    first_seq: Annotated[int, Meta(ge=0, le=2**63 - 1)] | Literal["first", "lowest"] = "lowest"
    start_timeout_s: Seconds | None = None
    gap_timeout_s: Seconds = 45.0
    on_gap: Literal["skip", "hold", "dead-letter"] = "skip"
    max_jump: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    restart_after_s: Seconds | None = None
    on_late: Literal["dead-letter", "discard"] = "dead-letter"
    on_failure: Literal["skip", "park"] = "skip"
    prefer_latency: bool = False
    max_tries: Count = 3
    backoff: Backoff = BACKOFF
    timeout_s: Seconds = 30.0
    max_starts: Count = 5
    inbox_limit: Count = 256
    identity_window: Count = 1024
    checkpoint_every: Count = 1
    checkpoint_after_ms: Milliseconds = 20.0
    idle_timeout_s: Seconds | None = None
    max_pending_effects: Annotated[int, Meta(ge=1, le=100_000)] = EFFECTS.pending
    max_pending_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = EFFECTS.pending_bytes
    effect_timeout_s: Annotated[float, Meta(gt=0, le=30 * 86_400.0)] = EFFECTS.timeout_s
    max_timers: Annotated[int, Meta(ge=1, le=1000)] = TIMERS
    models: tuple[str, ...] = ()
    results_to: str = ""
    archive: str = ""

    def __post_init__(self) -> None:
        check_settings(f"stream {self.name!r}", self)
        if not self.name or "/" in self.name or not self.name.isprintable():
            raise ConfigError(f"stream name {self.name!r} must be a printable text without '/'")
        if self.seq_kind != "absent" and self.seq is None:
            raise ConfigError(
                f"stream {self.name!r}: seq_kind {self.seq_kind!r} needs seq=, the field that holds it"
            )
        if isinstance(self.first_seq, int) and self.seq_kind != "dense":
            raise ConfigError(
                f"stream {self.name!r}: first_seq = {self.first_seq} needs dense seqs; leave it out for"
                f" seq_kind {self.seq_kind!r}"
            )
        if self.start_timeout_s is not None and not self.start_timeout_s <= self.gap_timeout_s:
            raise ConfigError(
                f"stream {self.name!r}: start_timeout_s is {self.start_timeout_s} and gap_timeout_s is"
                f" {self.gap_timeout_s}; set start_timeout_s to at most gap_timeout_s, or leave it out"
            )
        for setting in ("max_jump", "restart_after_s"):
            if getattr(self, setting) is not None and (self.seq_kind == "absent" or self.seq == QUEUE_NUMBER):
                raise ConfigError(
                    f"stream {self.name!r}: {setting} needs numbers of the producer's: declare seq= as the"
                    " field that holds them, or leave it out"
                )
        if self.restart_after_s is not None and not self.run_optional:
            raise ConfigError(
                f"stream {self.name!r}: messages have a run ({self.run!r}), which shows when numbers start"
                " again; leave restart_after_s out, or end run= with None where some have none"
            )
        if self.restart_after_s is not None and self.restart_after_s < self.gap_timeout_s:
            raise ConfigError(
                f"stream {self.name!r}: restart_after_s is {self.restart_after_s} and gap_timeout_s is"
                f" {self.gap_timeout_s}: set restart_after_s to at least gap_timeout_s"
            )
        if self.archive and ":" not in self.archive:
            raise ConfigError(
                f"stream {self.name!r}: archive is {self.archive!r}; it is the URL of an object store, such"
                " as 's3://bucket/prefix' or 'file:./archive'"
            )
        parts = {"key": names_of(self.key), "seq": names_of(self.seq), "run": self.run_names}
        for setting, names in parts.items():
            given = getattr(self, setting)
            if given == () or not all(names):
                raise ConfigError(
                    f"stream {self.name!r}: {setting} is {given!r}; it is the name of a field, or a tuple of"
                    " names of which the first that a message has counts"
                )

    @property
    def run_names(self) -> tuple[str, ...]:
        """The fields that may hold the run."""
        names = names_of(self.run)
        return names[:-1] if self.run_optional else names

    @property
    def run_optional(self) -> bool:
        """True if messages without a run belong to run 0."""
        return self.run is None or names_of(self.run)[-1:] == (None,)

    @property
    def no_run(self) -> int:
        """The run of a message without one."""
        return 0 if self.restart_after_s is None else NO_RUN

    @property
    def acts(self) -> bool:
        """True if it is declared that the stream sends effects or sets timers. It may do so anyway."""
        return bool(self.results_to) or self.wakes

    @property
    def wakes(self) -> bool:
        """True if its handler has a ``wake`` that timers can call."""
        return self.handler.wake is not StreamHandler.wake

    def full_key(self, key: str) -> str:
        """Return the full key, ``stream/key``, which coordinator and state store use."""
        return f"{self.name}/{key}"
