"""Checks settings against each other, and the streams of an app against them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from holdfast.common.protocol import FORWARD_OVERHEAD_BYTES
from holdfast.config.settings import Config
from holdfast.errors import ConfigError
from holdfast.registration.services import service_of

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


class StreamLimits(Protocol):
    """The settings of a declared stream that are checked against the config."""

    @property
    def name(self) -> str: ...
    @property
    def gap_timeout_s(self) -> float: ...
    @property
    def prefer_latency(self) -> bool: ...
    @property
    def seq_kind(self) -> str: ...
    @property
    def inbox_limit(self) -> int: ...
    @property
    def idle_timeout_s(self) -> float | None: ...
    @property
    def restart_after_s(self) -> float | None: ...


def check(config: Config, streams: Iterable[StreamLimits] = ()) -> None:
    """Raise ConfigError if settings contradict each other, or ``streams`` contradict them."""
    wrong = [*_contradictions(config)]
    for stream in streams:
        wrong.extend(_stream_contradictions(config, stream))
    if wrong:
        raise ConfigError("\n".join(wrong))


def _contradictions(config: Config) -> Iterable[str]:
    def wrong(what: str, why: str, fix: str) -> str:
        return f"{what}: {why}; {fix}"

    if not config.renew_s < config.ttl_s / 2:
        yield wrong(
            f"renew_s is {config.renew_s} and ttl_s is {config.ttl_s}",
            "one lost renewal would end the membership",
            f"set renew_s below {config.ttl_s / 2} (ttl_s / 2) or raise ttl_s",
        )
    waits_too_long = not config.renew_s + config.lock_timeout_s < config.ttl_s
    if waits_too_long and service_of(config.coordinator_url).waits_for_locks:
        yield wrong(
            f"lock_timeout_s is {config.lock_timeout_s}, renew_s {config.renew_s} and ttl_s {config.ttl_s}",
            "one wait for a lock would end the membership",
            "lower lock_timeout_s or raise ttl_s until renew_s + lock_timeout_s is below ttl_s",
        )
    if config.peer_secret_also and not config.peer_secret:
        yield wrong(
            "peer_secret_also is set and peer_secret is not",
            "a second secret needs a first one",
            "set peer_secret to the one that this node shows to others",
        )
    if config.peer_tls_name is not None and not _HOST_NAME.fullmatch(config.peer_tls_name):
        yield wrong(
            f"peer_tls_name is {config.peer_tls_name!r}",
            "it is no host name",
            "write one such as nodes.holdfast.internal",
        )
    if config.peer_tls_name is not None and config.peer_tls_ca is None:
        yield wrong(
            "peer_tls_name is set and peer_tls_ca is not",
            "a name is checked only in certificates",
            "set peer_tls_cert, peer_tls_key and peer_tls_ca too",
        )
    tls = {name: getattr(config, name) for name in ("peer_tls_cert", "peer_tls_key", "peer_tls_ca")}
    if any(tls.values()) and not all(tls.values()):
        missing = " and ".join(name for name, file in tls.items() if not file)
        yield wrong(f"{missing} is not set", "TLS between nodes needs all three", f"set {missing} too")
    if config.slot_memory_mb and config.model_memory_mb > config.slot_memory_mb:
        yield wrong(
            f"model_memory_mb is {config.model_memory_mb} and slot_memory_mb is {config.slot_memory_mb}",
            "a slot would be replaced before it unloads a model",
            "set model_memory_mb below slot_memory_mb, with room for all else in a slot",
        )
    if config.custody_limit > config.max_held:
        yield wrong(
            f"custody_limit is {config.custody_limit} and max_held is {config.max_held}",
            "messages in custody are held too",
            "lower custody_limit or raise max_held",
        )
    if config.max_message_bytes + FORWARD_OVERHEAD_BYTES > config.max_peer_bytes:
        yield wrong(
            f"max_message_bytes is {config.max_message_bytes} and max_peer_bytes is {config.max_peer_bytes}",
            "a message of that size could not be forwarded",
            f"raise max_peer_bytes to {config.max_message_bytes + FORWARD_OVERHEAD_BYTES} or more",
        )
    if config.custody_check_s >= config.visibility_s:
        yield wrong(
            f"custody_check_s is {config.custody_check_s} and visibility_s is {config.visibility_s}",
            "a message whose owner is lost would show again before it is offered to the next",
            "set custody_check_s below visibility_s",
        )
    if config.move_timeout_s > config.drain_timeout_s:
        yield wrong(
            f"move_timeout_s is {config.move_timeout_s} and drain_timeout_s is {config.drain_timeout_s}",
            "a node that stops would leave before its first move is given up",
            "lower move_timeout_s or raise drain_timeout_s",
        )
    outlasts_the_stop = config.receive_wait_s >= config.drain_timeout_s
    if outlasts_the_stop and not service_of(config.queue_url).cuts_receives:
        yield wrong(
            f"receive_wait_s is {config.receive_wait_s} and drain_timeout_s is {config.drain_timeout_s}",
            "a receive under way on it is not cut off, so a node that stops could leave before its last one",
            "lower receive_wait_s or raise drain_timeout_s",
        )


def _stream_contradictions(config: Config, stream: StreamLimits) -> Iterable[str]:
    waits_for_gaps = stream.seq_kind != "absent" and not stream.prefer_latency
    if waits_for_gaps and stream.gap_timeout_s <= config.visibility_s:
        yield (
            f"stream {stream.name!r}: gap_timeout_s is {stream.gap_timeout_s} and visibility_s is"
            f" {config.visibility_s}: a message that a dead node hides would be skipped before it shows"
            f" again; set the stream's gap_timeout_s above {config.visibility_s}, lower visibility_s, or"
            " declare the stream with prefer_latency=True"
        )
    if stream.restart_after_s is not None and stream.restart_after_s <= config.visibility_s:
        yield (
            f"stream {stream.name!r}: restart_after_s is {stream.restart_after_s} and visibility_s is"
            f" {config.visibility_s}: a message that shows again would be taken for the start of a new run;"
            f" set the stream's restart_after_s well above {config.visibility_s}"
        )
    idle_timeout_s = stream.idle_timeout_s or config.idle_timeout_s
    if idle_timeout_s >= config.idle_keep_s:
        yield (
            f"stream {stream.name!r}: idle_timeout_s is {idle_timeout_s} and idle_keep_s is"
            f" {config.idle_keep_s}: the state of a stream could be dropped while a node owns it; lower"
            " idle_timeout_s or raise idle_keep_s"
        )
    if stream.inbox_limit > config.max_held:
        yield (
            f"stream {stream.name!r}: inbox_limit is {stream.inbox_limit} and max_held is"
            f" {config.max_held}: one stream could fill the node; lower the stream's inbox_limit or raise"
            " max_held"
        )
