"""The settings of a node: all are read, checked against each other and frozen here.

A setting is taken from the first of: the command line, the environment (``HOLDFAST_…``), a ``.env`` file,
``holdfast.toml``, older names (:mod:`holdfast.legacy_env`), its default. Whatever is wrong is a ConfigError
that names the setting, its value, where it came from and what to do.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo

from holdfast import legacy_env
from holdfast.common.protocol import FORWARD_OVERHEAD_BYTES
from holdfast.common.redaction import HIDDEN, redact, redact_url
from holdfast.errors import ConfigError
from holdfast.registration import service_of
from holdfast.system.files import FileAccess
from holdfast.system.log import Format, Level, Tracebacks
from holdfast.system.machine import Machine

FILE = Path("holdfast.toml")
DOTENV = Path(".env")
PREFIX = "HOLDFAST_"
EMPTY = "''"
"""The value of a variable that sets the empty text: one that is empty sets nothing."""

NOT_SETTINGS = ("HOLDFAST_CREDENTIAL",)
"""Prefixes of variables that are no settings: the credentials of reports, and the path of a file of them."""

SECRET_CHARS_MIN = 16
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
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
"""From which setting another one has its value, unless it is given."""


def _same_as_url(above: dict[str, Any]) -> str:
    return str(above["url"])


def _http_url(url: str, of: str, instead: str, *, without: str) -> str:
    """Return ``url`` if it is empty or one of HTTP that has none of the characters ``without``. Raises
    ValueError, which says of what it should be the URL, and what there is ``instead`` of a user in it."""
    scheme, mark, rest = url.partition("://")
    known = scheme in ("http", "https") and mark and rest.strip("/")
    if url and (not known or {*without} & {*rest}):
        raise ValueError(f"should be the URL of {of}, without a user ({instead})")
    return url


def _usable_cores() -> int:
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
        lambda above: above["state_url"], "The task store: how every task stands.", shown="`state_url`"
    )
    registry_url: str = _setting(
        lambda above: above["tasks_url"],
        "The registry: limits, and what nodes and producers tell each other.",
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
        "Which webhooks may have URLs with `http://`, which others can read: those on this host, or `any`.",
    )
    durability: Literal["full", "normal"] = _setting(
        "full",
        "What a commit to SQLite survives. `full`: a power cut. `normal`: a crash of any process, but a power"
        " cut may take back the last moments, which are then done again; several times faster on slow disks.",
    )
    lock_timeout_s: float = _setting(
        2.0,
        "How long a process that is stopped inside a transaction keeps others waiting. Then the one that"
        " waits kills it (SQLite), or its session is ended (PostgreSQL).",
        gt=0,
    )

    file_access: FileAccess = _setting(
        "owner",
        "Who may use the files and folders that are made: databases, objects, back-ups, reports in folders."
        " `owner`: this user alone. `umask`: those that the umask of the process allows.",
    )

    node_name: str = _setting(
        socket.gethostname,
        "Name of this node, for people. A node that finds another living node with its name logs a warning.",
        shown="the host's name, and four characters that tell its nodes apart",
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
        "The name that the certificates of all nodes are for, where addresses change; none: each is for the"
        " address of its node.",
    )
    max_peer_bytes: int = _setting(64 * 1024**2, "Largest request or reply between nodes.", ge=1)
    max_connections: int = _setting(
        10_000,
        "Connections to a node or a gateway at once, of clients and nodes; fewer where the limit of open"
        " files is lower.",
        ge=16,
    )

    ttl_s: float = _setting(5.0, "How long a membership lives without being renewed.", gt=0)
    renew_s: float = _setting(
        lambda above: round(above["ttl_s"] / 3, 3),
        "How often a node renews its membership.",
        shown="`ttl_s` / 3",
        gt=0,
    )
    visibility_s: float = _setting(
        30.0, "How long the queue hides a delivery; it is extended while work advances.", gt=0, le=12 * 3600
    )
    receive_wait_s: float = _setting(20.0, "How long one receive waits for a message.", ge=0, le=20)
    idle_timeout_s: float = _setting(
        60.0, "A stream without messages for so long is released, unless it sets its own.", gt=0
    )

    slots: int = _setting(
        _usable_cores, "Child processes that run handlers.", shown="cores less one, from 1 to 8", ge=1, le=256
    )
    task_slots: int = _setting(
        _usable_cores,
        "Tasks that a node runs at once, each in a child process.",
        shown="cores less one, from 1 to 8",
        ge=1,
        le=1024,
    )
    spare_slots: int = _setting(1, "Further slots kept warm, to replace one that dies.", ge=0, le=16)
    slot_memory_mb: int = _setting(2048, "Memory of a slot above which it is replaced; 0: no limit.", ge=0)
    model_memory_mb: int = _setting(
        0,
        "Memory that the models in one slot may take before those that no stream uses are unloaded;"
        " 0: no limit.",
        ge=0,
    )
    model_timeout_s: float = _setting(120.0, "How long a model may take to load.", gt=0)
    streams_per_slot_max: int = _setting(10_000, "Streams that a slot holds at most.", ge=1)

    max_held: int = _setting(5000, "Messages that a node holds in all its inboxes.", ge=1)
    custody_limit: int = _setting(2000, "Messages of other owners that a node keeps in custody.", ge=1)
    max_message_bytes: int = _setting(1024**2, "Largest message body; a larger one is dead-lettered.", ge=1)
    max_state_bytes: int = _setting(8 * 1024**2, "Largest state of one stream.", ge=1)

    peer_timeout_s: float = _setting(5.0, "How long one call to another node may take.", gt=0)
    custody_check_s: float = _setting(
        lambda above: above["visibility_s"] / 4,
        "After how long a forwarded message is offered again if its commit wasn't reported.",
        shown="`visibility_s` / 4",
        gt=0,
    )
    give_back_s: float = _setting(
        5.0, "How long a message that no node takes waits in the queue before the next try; ±50 %.", gt=0
    )

    results_keep_s: float = _setting(7 * DAY_S, "How long results are kept.", shown="7 days", gt=0)
    dead_keep_s: float = _setting(30 * DAY_S, "How long dead letters are kept.", shown="30 days", gt=0)
    idle_keep_s: float = _setting(
        90 * DAY_S, "How long the state of a stream without messages is kept.", shown="90 days", gt=0
    )

    balance_s: float = _setting(
        10.0, "How often the loads of all nodes are compared, to move streams off busy ones; 0: never.", ge=0
    )
    rest_s: float = _setting(
        60.0, "How long a stream stays on a node after it began or was moved there.", ge=0
    )
    revision: str = _setting(
        "",
        "What runs here, such as the digest of an image. Nodes that drain prefer those of the revision that"
        " was started last.",
    )
    drain_timeout_s: float = _setting(30.0, "How long a node that stops tries to move its streams.", gt=0)
    move_timeout_s: float = _setting(
        10.0,
        "How long the new owner of a stream may take to warm up, beside the loading of models, before a move"
        " is given up.",
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
        "The share of traces that is recorded, from 0 to 1; their ids decide which. What senders say of that"
        " isn't heeded.",
        ge=0,
        le=1,
    )

    metrics_host: str = _setting(
        "127.0.0.1",
        "Address on which a node or a gateway tells its metrics. One that isn't loopback needs"
        " `metrics_token`.",
    )
    metrics_port: int = _setting(
        0, "Port of the metrics alone; 0 takes a free one, which the log tells.", ge=0, le=65535
    )
    metrics_token: SecretStr | None = _setting(
        None,
        "The bearer token that readers of the metrics must show:"
        f" {SECRET_CHARS_MIN} printable ASCII characters or more.",
        shown="none",
    )
    metrics_url: str = _setting(
        "",
        "The collector to which nodes and gateways bring their metrics by OTLP over HTTP, such as"
        " `http://localhost:4318`; none: they are only asked for ([metrics](metrics.md)).",
        shown="none",
    )
    metrics_every_s: float = _setting(60.0, "How often metrics are brought there.", ge=1)
    prometheus_url: str = _setting(
        "",
        "The Prometheus that the console asks for its charts, such as `http://localhost:9090`; none: charts"
        " begin when the console does.",
        shown="none",
    )
    prometheus_token: SecretStr | None = _setting(
        None, "The bearer token that it is shown, if it asks for one.", shown="none"
    )
    prometheus_labels: str = _setting(
        "",
        'Labels that choose this cluster where Prometheus knows several, such as `job="holdfast"`.',
        shown="none",
    )

    log_format: Format = _setting("auto", "`console`, `json`, or `auto`: console on a terminal.")
    log_level: Level = _setting("info", "Lowest level that is logged.")
    log_tracebacks: Tracebacks = _setting(
        "none",
        "What the log shows of the exceptions of handlers beside file and line: `none`, their tracebacks"
        " (`plain`), or these with the values of local variables (`locals`). Dead letters have the same"
        " traceback, and values may be secret, so `locals` is for development only.",
    )
    log_dir: str = _setting(
        "",
        "A folder in which each node of the host keeps its log too, in a file of its own, as JSON lines:"
        " `holdfast logs` reads them.",
        shown="none",
    )
    log_file_mb: float = _setting(
        20.0, "At what size such a file is moved aside. One is kept beside the one that is written.", gt=0
    )
    log_keep_s: float = _setting(
        7 * DAY_S, "How long such files are kept after their last line.", shown="7 days", gt=0
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
            raise ValueError("should be a JSON object of secrets by the beginning of a URL") from None

    @field_validator("target_secrets")
    @classmethod
    def _told_by_url(cls, secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for place, secret in secrets.items():
            scheme, mark, rest = place.partition("://")
            if not (mark and scheme and rest.partition("/")[0]) or {"@", "?", "#"} & set(rest):
                raise ValueError("should have the beginning of a URL, such as 'https://host/', as each name")
            if scheme in ("http", "https") and not _signs(secret.get_secret_value()):
                raise ValueError(
                    f"should have 'whsec_' and the base64 of {WEBHOOK_KEY_BYTES_MIN} bytes or more for"
                    f" {place!r}, or several of these, separated by spaces"
                )
        return secrets

    def named(self, setting: str) -> str:
        """Return what an error calls a setting: with the one that was given, where it has its value from
        that."""
        given = setting
        while given in SAME_AS and given not in self.model_fields_set:
            given = SAME_AS[given]
        return setting if given == setting else f"{given} (as {setting})"

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables, secrets included, for a child process to load. What
        is empty here is written out, or a file would set it there."""
        values = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        values["target_secrets"] = json.dumps(values["target_secrets"])
        told = {name: str(value) for name, value in values.items() if value is not None}
        return {PREFIX + name.upper(): value or EMPTY for name, value in told.items()}


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


