"""The settings of a node, frozen after they were read and checked.

A setting is taken from the first of these sources that has it: the command line, the environment
(``HOLDFAST_…``), a ``.env`` file, ``holdfast.toml``, older names (:mod:`holdfast.config.legacy_names`), its
default. A fault is a ConfigError with the setting, its value, its source and what to do.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator

from holdfast.system.files import FileAccess
from holdfast.system.log import Format, Level, Tracebacks
from holdfast.system.machine import Machine

PREFIX = "HOLDFAST_"
EMPTY = "''"
"""The value of a variable that sets the empty text. An empty variable sets nothing."""

SECRET_CHARS_MIN = 16
WEBHOOK_KEY_BYTES_MIN = 16
DAY_S = 86400.0


def _setting(default: Any, description: str, *, shown: str = "", **limits: Any) -> Any:
    """Declare a setting. ``default`` may be a function of the settings above it; ``shown`` is then its text
    in the docs."""
    given: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**given, description=description, json_schema_extra={"shown": shown}, **limits)


SAME_AS = {
    "queue_url": "url",
    "coordinator_url": "url",
    "state_url": "url",
    "tasks_url": "state_url",
    "registry_url": "tasks_url",
}
"""The setting from which another one has its value, unless it is given."""


def _same_as_url(above: dict[str, Any]) -> str:
    return str(above["url"])


def _http_url(url: str, of: str, instead: str, *, without: str) -> str:
    """Return ``url`` if it is empty or an HTTP URL without the characters ``without``. Raises ValueError,
    which names the service ``of`` and the setting ``instead`` of a user in the URL."""
    scheme, mark, rest = url.partition("://")
    known = scheme in ("http", "https") and mark and rest.strip("/")
    if url and (not known or {*without} & {*rest}):
        raise ValueError(f"should be the URL of {of}, without a user ({instead})")
    return url


def usable_cores() -> int:
    return min(8, max(1, Machine().whole_cores - 1))


class Config(BaseModel):
    """The settings of one node. Made by :func:`load`, which reads them from all their sources."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    url: str = _setting(
        "sqlite:///holdfast.db",
        "The service for queue, coordinator and state store, if one serves all three.",
    )
    queue_url: str = _setting(_same_as_url, "The queue.", shown="`url`")
    create_queues: bool = _setting(
        False,
        "Whether a node makes missing queues of its app, where the service doesn't make them at first use.",
    )
    coordinator_url: str = _setting(_same_as_url, "The coordinator: memberships and claims.", shown="`url`")
    foreign_streams: Literal["refuse", "forward"] = _setting(
        "refuse",
        "What a gateway does with requests for a stream that another program owns, which some coordinators"
        " allow: `refuse` them with 503, or `forward` them to the host and port that the program has there.",
    )
    state_url: str = _setting(_same_as_url, "The state store: checkpoints and results.", shown="`url`")
    tasks_url: str = _setting(
        lambda above: above["state_url"], "The task store: the records of all tasks.", shown="`state_url`"
    )
    registry_url: str = _setting(
        lambda above: above["tasks_url"],
        "The registry: limits, and the settings that nodes share with producers.",
        shown="`tasks_url`",
    )
    objects_url: str = _setting("file:./holdfast-objects", "The object store: frames and files.")
    values_url: str = _setting(
        "",
        "An object store that all producers and nodes of an app share. Bodies and results of tasks that have"
        " more than 64 KiB go there, and so do bodies of messages of streams over `max_message_bytes`.",
        shown="none",
    )
    dlq_backup_url: str = _setting(
        "",
        "Where nodes back up the dead letters of their tasks: `file:letters.jsonl`, `sqlite:///letters.db`,"
        " `postgresql://user@host/office`.",
        shown="none",
    )
    dlq_backup_cron: str = _setting(
        "0 * * * *", "When they are backed up: a cron expression of five fields, in UTC."
    )
    outbox_url: str = _setting(
        "",
        "The database of the outboxes, as a URL of SQLAlchemy: the database of your own program.",
        shown="none",
    )
    devices_url: str = _setting(
        "", "Where the devices of outboxes are: `mqtt://HOST` or `mqtts://HOST`.", shown="none"
    )
    target_secrets: dict[str, SecretStr] = _setting(
        {},
        "Secrets of the targets of effects, by the beginning of their URLs: for a webhook"
        ' `{"https://hooks.example.com/" = "whsec_…"}`.',
        shown="none",
    )
    plain_http_targets: Literal["loopback", "any"] = _setting(
        "loopback",
        "Which webhooks may have URLs with `http://`, which others can read: the ones on this host, or"
        " `any`.",
    )
    durability: Literal["full", "normal"] = _setting(
        "full",
        "What a commit to SQLite survives. `full`: a power cut. `normal`: a crash of any process, but a power"
        " cut may take back the last moments, which are then done again; several times faster on slow disks.",
    )
    lock_timeout_s: float = _setting(
        2.0,
        "Seconds for which a process that is stopped inside a transaction keeps others waiting. Then a"
        " waiting process kills it (SQLite), or ends its session (PostgreSQL).",
        gt=0,
    )

    file_access: FileAccess = _setting(
        "owner",
        "Who may use the files and folders that are made: databases, objects, back-ups, reports in folders."
        " `owner`: this user alone. `umask`: the users that the umask of the process allows.",
    )

    node_name: str = _setting(
        socket.gethostname,
        "Name of this node, for people. A node that finds another living node with its name logs a warning.",
        shown="the host's name, and four characters that are different for each node",
        min_length=1,
    )
    host: str = _setting("127.0.0.1", "Address to listen on. One that isn't loopback needs `peer_secret`.")
    port: int = _setting(0, "Port to listen on; 0 takes a free one.", ge=0, le=65535)
    advertise: str | None = _setting(
        None, "`host` or `host:port` that other nodes reach this one at.", shown="the address listened on"
    )
    peer_secret: SecretStr | None = _setting(
        None, f"Secret that all nodes share: {SECRET_CHARS_MIN} printable ASCII characters or more."
    )
    peer_secret_also: SecretStr | None = _setting(
        None,
        "A second secret that callers may show, while all nodes change from one secret to the next.",
    )
    peer_tls_cert: Path | None = _setting(
        None, "This node's certificate with its chain (PEM), for its address: nodes then speak TLS."
    )
    peer_tls_key: Path | None = _setting(None, "The private key (PEM) of `peer_tls_cert`.")
    peer_tls_ca: Path | None = _setting(
        None, "The authority (PEM) that has signed the certificates of all nodes."
    )
    peer_tls_name: str | None = _setting(
        None,
        "The name in the certificates of all nodes, for addresses that change. none: each certificate is for"
        " the address of its node.",
    )
    max_peer_bytes: int = _setting(64 * 1024**2, "Largest request or reply between nodes.", ge=1)
    max_connections: int = _setting(
        10_000,
        "Connections to a node or a gateway at once, of clients and nodes; fewer where the limit of open"
        " files is lower.",
        ge=16,
    )

    ttl_s: float = _setting(5.0, "Seconds after which a membership ends unless it is renewed.", gt=0)
    renew_s: float = _setting(
        lambda above: round(above["ttl_s"] / 3, 3),
        "Seconds between two renewals of a node's membership.",
        shown="`ttl_s` / 3",
        gt=0,
    )
    visibility_s: float = _setting(
        30.0,
        "Seconds for which the queue hides a delivery; extended while work advances.",
        gt=0,
        le=12 * 3600,
    )
    receive_wait_s: float = _setting(20.0, "Seconds for which one receive waits for a message.", ge=0, le=20)
    idle_timeout_s: float = _setting(
        60.0,
        "Seconds without messages after which a stream is released, unless it has its own setting.",
        gt=0,
    )

    slots: int = _setting(
        usable_cores, "Child processes that run handlers.", shown="cores less one, from 1 to 8", ge=1, le=256
    )
    task_slots: int = _setting(
        usable_cores,
        "Tasks that a node runs at once, each in a child process.",
        shown="cores less one, from 1 to 8",
        ge=1,
        le=1024,
    )
    spare_slots: int = _setting(1, "Further slots kept warm, to replace one that dies.", ge=0, le=16)
    slot_memory_mb: int = _setting(2048, "Memory of a slot above which it is replaced; 0: no limit.", ge=0)
    model_memory_mb: int = _setting(
        0,
        "Memory of the models in one slot above which models that no stream uses are unloaded; 0: no limit.",
        ge=0,
    )
    model_timeout_s: float = _setting(120.0, "Maximum seconds for loading a model.", gt=0)
    streams_per_slot_max: int = _setting(10_000, "Maximum streams in a slot.", ge=1)

    max_held: int = _setting(5000, "Maximum messages in all inboxes of a node.", ge=1)
    custody_limit: int = _setting(
        2000, "Maximum pending forwards of a node; it uses at most half of `max_held`.", ge=1
    )
    max_message_bytes: int = _setting(1024**2, "Largest message body; a larger one is dead-lettered.", ge=1)
    max_state_bytes: int = _setting(8 * 1024**2, "Largest state of one stream.", ge=1)

    peer_timeout_s: float = _setting(5.0, "Maximum seconds of one call to another node.", gt=0)
    custody_check_s: float = _setting(
        lambda above: above["visibility_s"] / 4,
        "Seconds after which a message is forwarded again if its commit wasn't reported.",
        shown="`visibility_s` / 4",
        gt=0,
    )
    give_back_s: float = _setting(
        5.0,
        "Seconds for which a message that no node takes waits in the queue before the next try; ±50 %.",
        gt=0,
    )

    results_keep_s: float = _setting(7 * DAY_S, "Seconds for which results are kept.", shown="7 days", gt=0)
    dead_keep_s: float = _setting(
        30 * DAY_S, "Seconds for which dead letters are kept.", shown="30 days", gt=0
    )
    idle_keep_s: float = _setting(
        90 * DAY_S, "Seconds for which the state of a stream without messages is kept.", shown="90 days", gt=0
    )

    balance_s: float = _setting(
        10.0,
        "Seconds between two comparisons of the nodes' loads, to move streams off busy ones; 0: never.",
        ge=0,
    )
    rest_s: float = _setting(
        60.0, "Minimum seconds that a stream stays on a node after it began or was moved there.", ge=0
    )
    revision: str = _setting(
        "",
        "The version of the app that runs here, such as the digest of an image. Nodes that drain prefer"
        " nodes of the revision that was started last.",
    )
    drain_timeout_s: float = _setting(
        30.0, "Maximum seconds for which a node that stops moves its streams.", gt=0
    )
    move_timeout_s: float = _setting(
        10.0,
        "Maximum seconds for the new owner of a stream to warm up, without the loading of models. Then the"
        " move is given up.",
        gt=0,
    )

    trace_url: str = _setting(
        "",
        "The collector that takes traces by OTLP over HTTP, such as `http://localhost:4318`; none: no traces"
        " ([tracing](tracing.md)).",
        shown="none",
    )
    trace_sample: float = _setting(
        0.01,
        "The share of traces that is recorded, from 0 to 1. Their ids decide which; flags of senders are"
        " ignored.",
        ge=0,
        le=1,
    )

    metrics_host: str = _setting(
        "127.0.0.1",
        "Address at which a node or a gateway serves its metrics. One that isn't loopback needs"
        " `metrics_token`.",
    )
    metrics_port: int = _setting(
        0, "Port of the metrics; 0 takes a free one, which the log shows.", ge=0, le=65535
    )
    metrics_token: SecretStr | None = _setting(
        None,
        "The bearer token that readers of the metrics must show:"
        f" {SECRET_CHARS_MIN} printable ASCII characters or more.",
        shown="none",
    )
    metrics_url: str = _setting(
        "",
        "The collector to which nodes and gateways send their metrics by OTLP over HTTP, such as"
        " `http://localhost:4318`; none: metrics are only served ([metrics](metrics.md)).",
        shown="none",
    )
    metrics_every_s: float = _setting(60.0, "Seconds between two sends to `metrics_url`.", ge=1)
    prometheus_url: str = _setting(
        "",
        "The Prometheus that the console reads for its charts, such as `http://localhost:9090`; none: charts"
        " begin when the console starts.",
        shown="none",
    )
    prometheus_token: SecretStr | None = _setting(
        None, "The bearer token for `prometheus_url`.", shown="none"
    )
    prometheus_labels: str = _setting(
        "",
        'Labels that select this cluster if Prometheus has several, such as `job="holdfast"`.',
        shown="none",
    )

    log_format: Format = _setting("auto", "`console`, `json`, or `auto`: console on a terminal.")
    log_level: Level = _setting("info", "Lowest level that is logged.")
    log_tracebacks: Tracebacks = _setting(
        "none",
        "Details of handlers' exceptions in the log, in addition to file and line: `none`, tracebacks"
        " (`plain`), or tracebacks with the values of local variables (`locals`). Dead letters have the same"
        " traceback, and values may be secret, so `locals` is for development only.",
    )
    log_dir: str = _setting(
        "",
        "A folder in which each node of the host keeps its log too, in a file of its own, as JSON lines:"
        " `holdfast logs` reads them.",
        shown="none",
    )
    log_file_mb: float = _setting(
        20.0, "Size in MB at which such a file is rotated. One older file is kept.", gt=0
    )
    log_keep_s: float = _setting(
        7 * DAY_S, "Seconds for which such files are kept after their last line.", shown="7 days", gt=0
    )

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("peer_secret", "peer_secret_also", "metrics_token")
    @classmethod
    def _strong(cls, secret: SecretStr | None) -> SecretStr | None:
        text = secret.get_secret_value() if secret else None
        if text is not None and not (len(text) >= SECRET_CHARS_MIN and text.isascii() and text.isprintable()):
            raise ValueError(f"should be {SECRET_CHARS_MIN} printable ASCII characters or more")
        return secret

    @field_validator("trace_url", "metrics_url")
    @classmethod
    def _is_a_collector(cls, url: str) -> str:
        instead = "OpenTelemetry's variable OTEL_EXPORTER_OTLP_HEADERS has what it asks for"
        return _http_url(url, "a collector, such as 'http://localhost:4318'", instead, without="@")

    @field_validator("prometheus_url")
    @classmethod
    def _keeps_metrics(cls, url: str) -> str:
        instead = "prometheus_token has the token"
        return _http_url(url, "a Prometheus, such as 'http://localhost:9090'", instead, without="@?#")

    @field_validator("target_secrets", mode="before")
    @classmethod
    def _parsed(cls, secrets: Any) -> Any:
        if not isinstance(secrets, str):
            return secrets
        try:
            return json.loads(secrets)
        except ValueError:
            raise ValueError("should be a JSON object with the beginning of a URL for each secret") from None

    @field_validator("target_secrets")
    @classmethod
    def _named_by_url(cls, secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for place, secret in secrets.items():
            scheme, mark, rest = place.partition("://")
            if not (mark and scheme and rest.partition("/")[0]) or {"@", "?", "#"} & set(rest):
                raise ValueError("each name should be the beginning of a URL, such as 'https://host/'")
            if scheme in ("http", "https") and not _signs(secret.get_secret_value()):
                raise ValueError(
                    f"should have 'whsec_' and the base64 of {WEBHOOK_KEY_BYTES_MIN} bytes or more for"
                    f" {place!r}, or several of these, separated by spaces"
                )
        return secrets

    def note_sources(self, sources: Mapping[str, str]) -> None:
        """Record the sources of settings."""
        self._sources.update(sources)

    def source_of(self, setting: str) -> str:
        """Return the source of a setting, in words."""
        return self._sources.get(setting, "default")

    def named(self, setting: str) -> str:
        """Return the name of a setting for an error, with the given setting that it has its value from."""
        given = setting
        while given in SAME_AS and given not in self.model_fields_set:
            given = SAME_AS[given]
        return setting if given == setting else f"{given} (as {setting})"

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables, secrets included, for a child process. Empty values
        are written out, because a file would set them otherwise."""
        values = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        values["target_secrets"] = json.dumps(values["target_secrets"])
        given = {name: str(value) for name, value in values.items() if value is not None}
        return {PREFIX + name.upper(): value or EMPTY for name, value in given.items()}


class ClientSettings(TypedDict, total=False):
    """The settings that a client uses. Each has the same meaning as for a node."""

    url: str
    queue_url: str
    state_url: str
    tasks_url: str
    registry_url: str
    coordinator_url: str
    values_url: str
    peer_secret: str
    peer_tls_cert: Path
    peer_tls_key: Path
    peer_tls_ca: Path
    peer_tls_name: str
    file_access: FileAccess
    durability: Literal["full", "normal"]
    lock_timeout_s: float
    receive_wait_s: float
    max_message_bytes: int


class NodeSettings(ClientSettings, total=False):
    """The settings of a node, for tests that set some. They are described in :class:`Config`."""

    create_queues: bool
    foreign_streams: Literal["refuse", "forward"]
    objects_url: str
    dlq_backup_url: str
    dlq_backup_cron: str
    outbox_url: str
    devices_url: str
    target_secrets: dict[str, str]
    plain_http_targets: Literal["loopback", "any"]
    node_name: str
    host: str
    port: int
    advertise: str
    peer_secret_also: str
    max_peer_bytes: int
    max_connections: int
    ttl_s: float
    renew_s: float
    visibility_s: float
    idle_timeout_s: float
    slots: int
    task_slots: int
    spare_slots: int
    slot_memory_mb: int
    model_memory_mb: int
    model_timeout_s: float
    streams_per_slot_max: int
    max_held: int
    custody_limit: int
    max_state_bytes: int
    peer_timeout_s: float
    custody_check_s: float
    give_back_s: float
    results_keep_s: float
    dead_keep_s: float
    idle_keep_s: float
    balance_s: float
    rest_s: float
    revision: str
    drain_timeout_s: float
    move_timeout_s: float
    trace_url: str
    trace_sample: float
    metrics_host: str
    metrics_port: int
    metrics_token: str
    metrics_url: str
    metrics_every_s: float
    prometheus_url: str
    prometheus_token: str
    prometheus_labels: str
    log_format: Format
    log_level: Level
    log_tracebacks: Tracebacks
    log_dir: str
    log_file_mb: float
    log_keep_s: float


def _signs(secret: str) -> bool:
    """Return whether a text has secrets of webhooks."""
    try:
        keys = [base64.b64decode(each.removeprefix("whsec_"), validate=True) for each in secret.split()]
    except ValueError:
        return False
    marked = all(each.startswith("whsec_") for each in secret.split())
    return marked and bool(keys) and all(len(key) >= WEBHOOK_KEY_BYTES_MIN for key in keys)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value
