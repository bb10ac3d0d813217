"""What the Helm chart takes from the code: its version, and which values it accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import holdfast
from holdfast.config.settings import Config

CHART = Path(__file__).parent / "helm" / "holdfast"
ABOUT = CHART / "Chart.yaml"
SCHEMA = CHART / "values.schema.json"
CHART_RULES = CHART / "files" / "holdfast.rules.yml"

Schema = dict[str, Any]

OF_THE_CHART = {
    "host", "port", "advertise", "node_name", "metrics_host", "metrics_port",
    "peer_tls_cert", "peer_tls_key", "peer_tls_ca", "peer_tls_name",
}  # fmt: skip
"""Settings that the templates set themselves."""

SERVICES = ("url", "queue_url", "coordinator_url", "state_url", "tasks_url", "registry_url")
TELLING_PARAMETERS = "passw|passphrase|secret|token|credential|signature|api_?key|access_?key"
PASSWORD = rf"://[^/@]*:[^/@]*@|[?&;][^=&;]*({TELLING_PARAMETERS})[^=&;]*="
"""A pattern of URLs with a password, or with another secret as a parameter."""

BESIDE_NODES = ("gateway", "console", "migrations", "deletionCosts")

TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": SOME_TEXT}
ANY: Schema = {"type": "object"}
NAMED: Schema = {"type": "object", "additionalProperties": TEXT}
LABEL: Schema = {"type": "string", "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}
LABELS: Schema = {"type": "object", "additionalProperties": LABEL}
OF_SELECTORS = (
    "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "holdfast/group",
    "pod-template-hash",
)  # fmt: skip
"""Labels with which the chart selects its pods."""

PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
LIST: Schema = {"type": "array", "items": ANY}
SIZE: Schema = {"type": ["string", "integer"], "pattern": r"^[0-9.]+([kMGTPE]i?)?$"}
SECRET: Schema = {"type": "string", "pattern": r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$"}
SECRETS: Schema = {"type": "array", "items": {**SECRET, "minLength": 1}}
SOME_RESOURCES: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"limits": ANY, "requests": ANY, "claims": LIST},
}
RESOURCES: Schema = {
    "type": "object",
    "required": ["requests", "limits"],
    "properties": {"limits": {"type": "object", "required": ["memory"]}, "requests": ANY},
}


def about() -> str:
    """``Chart.yaml``, with the version of Holdfast, as Helm writes one that isn't released yet."""
    version = re.sub(r"\.dev(\d+)$", r"-dev.\1", holdfast.__version__)
    return re.sub(r"(?m)^(version|appVersion): .*", rf"\1: {version}", ABOUT.read_text())


