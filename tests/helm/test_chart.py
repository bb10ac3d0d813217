"""The chart, by Helm 3 and 4: each example and each value changed make what Kubernetes takes."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml
from kubernetes_validate.utils import schema_contents

from deploy.chart import CHART_RULES, SERVICES
from deploy.generate import RULES
from holdfast.config import Config
from simulator.charts import (
    CHART,
    EXAMPLES,
    HELMS,
    Manifest,
    helm,
    manifests,
    of_kind,
    pods,
    refusal,
    variables,
)

VERSIONS = ("1.31", "1.34", "1.37")
NOT_OF_KUBERNETES = {"ScaledObject", "PodMonitor", "PrometheusRule"}

POSTGRES, SQLITE, SQS, ZOOKEEPER = EXAMPLES
by_name = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)

CHANGES: dict[str, list[Any]] = {
    "image.digest": [f"sha256:{'0' * 64}"],
    "image.pullPolicy": ["Always"],
    "image.tag": ["2.0", "2"],
    "imagePullSecrets": [[{"name": "registry"}]],
    "nameOverride": ["cameras"],
    "fullnameOverride": ["cameras"],
    "settings.drain_timeout_s": [60, 12.5],
    "settings.max_peer_bytes": [134217728],
    "settings.create_queues": [True],
    "existingSecrets": [["one", "two"]],
    "peerTls.secret": ["peers"],
    "listen": ["::"],
    "serviceAccount.create": [False],
    "serviceAccount.name": ["cameras"],
    "serviceAccount.annotations": [{"a": "b"}],
    "podSecurityContext.runAsUser": [2000],
    "nodes.image": [{"tag": "gpu"}],
    "nodes.replicas": [5],
    "nodes.settings": [{"slots": 3}],
    "nodes.existingSecrets": [["models"]],
    "nodes.resources": [{"requests": {"cpu": 2}, "limits": {"memory": "8Gi", "nvidia.com/gpu": 1}}],
    "nodes.maxSurge": [2, "50%"],
    "nodes.minReadySeconds": [0],
    "nodes.startupSeconds": [900],
    "nodes.shmSize": ["2Gi"],
    "nodes.tmpSize": ["4Gi"],
    "nodes.autoscaling": [{"kind": "keda", "app": "a"}, {"kind": "hpa", "app": "a"}],
    "nodes.podDisruptionBudget": [False],
    "nodes.spread": [[]],
    "nodes.runtimeClassName": ["nvidia"],
    "nodes.priorityClassName": ["high"],
    "nodes.nodeSelector": [{"disk": "ssd"}],
    "nodes.tolerations": [[{"operator": "Exists"}]],
    "nodes.affinity": [{"podAntiAffinity": {}}],
    "nodes.podAnnotations": [{"a": "b"}],
    "nodes.podLabels": [{"a": "b"}],
    "nodes.env": [[{"name": "OMP_NUM_THREADS", "value": "1"}]],
    "nodes.volumes": [[{"name": "models", "emptyDir": {}}]],
    "nodes.volumeMounts": [[{"name": "tmp", "mountPath": "/models"}]],
    "groups": [{"a": {"app": "a:app"}, "b": {"app": "b:app", "replicas": 0}}],
    "migrations.enabled": [True, False],
    "migrations.existingSecrets": [["owner"]],
    "migrations.serviceAccountName": ["migrate"],
    "gateway.replicas": [3],
    "gateway.perS": [100],
    "gateway.dataPlane": ["python", "haproxy"],
    "gateway.replayBytes": [65536],
    "gateway.accessLog": [True],
    "gateway.tls.secret": ["tls"],
    "gateway.preStopSeconds": [20],
    "gateway.settings": [{"max_connections": 50000}],
    "gateway.service": [{"type": "NodePort", "port": 8080}],
    "gateway.podDisruptionBudget": [False],
    "gateway.podLabels": [{"a": "b"}],
    "gateway.podAnnotations": [{"a": "b"}],
    "console.enabled": [False],
    "console.replicas": [2],
    "console.names": [["console.example.com"]],
    "console.pictures": [True],
    "console.tls.secret": ["tls"],
    "console.settings": [{"log_level": "warning"}],
    "console.podLabels": [{"a": "b"}],
    "console.podAnnotations": [{"a": "b"}],
    "networkPolicy.enabled": [False],
    "networkPolicy.gatewayFrom": [[{"podSelector": {}}]],
    "networkPolicy.consoleFrom": [[{"podSelector": {}}]],
    "networkPolicy.prometheusFrom": [[]],
    "monitoring.podMonitor": [True, False],
    "monitoring.rules": [True, False],
    "monitoring.interval": ["30s"],
    "monitoring.token": [{"secret": "prometheus", "key": "bearer"}],
}


@functools.cache
def _validator(version: str, kind: str, api: str) -> Any:
    folder = f"kubernetes-json-schema/v{_patch(version)}-local-strict"
    group, _, last = api.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], last]))
    resources = [
        schema_contents(f"{folder}/{file}", version) for file in (f"{name}.json", "_definitions.json")
    ]
    schema, definitions = map(referencing.Resource.from_contents, resources)
    registry: Any = definitions @ (schema @ referencing.Registry())
    return jsonschema.Draft202012Validator(resources[0], registry=registry)


@functools.cache
def _patch(version: str) -> str:
    from kubernetes_validate.utils import all_versions

    (found,) = {each for each in all_versions() if each.startswith(f"{version}.")}
    return str(found)


def valid(found: list[Manifest]) -> None:
    """Fail if a version of Kubernetes would refuse any of these, or if it breaks our own rules."""
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(names)) == len(names), "two of one name"
    for each in found:
        if each["kind"] not in NOT_OF_KUBERNETES:
            for version in VERSIONS:
                _validator(version, each["kind"], each["apiVersion"]).validate(each)
    for name, pod in pods(found).items():
        safe(name, pod)


def safe(name: str, pod: Manifest) -> None:
    """Nobody is root or writes to its image, each has its limits, and each that serves is asked how it is."""
    assert pod["securityContext"]["runAsNonRoot"], name
    assert pod["securityContext"]["runAsUser"], name
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert not pod["automountServiceAccountToken"], name
    assert not pod["enableServiceLinks"], f"{name}: a service called holdfast would set HOLDFAST_PORT"
    assert pod["shareProcessNamespace"], f"{name}: process 1 is deaf to SIGTERM while it starts"
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"], name
        assert container["resources"]["requests"], name
        if not name.endswith("-migrate"):
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            ready = "/healthz" if name.endswith("-console") else "/readyz"
            assert container["readinessProbe"]["httpGet"]["path"] == ready
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts <= {volume["name"] for volume in pod["volumes"]}
        assert not any("subPath" in mount for mount in container["volumeMounts"]), "never updated"
    for variable in variables(pod):
        told = variable.removeprefix("HOLDFAST_").lower()
        assert not variable.startswith("HOLDFAST_") or told in Config.model_fields, variable


@pytest.mark.parametrize("program", HELMS)
@by_name
def test_helm_lint_finds_no_fault_in_any_example(program: str, example: Path) -> None:
    said = helm(program, "lint", "--strict", CHART, "--values", example)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("program", HELMS)
@by_name
def test_every_example_renders_to_valid_manifests(program: str, example: Path) -> None:
    valid(manifests(example, program))


@pytest.mark.slow
def test_helm_3_and_4_make_the_same() -> None:
    for example in EXAMPLES:
        assert manifests(example, "helm") == manifests(example, "helm3")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_every_single_value_changed_is_valid(name: str) -> None:
    for value in CHANGES[name]:
        valid(manifests(POSTGRES, **{name: value}))


def test_all_values_are_changed_by_some_test() -> None:
    def names(values: Manifest, path: str = "") -> Iterator[str]:
        for name, value in values.items():
            whole = f"{path}{name}"
            if any(whole == change or change.startswith(f"{whole}.") for change in CHANGES):
                if isinstance(value, dict) and value and whole not in CHANGES:
                    yield from names(value, f"{whole}.")
            else:
                yield whole

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    of_examples = {
        "image.repository", "peerTls.name", "persistence", "nodes.app", "gateway.enabled", "gateway.keys",
        "gateway.noAuth", "gateway.ingress", "console.tokens", "console.identityHeader", "console.proxies",
        "console.operators", "console.ingress", "monitoring.labels", "settings",
    }  # fmt: skip
    alike = ("resources", "Selector", "tolerations", "affinity", "service", "spread", "timeoutSeconds")
    rest = {name for name in names(values) if not name.endswith(alike)}
    shared = {f"podSecurityContext.{name}" for name in values["podSecurityContext"]}
    assert rest - of_examples - shared == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, value, told",
    [
        ("settings.visibilty_s", 20, "visibilty_s"),
        ("settings.ttl_s", "soon", "ttl_s"),
        ("settings.peer_secret", "x" * 32, "peer_secret"),
        ("settings.url", "postgresql://a:secret@db/x", "url"),
        ("settings.host", "0.0.0.0", "host"),
        ("settings.url", "sqlite:////data/x.db", "enabled"),
        ("nodes.settings", {"url": "sqlite:////data/x.db"}, "url"),
        ("existingSecrets", [], "existingSecrets"),
        ("nodes.replica", 3, "replica"),
        ("nodes.maxSurge", 0, "maxSurge"),
        ("nodes.app", "cameras", "app"),
        ("nodes.resources", {"limits": {"memory": None}}, "limits"),
        ("groups", {"gateway": {"app": "a:app"}}, "groups"),
        ("podSecurityContext.runAsNonRoot", False, "runAsNonRoot"),
        ("gateway.keys.secret", "", "gateway"),
        ("gateway.noAuth", True, "gateway"),
        ("console.tokens.secret", "", "console"),
        ("gateway.ingress.hosts", [], "hosts"),
        ("image.digest", "sha256:1", "digest"),
        ("image.tag", 2, "tag"),
        ("image.tag", 1.10, "tag"),
        ("nodes.image", {"tag": 20261123}, "tag"),
        ("image.repository", "", "image.repository"),
        ("nodes.autoscaling", {"kind": "keda"}, "autoscaling.app"),
        ("settings.metrics_port", 9000, "metrics_port"),
        ("monitoring.token.secret", "", "token"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object, told: str) -> None:
    for program in HELMS:
        assert told in refusal(POSTGRES, program, **{name: value})


def test_sqlite_means_one_node_that_ends_before_the_next_begins() -> None:
    (node,) = of_kind(manifests(SQLITE), "Deployment").values()
    assert node["spec"]["replicas"] == 1
    assert node["spec"]["strategy"] == {"type": "Recreate"}
    assert "replicas" in refusal(SQLITE, nodes__replicas=2)
    assert "kind" in refusal(SQLITE, **{"nodes.autoscaling": {"kind": "keda", "app": "a"}})


def test_an_update_ends_no_node_before_another_is_ready() -> None:
    rolling = of_kind(manifests(POSTGRES), "Deployment")["cams-holdfast-main"]["spec"]["strategy"]
    assert rolling["rollingUpdate"]["maxUnavailable"] == 0
    assert rolling["rollingUpdate"]["maxSurge"] >= 1


@pytest.mark.slow
def test_the_grace_period_covers_a_receive_and_two_drains() -> None:
    usual = Config.model_fields
    for drain_s in (None, 12.5, 60, 120):
        told = {} if drain_s is None else {"settings.drain_timeout_s": drain_s}
        pod = pods(manifests(POSTGRES, **told))["cams-holdfast-main"]
        longest_s = usual["receive_wait_s"].default + 2 * (drain_s or usual["drain_timeout_s"].default)
        assert pod["terminationGracePeriodSeconds"] == math.ceil(longest_s) + 15
        assert "lifecycle" not in pod["containers"][0], "SIGTERM drains"


def test_a_disruption_takes_one_pod_and_waits_for_none_that_is_unwell() -> None:
    budgets = of_kind(manifests(POSTGRES), "PodDisruptionBudget")
    assert budgets.keys() == {"cams-holdfast-main", "cams-holdfast-gateway"}
    for budget in budgets.values():
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("startup_s", [31, 300, 900])
def test_a_node_has_the_time_that_it_was_given_to_start(startup_s: int) -> None:
    pod = pods(manifests(POSTGRES, nodes__startupSeconds=startup_s))["cams-holdfast-main"]
    probe = pod["containers"][0]["startupProbe"]
    assert startup_s <= probe["periodSeconds"] * probe["failureThreshold"] <= startup_s + 1


def test_shared_memory_and_temporary_files_have_the_sizes_that_were_asked_for() -> None:
    pod = pods(manifests(POSTGRES, nodes__shmSize="2Gi", nodes__tmpSize="4Gi"))["cams-holdfast-main"]
    volumes = {each["name"]: each.get("emptyDir") for each in pod["volumes"]}
    assert volumes["shm"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert volumes["tmp"] == {"sizeLimit": "4Gi"}
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert (mounts["shm"], mounts["tmp"]) == ("/dev/shm", "/tmp")


def test_a_node_tells_the_others_the_address_of_its_pod() -> None:
    container = pods(manifests(POSTGRES))["cams-holdfast-main"]["containers"][0]
    assert {"name": "HOLDFAST_HOST", "value": "$(POD_IP)"} in container["env"]
    assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_tls_between_nodes_is_mounted_and_probed() -> None:
    found = manifests(SQS)
    for name, pod in pods(found).items():
        assert variables(pod)["HOLDFAST_PEER_TLS_NAME"] == "nodes.holdfast.internal", name
    probe = pods(found)["cams-holdfast-detect"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["scheme"] == "HTTPS"


def test_groups_have_their_own_app_settings_budget_and_scaler() -> None:
    found = manifests(SQS)
    detect, count = (pods(found)[f"cams-holdfast-{group}"] for group in ("detect", "count"))
    assert detect["containers"][0]["args"] == ["node", "cameras.detect:app"]
    assert count["containers"][0]["args"] == ["node", "cameras.count:app"]
    assert variables(detect)["HOLDFAST_SLOTS"] == "2"
    assert "HOLDFAST_SLOTS" not in variables(count)
    assert detect["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"cams-holdfast-detect", "cams-holdfast-count"} <= of_kind(found, "PodDisruptionBudget").keys()
    scalers = of_kind(found, "ScaledObject")
    query = scalers["cams-holdfast-detect"]["spec"]["triggers"][0]["metadata"]
    ours = 'namespace="video",job="holdfast/video/cams"'
    assert query["query"] == f'max(holdfast_nodes_wanted{{app="detect",{ours}}})', "not what others want"
    assert query["ignoreNullValues"] == "false", "what isn't known isn't 0"
    for deployment in of_kind(found, "Deployment").values():
        scaled = deployment["metadata"]["name"] in scalers
        assert ("replicas" in deployment["spec"]) != scaled, "an upgrade would undo the scaler's work"


def test_other_labels_tell_a_release_apart_where_prometheus_gives_them() -> None:
    told = {"kind": "keda", "app": "a", "selector": 'cluster="north",job="nodes"'}
    found = manifests(POSTGRES, **{"nodes.autoscaling": told})
    (scaler,) = of_kind(found, "ScaledObject").values()
    query = scaler["spec"]["triggers"][0]["metadata"]["query"]
    assert query == 'max(holdfast_nodes_wanted{app="a",cluster="north",job="nodes"})'


def test_the_job_in_queries_is_the_one_that_prometheus_gets() -> None:
    found = of_kind(manifests(POSTGRES, monitoring__podMonitor=True), "PodMonitor")["cams-holdfast-nodes"]
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert {"targetLabel": "job", "replacement": "holdfast/video/cams"} in endpoint["relabelings"]


@pytest.mark.slow
def test_gateways_need_no_haproxy_unless_it_is_asked_for() -> None:
    def arguments(**values: Any) -> list[str]:
        gateway = pods(manifests(POSTGRES, **values))["cams-holdfast-gateway"]
        return [each for each in gateway["containers"][0]["args"] if each.startswith("--data-plane")]

    assert arguments() == []
    assert arguments(gateway__dataPlane="haproxy") == ["--data-plane=haproxy"]


def test_the_autoscaler_takes_nodes_away_slowly_and_one_at_a_time() -> None:
    (scaler,) = of_kind(manifests(ZOOKEEPER), "HorizontalPodAutoscaler").values()
    down = scaler["spec"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 600
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]


def test_migrations_need_nothing_of_the_release() -> None:
    (job,) = of_kind(manifests(POSTGRES), "Job").values()
    pod = job["spec"]["template"]["spec"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert pod["serviceAccountName"] == "default"
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "cameras-owner"}}]


@pytest.mark.parametrize("part, ours, peers", [("nodes", "peer", ["podSelector"]), ("gateway", "http", [])])
def test_prometheus_reaches_the_port_of_metrics_and_no_other(part: str, ours: str, peers: list[str]) -> None:
    policy = of_kind(manifests(POSTGRES), "NetworkPolicy")[f"cams-holdfast-{part}"]["spec"]
    others, prometheus = policy["ingress"]
    assert others["ports"] == [{"port": ours}]
    assert [each.popitem()[0] for each in others.get("from", [])] == peers
    assert prometheus["ports"] == [{"port": "metrics"}]
    assert [each.popitem()[0] for each in prometheus["from"]] == ["namespaceSelector"]


@pytest.mark.parametrize("part", ["nodes", "gateway"])
def test_prometheus_reads_pods_by_the_token_that_they_ask_for(part: str) -> None:
    found = manifests(POSTGRES)
    (endpoint,) = of_kind(found, "PodMonitor")[f"cams-holdfast-{part}"]["spec"]["podMetricsEndpoints"]
    credentials = endpoint["authorization"]["credentials"]
    (container,) = pods(found)["cams-holdfast-main" if part == "nodes" else "cams-holdfast-gateway"][
        "containers"
    ]
    (token,) = [each for each in container["env"] if each["name"] == "HOLDFAST_METRICS_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == credentials
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    assert {"name": "HOLDFAST_METRICS_PORT", "value": ports[endpoint["port"]]} in container["env"]


def test_pods_tell_nobody_their_metrics_without_a_token() -> None:
    changed = {"monitoring.podMonitor": False, "monitoring.token.secret": ""}
    found = manifests(POSTGRES, **changed)
    for name, pod in pods(found).items():
        assert not [each for each in variables(pod) if each.startswith("HOLDFAST_METRICS")], name
    for policy in of_kind(found, "NetworkPolicy").values():
        assert {"port": "metrics"} not in [
            port for rule in policy["spec"].get("ingress", []) for port in rule["ports"]
        ]


def test_metrics_are_read_by_tls_where_nodes_speak_it() -> None:
    watched = {"monitoring.podMonitor": True, "monitoring.token.secret": "prometheus"}
    monitors = of_kind(manifests(SQS, **watched), "PodMonitor")
    for monitor in monitors.values():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["serverName"] == "nodes.holdfast.internal"


def test_large_numbers_are_written_without_an_exponent() -> None:
    pod = pods(manifests(POSTGRES, **{"settings.max_peer_bytes": 134217728}))["cams-holdfast-main"]
    assert variables(pod)["HOLDFAST_MAX_PEER_BYTES"] == "134217728"


def test_the_rules_are_those_of_the_code() -> None:
    rule = of_kind(manifests(POSTGRES), "PrometheusRule")["cams-holdfast"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert CHART_RULES.read_text() == RULES.read_text()


def test_no_secret_can_be_given_as_a_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    settings = schema["definitions"]["settings"]["properties"]
    assert (
        not {"peer_secret", "peer_secret_also", "target_secrets", "prometheus_token", "metrics_token"}
        & settings.keys()
    )
    assert all("not" in settings[name] for name in SERVICES)
    assert not of_kind(manifests(POSTGRES), "Secret")