class Setting(NamedTuple):
    """One effective setting, its value safe to show, and where it came from."""

    name: str
    value: str | float | bool | None
    source: str


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


def load(overrides: Mapping[str, Any] | None = None, file: Path | None = None) -> Config:
    """Read the settings. ``overrides`` come first, except for None values; ``file`` replaces
    ``holdfast.toml``. Raises ConfigError, which names everything that is wrong.

    Variables of AWS (``AWS_…``) in ``.env`` are copied to the environment of this process, where the
    credentials are read. Variables that are already set there are kept."""
    dotenv = _dotenv()
    layers = [
        ("the command line", {name: value for name, value in (overrides or {}).items() if value is not None}),
        ("the environment", _settings_among(os.environ)),
        (str(DOTENV), _settings_among(dotenv)),
        (str(file or FILE), _toml(file)),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in reversed(layers):
        named = {name.lower(): value for name, value in layer.items()}  # as in the environment
        values.update(named)
        sources.update(dict.fromkeys(named, source))
    for name, told in legacy_env.settings(os.environ, dotenv, values).items():
        values[name], sources[name] = told
    for name, value in dotenv.items():
        if name.startswith("AWS_"):
            os.environ.setdefault(name, value)
    try:
        config = Config(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, values, sources))) from None
    config._sources.update(sources)
    check(config)
    return config