def schema() -> str:
    """``values.schema.json``, with which Helm refuses misspelt values and settings that don't exist."""
    part = _parts()
    whole = _object(
        image=_image(),
        imagePullSecrets=LIST,
        nameOverride=TEXT,
        fullnameOverride=TEXT,
        settings={"$ref": "#/definitions/settings"},
        existingSecrets={**SECRETS, "minItems": 1},
        peerTls=_object(secret=SECRET, name=SOME_TEXT),
        listen={"enum": ["0.0.0.0", "::"]},  # noqa: S104
        serviceAccount=_object(create=FLAG, name=SECRET, annotations=NAMED),
        podSecurityContext={
            "type": "object",
            "required": ["runAsNonRoot"],
            "properties": {"runAsNonRoot": {"const": True}, "runAsUser": _count(1)},
        },
        nodes={"allOf": [{"$ref": "#/definitions/group"}, {"properties": {"resources": RESOURCES}}]},
        groups={
            "type": "object",
            "propertyNames": {"pattern": r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$"},
            "additionalProperties": {"$ref": "#/definitions/group"},
        },
        persistence=_object(
            enabled=FLAG, existingClaim=SECRET, size=SIZE, storageClass=TEXT, mountPath={"pattern": "^/"}
        ),
        migrations=_object(
            enabled=FLAG,
            existingSecrets=SECRETS,
            serviceAccountName=SOME_TEXT,
            timeoutSeconds=_count(1),
            resources=RESOURCES,
        ),
        gateway=part["gateway"],
        console=part["console"],
        networkPolicy=_object(
            enabled=FLAG, gatewayFrom=LIST, consoleFrom=LIST, prometheusFrom=LIST, egress=LIST
        ),
        deletionCosts=_object(enabled=FLAG, seconds=_count(5), resources=RESOURCES),
        test=_object(resources=RESOURCES),
        monitoring=_monitoring(),
        **{"global": ANY},
    )
    definitions = {
        "settings": _settings(),
        "own_settings": _settings(of_a_part=True),
        "group": _group(),
    }
    draft = "http://json-schema.org/draft-07/schema#"
    document = {"$schema": draft, **whole, "allOf": _together(), "definitions": definitions}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _count(least: int) -> Schema:
    return {"type": "integer", "minimum": least}


def _file() -> Schema:
    return _object(secret=SECRET, key=SOME_TEXT)


def _monitoring() -> Schema:
    """Prometheus needs a token to read pods."""
    monitored: Schema = {"required": ["podMonitor"], "properties": {"podMonitor": {"const": True}}}
    named: Schema = {"properties": {"token": {"properties": {"secret": {"minLength": 1}}}}}
    return _object(
        podMonitor=FLAG,
        rules=FLAG,
        labels=LABELS,
        interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        token=_file(),
    ) | {"if": monitored, "then": named}


def _image() -> Schema:
    return _object(
        repository=TEXT,
        tag={**TEXT, "not": {"const": "latest"}},
        digest={"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?$"},
        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    )


def _settings(*, of_a_part: bool = False) -> Schema:
    """The settings of a node that aren't secrets. A group, or another part, can't use SQLite."""
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "minLength", "description")
    found: dict[str, Schema] = {}
    for name, schema in Config.model_json_schema()["properties"].items():
        if name in OF_THE_CHART or "password" in json.dumps(schema):
            continue
        found[name] = {word: schema[word] for word in kept if word in schema}
        if schema.get("type") == "string" and "enum" not in schema:
            found[name]["not"] = {"pattern": PASSWORD}
        if of_a_part and name in SERVICES:
            found[name]["not"] = {"pattern": f"^sqlite:|{PASSWORD}"}
    return _object(**found)


def _group() -> Schema:
    scaler = _object(
        kind={"enum": ["none", "keda", "hpa"]},
        app=TEXT,
        minReplicas=_count(1),
        maxReplicas=_count(1),
        prometheus=SOME_TEXT,
        selector=TEXT,
        triggers=LIST,
        downSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        downWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    )
    return _object(
        app={"type": "string", "pattern": r"^([\w.]+:\w+)?$"},
        image=_image(),
        replicas=_count(0),
        settings={"$ref": "#/definitions/own_settings"},
        existingSecrets=SECRETS,
        resources=SOME_RESOURCES,
        maxSurge={
            "anyOf": [_count(1), {"type": "string", "pattern": "^[1-9][0-9]*%$"}],
        },
        minReadySeconds=_count(0),
        startupSeconds=_count(2),
        shmSize=SIZE,
        tmpSize=SIZE,
        autoscaling=scaler,
        podDisruptionBudget=FLAG,
        runtimeClassName=TEXT,
        priorityClassName=TEXT,
        env=LIST,
        volumes=_others("name", "tmp", "shm", "peer-tls", "data"),
        volumeMounts=_others("mountPath", "/tmp", "/dev/shm", "/etc/holdfast/peer-tls"),  # noqa: S108
        **_placing(spread=True),
    )


def _placing(*, spread: bool) -> dict[str, Schema]:
    placed = {
        "nodeSelector": LABELS,
        "tolerations": LIST,
        "affinity": ANY,
        "podAnnotations": NAMED,
        "podLabels": {**LABELS, "properties": {label: {"not": {}} for label in OF_SELECTORS}},
    }
    return {**placed, "spread": TEXTS} if spread else placed


