"""What a stream is declared as: where its messages carry key and seq, and how it reacts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.core.message import SeqKind
from holdfast.core.retry import Backoff
from holdfast.errors import ConfigError
from holdfast.streams.handler import StreamHandler

FIRST = ("first", "lowest")
CHOICES = {
    "seq_kind": ("dense", "increasing", "absent"),
    "on_gap": ("skip", "hold", "dead-letter"),
    "on_late": ("dead-letter", "discard"),
    "on_failure": ("skip", "park"),
}


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared stream. Made by ``App.stream``; see there for the meaning of each setting."""

    name: str
    handler: type[StreamHandler[Any]]
    message: Any = dict
    key: str = "key"
    seq: str | None = None
    run: str | None = None
    seq_kind: SeqKind = "absent"
    first_seq: int | Literal["first", "lowest"] = "lowest"
    gap_timeout_s: float = 45.0
    on_gap: Literal["skip", "hold", "dead-letter"] = "skip"
    on_late: Literal["dead-letter", "discard"] = "dead-letter"
    on_failure: Literal["skip", "park"] = "skip"
    prefer_latency: bool = False
    max_tries: int = 3
    backoff: Backoff = Backoff(0.2, 10.0)
    timeout_s: float = 30.0
    max_starts: int = 5
    inbox_limit: int = 256
    identity_window: int = 1024
    checkpoint_every: int = 1
    checkpoint_after_ms: float = 20.0
    idle_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or not self.name.isprintable():
            raise ConfigError(f"stream name {self.name!r} must be a printable text without '/'")
        for setting in ("gap_timeout_s", "timeout_s", "idle_timeout_s", "checkpoint_after_ms"):
            if not getattr(self, setting) > 0:
                raise ConfigError(f"stream {self.name!r}: {setting} must be above 0")
        for setting in ("max_tries", "max_starts", "inbox_limit", "checkpoint_every", "identity_window"):
            if getattr(self, setting) < 1:
                raise ConfigError(f"stream {self.name!r}: {setting} must be at least 1")
        if self.seq_kind != "absent" and self.seq is None:
            raise ConfigError(
                f"stream {self.name!r}: seq_kind {self.seq_kind!r} needs seq=, the field that holds it"
            )
        for setting, choices in CHOICES.items():
            if getattr(self, setting) not in choices:
                given = getattr(self, setting)
                raise ConfigError(
                    f"stream {self.name!r}: {setting} is {given!r}; it is one of {', '.join(choices)}"
                )
        if not isinstance(self.first_seq, int) and self.first_seq not in FIRST:
            raise ConfigError(
                f"stream {self.name!r}: first_seq is {self.first_seq!r}; it is a number, {' or '.join(FIRST)}"
            )
        if isinstance(self.first_seq, int) and self.seq_kind != "dense":
            raise ConfigError(
                f"stream {self.name!r}: first_seq = {self.first_seq} needs dense seqs; leave it out for"
                f" seq_kind {self.seq_kind!r}"
            )
        if isinstance(self.first_seq, int) and self.first_seq < 0:
            raise ConfigError(f"stream {self.name!r}: first_seq must not be negative")

    def full_key(self, key: str) -> str:
        """The key as coordinator and state store know it: ``stream/key``."""
        return f"{self.name}/{key}"