def check(config: Config, streams: Iterable[StreamLimits] = ()) -> None:
    """Raise ConfigError if settings contradict each other, or ``streams`` contradict them."""
    wrong = [*_contradictions(config)]
    for stream in streams:
        wrong.extend(_stream_contradictions(config, stream))
    if wrong:
        raise ConfigError("\n".join(wrong))


def explain(config: Config) -> list[Setting]:
    """Every setting with its value, secrets hidden, and its source."""
    return [
        Setting(name, _shown(getattr(config, name)), config._sources.get(name, "default"))
        for name in Config.model_fields
    ]


def unknown_variables() -> Iterable[tuple[str, str]]:
    """Yield variables of the environment and of ``.env`` that begin as settings do but are none, each with
    what to do. They may belong to another version or program, but are more likely misspelt."""
    for variable in sorted({*os.environ, *_dotenv()}):
        name = variable.lower()
        if not variable.startswith(PREFIX) or name.removeprefix(PREFIX.lower()) in Config.model_fields:
            continue
        if variable.startswith(NOT_SETTINGS):
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX.lower()), Config.model_fields, 1)
        yield variable, f"did you mean {PREFIX}{near[0].upper()}?" if near else "unset it"


def reference() -> str:
    """The table of settings for the docs, in Markdown."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Config.model_fields.items():
        lines.append(f"| `{name}` | {_default(field)} | {field.description} |")
    return "\n".join(lines) + "\n"


# --- reading


def _dotenv() -> dict[str, str]:
    """Return all variables in ``.env``."""
    try:
        return {name: value for name, value in dotenv_values(DOTENV).items() if value}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{DOTENV} can't be read: {error}") from None


def _settings_among(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among variables, in upper or lower case. An empty one sets nothing, ``EMPTY`` the
    empty text."""
    given = {name.lower(): "" if value == EMPTY else value for name, value in variables.items() if value}
    variable_of = {f"{PREFIX}{name}".lower(): name for name in Config.model_fields}
    return {name: given[variable] for variable, name in variable_of.items() if variable in given}