def _parts() -> dict[str, Schema]:
    """The gateway and the console. Each needs to know its clients."""
    service = _object(type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}, port=PORT, annotations=NAMED)
    ingress = _object(enabled=FLAG, className=TEXT, annotations=NAMED, hosts=TEXTS, tlsSecret=SECRET) | {
        "if": {"properties": {"enabled": {"const": True}}},
        "then": {"properties": {"hosts": {"minItems": 1}}},
    }
    common: dict[str, Schema] = {
        "enabled": FLAG,
        "replicas": _count(1),
        "tls": _object(secret=SECRET),
        "settings": {"$ref": "#/definitions/own_settings"},
        "resources": RESOURCES,
        "service": service,
        "ingress": ingress,
        "podDisruptionBudget": FLAG,
    }
    gateway = _object(
        **common,
        **_placing(spread=True),
        keys=_file(),
        noAuth=FLAG,
        perS=_count(0),
        dataPlane={"enum": ["", "haproxy", "python"]},
        replayBytes=_count(0),
        accessLog=FLAG,
        preStopSeconds=_count(1),
    )
    console = _object(
        **common,
        **_placing(spread=False),
        tokens=_file(),
        names=TEXTS,
        identityHeader=TEXT,
        proxies=TEXTS,
        operators=TEXTS,
        pictures=FLAG,
    )
    enabled: Schema = {"properties": {"enabled": {"const": True}}}
    named: Schema = {"properties": {"secret": {"minLength": 1}}}
    gateway |= {
        "if": enabled,
        "then": {
            "oneOf": [
                {"properties": {"keys": named, "noAuth": {"const": False}}},
                {
                    "properties": {
                        "keys": {"properties": {"secret": {"maxLength": 0}}},
                        "noAuth": {"const": True},
                    }
                },
            ]
        },
    }
    console |= {
        "if": enabled,
        "then": {
            "anyOf": [
                {"properties": {"tokens": named}},
                {"properties": {"identityHeader": {"minLength": 1}, "proxies": {"minItems": 1}}},
            ]
        },
    }
    return {"gateway": gateway, "console": console}


def _others(name: str, *taken: str) -> Schema:
    """A list of objects whose names differ from those of the chart."""
    free: Schema = {"required": [name], "properties": {name: {**SOME_TEXT, "not": {"enum": [*taken]}}}}
    return {"type": "array", "items": {**ANY, **free}}


def _together() -> list[Schema]:
    """Values that need each other."""
    return [*_one_node_on_sqlite(), _only_the_proxy_at_the_console()]


def _only_the_proxy_at_the_console() -> Schema:
    """A console trusts its proxy to name the user, so no other pod may reach it."""
    believing: Schema = {"properties": {"enabled": {"const": True}, "identityHeader": {"minLength": 1}}}
    closed: Schema = {"properties": {"enabled": {"const": True}, "consoleFrom": {"minItems": 1}}}
    return {
        "if": {"properties": {"console": believing}},
        "then": {"properties": {"networkPolicy": closed}},
    }


def _one_node_on_sqlite() -> list[Schema]:
    """SQLite is a file on one host: one pod with a volume, and no other part that needs the file."""
    names = [
        {"properties": {"settings": {"required": [name], "properties": {name: {"pattern": "^sqlite:"}}}}}
        for name in SERVICES
    ]
    off: Schema = {"properties": {"enabled": {"const": False}}}
    on: Schema = {"properties": {"enabled": {"const": True}}}
    unscaled: Schema = {"properties": {"kind": {"const": "none"}}}
    alone: Schema = {"properties": {"replicas": {"const": 1}, "autoscaling": unscaled}}
    one = {"nodes": alone, "groups": {"maxProperties": 1, "additionalProperties": alone}}
    return [
        {"if": {"anyOf": names}, "then": {"properties": {"persistence": on}}},
        {
            "if": {"properties": {"persistence": on}},
            "then": {"properties": {**one, **dict.fromkeys(BESIDE_NODES, off)}},
        },
    ]
