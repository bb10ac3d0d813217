"""Contradictions between settings, and between an app's streams and the settings."""

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
        wrong += [f"stream {stream.name!r}: {text}" for text in _stream_contradictions(config, stream)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _clash(why: str, fix: str, **settings: object) -> str:
    return f"{' and '.join(f'{name} is {value}' for name, value in settings.items())}: {why}; {fix}"


def _contradictions(config: Config) -> Iterable[str]:
    def clash(why: str, fix: str, *settings: str) -> str:
        return _clash(why, fix, **{name: getattr(config, name) for name in settings})

    if not config.renew_s < config.ttl_s / 2:
        why = "one lost renewal would end the membership"
        yield clash(
            why, f"set renew_s below {config.ttl_s / 2} (ttl_s / 2) or raise ttl_s", "renew_s", "ttl_s"
        )
    waits_too_long = not config.renew_s + config.lock_timeout_s < config.ttl_s
    if waits_too_long and service_of(config.coordinator_url).waits_for_locks:
        why = "one wait for a lock would end the membership"
        fix = "lower lock_timeout_s or raise ttl_s until renew_s + lock_timeout_s is below ttl_s"
        yield clash(why, fix, "lock_timeout_s", "renew_s", "ttl_s")
    if config.peer_secret_also and not config.peer_secret:
        yield (
            "peer_secret_also is set and peer_secret is not: a second secret needs a first one; set"
            " peer_secret to the secret that this node sends"
        )
    if config.peer_tls_name is not None and not _HOST_NAME.fullmatch(config.peer_tls_name):
        yield (
            f"peer_tls_name is {config.peer_tls_name!r}: it isn't a host name; write one such as"
            " nodes.holdfast.internal"
        )
    if config.peer_tls_name is not None and config.peer_tls_ca is None:
        yield (
            "peer_tls_name is set and peer_tls_ca is not: a name is checked only in certificates; set"
            " peer_tls_cert, peer_tls_key and peer_tls_ca too"
        )
    tls = {name: getattr(config, name) for name in ("peer_tls_cert", "peer_tls_key", "peer_tls_ca")}
    if any(tls.values()) and not all(tls.values()):
        missing = " and ".join(name for name, file in tls.items() if not file)
        yield f"{missing} is not set: TLS between nodes needs all three; set {missing} too"
    if config.slot_memory_mb and config.model_memory_mb > config.slot_memory_mb:
        why = "a slot would be replaced before it unloads a model"
        fix = "set model_memory_mb below slot_memory_mb, with room for everything else in a slot"
        yield clash(why, fix, "model_memory_mb", "slot_memory_mb")
    if config.custody_limit > config.max_held:
        why = "pending forwards are held too"
        yield clash(why, "lower custody_limit or raise max_held", "custody_limit", "max_held")
    if config.max_message_bytes + FORWARD_OVERHEAD_BYTES > config.max_peer_bytes:
        why = "a message of that size could not be forwarded"
        fix = f"raise max_peer_bytes to {config.max_message_bytes + FORWARD_OVERHEAD_BYTES} or more"
        yield clash(why, fix, "max_message_bytes", "max_peer_bytes")
    if config.custody_check_s >= config.visibility_s:
        why = "a message whose owner is lost would show again before it is offered to the next owner"
        fix = "set custody_check_s below visibility_s"
        yield clash(why, fix, "custody_check_s", "visibility_s")
    if config.move_timeout_s > config.drain_timeout_s:
        why = "a node that stops would leave before its first move is given up"
        fix = "lower move_timeout_s or raise drain_timeout_s"
        yield clash(why, fix, "move_timeout_s", "drain_timeout_s")
    outlasts_the_stop = config.receive_wait_s >= config.drain_timeout_s
    if outlasts_the_stop and not service_of(config.queue_url).cuts_receives:
        why = (
            "this queue doesn't cut off a receive, so a node that stops could leave before its last one ends"
        )
        fix = "lower receive_wait_s or raise drain_timeout_s"
        yield clash(why, fix, "receive_wait_s", "drain_timeout_s")


def _stream_contradictions(config: Config, stream: StreamLimits) -> Iterable[str]:
    visibility_s = config.visibility_s
    waits_for_gaps = stream.seq_kind != "absent" and not stream.prefer_latency
    if waits_for_gaps and stream.gap_timeout_s <= visibility_s:
        yield _clash(
            "a message that a dead node hides would be skipped before it shows again",
            f"set the stream's gap_timeout_s above {visibility_s}, lower visibility_s, or declare the stream"
            " with prefer_latency=True",
            gap_timeout_s=stream.gap_timeout_s,
            visibility_s=visibility_s,
        )
    if stream.restart_after_s is not None and stream.restart_after_s <= visibility_s:
        yield _clash(
            "a message that shows again would be taken for the start of a new run",
            f"set the stream's restart_after_s well above {visibility_s}",
            restart_after_s=stream.restart_after_s,
            visibility_s=visibility_s,
        )
    idle_timeout_s = stream.idle_timeout_s or config.idle_timeout_s
    if idle_timeout_s >= config.idle_keep_s:
        yield _clash(
            "the state of a stream could be deleted while a node owns it",
            "lower idle_timeout_s or raise idle_keep_s",
            idle_timeout_s=idle_timeout_s,
            idle_keep_s=config.idle_keep_s,
        )
    if stream.inbox_limit > config.max_held:
        yield _clash(
            "one stream could fill the node",
            "lower the stream's inbox_limit or raise max_held",
            inbox_limit=stream.inbox_limit,
            max_held=config.max_held,
        )