def _toml(file: Path | None) -> dict[str, Any]:
    path = file or FILE
    if file is not None and not file.is_file():
        raise ConfigError(
            f"config file {str(file)!r} is no file; name one that exists, or leave --config away"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} can't be read: {error}; it must be TOML") from None


# --- telling what is wrong


def _problems(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterable[str]:
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "default_factory_not_called":
            continue  # caused by another setting, which has a text of its own
        source = sources.get(name, "default")
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, Config.model_fields, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "`holdfast config show` lists the settings"
            yield f"unknown setting {name!r} in {source}; {hint}"
        else:
            reason = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            if name not in values:
                yield _wrong_default(name, problem["input"], reason)
                continue
            value = HIDDEN if _is_secret(name) else _told(values[name])
            yield f"{name} is {value} (from {source}): it {reason}. Change it there. {_meaning(name)}"


def _wrong_default(name: str, default: Any, reason: str) -> str:
    """Return what is wrong with a setting that isn't given: mostly the one that it follows."""
    shown = _default(Config.model_fields[name])
    followed = [each for each in re.findall(r"`(\w+)`", shown) if each in Config.model_fields]
    what_to_do = f"Change {followed[0]}, or set {name}." if followed else f"Set {name}."
    told = shown.replace("`", "")
    return f"{name} is {_told(default)} (its default, {told}): it {reason}. {what_to_do} {_meaning(name)}"


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


# --- showing


def _signs(secret: str) -> bool:
    """Return whether these are secrets of webhooks."""
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


def _shown(value: Any) -> str | float | bool | None:
    if isinstance(value, dict):
        return ", ".join(f"{redact_url(name)} = {_shown(each)}" for name, each in value.items())
    if isinstance(value, SecretStr):
        return HIDDEN
    return redact_url(value) if isinstance(value, str) else value


def _told(value: Any) -> str:
    """A value as an error text shows it, without secrets."""
    return repr(redact_url(value)) if isinstance(value, str) else redact(repr(value))


def _is_secret(name: str) -> bool:
    return name in Config.model_fields and "SecretStr" in str(Config.model_fields[name].annotation)


def _meaning(name: str) -> str:
    return f"({Config.model_fields[name].description})" if name in Config.model_fields else ""


def _default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    shown = extra.get("shown") if isinstance(extra, dict) else None
    return str(shown) if shown else "none" if field.default is None else f"`{field.default}`"
