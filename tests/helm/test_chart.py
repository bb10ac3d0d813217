"""The chart, by Helm 3 and 4: each example and each value changed make what Kubernetes takes."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_validate.utils import schema_contents
from yarl import URL

from deploy.chart import CHART_RULES, SERVICES
from deploy.generate import RULES
from holdfast.config.settings import Config
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.cluster.placement import WorkLoad
from holdfast.wiring.services import Services
from simulator.charts import (
    CHART,
    EXAMPLES,
    HELMS,
    ROOT,
    Manifest,
    flags,
    helm,
    manifests,
    of_kind,
    pods,
    refusal,
    variables,
)

COSTS = {"deletionCosts.enabled": True}
PATIENCE_S = 60.0
KUBERNETES = ROOT / "docs/kubernetes.md"
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
    "console.podDisruptionBudget": [False],
    "console.podLabels": [{"a": "b"}],
    "console.podAnnotations": [{"a": "b"}],
    "networkPolicy.enabled": [False],
    "networkPolicy.gatewayFrom": [[{"podSelector": {}}]],
    "networkPolicy.consoleFrom": [[{"podSelector": {}}]],
    "networkPolicy.prometheusFrom": [[]],
    "networkPolicy.egress": [[{"ports": [{"port": 5432}]}]],
    "deletionCosts.enabled": [True],
    "deletionCosts.seconds": [60],
    "test": [{"resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}}],
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
    for name, test in of_kind(found, "Pod").items():
        closed(name, test["spec"])


def safe(name: str, pod: Manifest) -> None:
    """Nobody is root or writes to its image, each has its limits, and each that serves is asked how it is."""
    closed(name, pod)
    for container in pod["containers"]:
        if not name.endswith(("-migrate", "-costs")):
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            ready = "/healthz" if name.endswith("-console") else "/readyz"
            assert container["readinessProbe"]["httpGet"]["path"] == ready


def closed(name: str, pod: Manifest) -> None:
    """Nobody is root or writes to its image, and each has its limits."""
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
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounts <= {volume["name"] for volume in pod["volumes"]}
        assert not any("subPath" in mount for mount in container.get("volumeMounts", [])), "never updated"
    for variable in variables(pod):
        setting = variable.removeprefix("HOLDFAST_").lower()
        assert not variable.startswith("HOLDFAST_") or setting in Config.model_fields, variable


@pytest.mark.parametrize("program", HELMS)
@by_name
def test_helm_lint_finds_no_fault_in_any_example(program: str, example: Path) -> None:
    said = helm(program, "lint", "--strict", CHART, "--values", example)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("program", HELMS)
@by_name
def test_every_example_renders_to_valid_manifests(program: str, example: Path) -> None:
    valid(manifests(example, program))


@pytest.mark.nightly
def test_helm_3_and_4_make_the_same() -> None:
    for example in EXAMPLES:
        assert manifests(example, "helm") == manifests(example, "helm3")


@pytest.mark.nightly
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
    "name, value, error",
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
        ("settings.url", "postgresql://db/x?user=a&password=b", "url"),
        ("settings.trace_url", "https://traces.example.com/?api_key=b", "trace_url"),
        ("settings.objects_url", "file:/var/lib/objects", "settings.objects_url is file:/var/lib/objects"),
        ("settings.values_url", "file:/var/lib/values", "settings.values_url is file:/var/lib/values"),
        ("settings.renew_s", 6, "renew_s is 6 and ttl_s is 5"),
        ("settings", {"objects_url": "s3://x", "ttl_s": 3, "renew_s": 1.5}, "renew_s is 1.5 and ttl_s is 3"),
        ("nodes.autoscaling", {"kind": "hpa", "app": "a", "minReplicas": 21}, "minReplicas is 21, above"),
        ("nodes.resources", {"requests": {"memory": "3Gi"}}, "groups.main.resources: the request of memory"),
        ("nodes.resources", {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}, "the request of cpu"),
        ("gateway.resources", {"requests": {"memory": "1e9"}}, "gateway.resources: the request of memory"),
        ("nodes.volumes", [{"name": "tmp", "emptyDir": {}}], "volumes"),
        ("nodes.volumeMounts", [{"name": "x", "mountPath": "/dev/shm"}], "volumeMounts"),
        ("nodes.podLabels", {"holdfast/group": "x"}, "podLabels"),
        ("nodes.podLabels", {"a": 1}, "podLabels"),
        ("nodes.podLabels", {"a": "x" * 64}, "podLabels"),
        ("gateway.podLabels", {"app.kubernetes.io/instance": "x"}, "podLabels"),
        ("gateway.podAnnotations", {"a": True}, "podAnnotations"),
        ("gateway.service.port", 70000, "port"),
        ("image.tag", "latest", "tag"),
        ("groups", {"a": {"app": "a:app", "image": {"tag": "latest"}}}, "tag"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object, error: str) -> None:
    for program in HELMS:
        assert error in refusal(POSTGRES, program, **{name: value})


def examples_of_the_page() -> list[str]:
    """The values that the docs show."""
    return re.findall(r"^```yaml\n(.*?)^```", KUBERNETES.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", HELMS)
def test_the_values_that_the_docs_show_are_accepted(program: str, tmp_path: Path) -> None:
    shown = examples_of_the_page()
    assert any("groups:" in example for example in shown)
    for example in shown:
        (tmp_path / "values.yaml").write_text(example)
        made = helm(program, "template", "x", CHART, "-f", POSTGRES, "-f", tmp_path / "values.yaml")
        assert made.returncode == 0, made.stderr
        valid([each for each in yaml.safe_load_all(made.stdout) if each])


def test_a_console_that_believes_a_proxy_is_reached_by_that_alone() -> None:
    console = of_kind(manifests(SQS), "NetworkPolicy")["cams-holdfast-console"]["spec"]
    assert [list(each) for each in console["ingress"][0]["from"]] == [["namespaceSelector"]]
    for program in HELMS:
        assert "consoleFrom" in refusal(SQS, program, networkPolicy__consoleFrom=[])
        assert "networkPolicy" in refusal(SQS, program, networkPolicy__enabled=False)


def test_objects_in_files_are_on_a_volume_that_all_pods_share() -> None:
    shared = {"name": "objects", "persistentVolumeClaim": {"claimName": "objects"}}
    values = {"settings.objects_url": "file:/objects", "nodes.volumes": [shared]}
    valid(manifests(POSTGRES, **values))


def test_pods_connect_only_where_values_allow() -> None:
    allowed = [{"ports": [{"port": 5432}]}]
    policies = of_kind(manifests(POSTGRES, networkPolicy__egress=allowed), "NetworkPolicy")
    assert {name.rpartition("-")[2] for name in policies} == {"nodes", "gateway", "console", "migrate"}
    for policy in policies.values():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        names, ours, given = policy["spec"]["egress"]
        assert {each["port"] for each in names["ports"]} == {53}
        assert ours["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "cams"
        assert given == allowed[0]
    for policy in of_kind(manifests(POSTGRES), "NetworkPolicy").values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_a_test_asks_services_gateways_and_the_console() -> None:
    found = manifests(POSTGRES)
    (test,) = of_kind(found, "Pod").values()
    services, answers = test["spec"]["containers"]
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert services["args"] == ["doctor"]
    assert services["envFrom"] == [{"secretRef": {"name": "cameras"}}]
    _, *asked = answers["args"]
    assert set(of_kind(found, "Service")) == {URL(each).host for each in asked}
    assert [each.rpartition("/")[2] for each in asked] == ["healthz", "readyz"]
    assert not of_kind(manifests(SQLITE), "Pod")
    closed = manifests(POSTGRES, networkPolicy__gatewayFrom=[{"podSelector": {}}])
    _, tested = of_kind(closed, "NetworkPolicy")["cams-holdfast-gateway"]["spec"]["ingress"][0]["from"]
    assert tested["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


async def test_the_program_of_a_test_fails_where_something_does_not_answer(unused_tcp_port: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Host"] == "localhost"
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/readyz", answer)])
    (test,) = of_kind(manifests(POSTGRES), "Pod").values()
    program = test["spec"]["containers"][1]["args"][0]
    async with TestServer(app) as server:
        for urls, code in (
            ([str(server.make_url("/readyz"))], 0),
            ([str(server.make_url("/readyz")), f"http://127.0.0.1:{unused_tcp_port}/"], 1),
        ):
            asked = await asyncio.create_subprocess_exec(
                sys.executable, "-Ic", program, *urls, stderr=asyncio.subprocess.DEVNULL
            )
            assert await asked.wait() == code


async def test_pods_are_annotated_with_their_nodes_load(tmp_path: Path) -> None:
    costs: dict[str, str] = {}
    all_annotated = asyncio.Event()

    async def patch(request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        assert request.headers["Authorization"] == "Bearer of-the-costs"
        if (pod := request.match_info["pod"]) == "elsewhere":
            return web.Response(status=404)
        (costs[pod],) = (await request.json())["metadata"]["annotations"].values()
        if len(costs) == 3:
            all_annotated.set()
        return web.json_response({})

    loads = {
        "elsewhere": Load(),
        "idle": Load(),
        "streams": Load(streams=7),
        "tasks": Load(streams=1, works=(WorkLoad("tasks", slots=4, busy=2.0, handled=9),)),
    }
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with Services(Config(url=url)) as services:
        for name, load in loads.items():
            await services.coordinator().join(Member(name, name, "http://127.0.0.1:9", load), 600)
    (tmp_path / "token").write_text("of-the-costs")
    app = web.Application()
    app.add_routes([web.patch("/api/v1/namespaces/video/pods/{pod}", patch)])
    pod = pods(manifests(POSTGRES, **COSTS))["cams-holdfast-costs"]
    program, _, namespace, _, _ = pod["containers"][0]["args"]
    async with TestServer(app) as cluster:
        api = str(cluster.make_url("/")).rstrip("/")
        script = await asyncio.create_subprocess_exec(
            sys.executable, "-Ic", program, api, namespace, tmp_path, "30",
            env={"PATH": os.environ["PATH"], "HOLDFAST_URL": url},
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                await all_annotated.wait()
        finally:
            script.kill()
            await script.wait()
    assert costs == {"idle": "0", "streams": "7", "tasks": "2001"}


def test_only_the_pod_that_tells_costs_may_patch_pods() -> None:
    found = manifests(POSTGRES, **COSTS)
    (role,) = of_kind(found, "Role").values()
    (binding,) = of_kind(found, "RoleBinding").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    (subject,) = binding["subjects"]
    accounts = {name: pod["serviceAccountName"] for name, pod in pods(found).items()}
    assert [name for name, account in accounts.items() if account == subject["name"]] == [
        "cams-holdfast-costs"
    ]
    assert not of_kind(manifests(POSTGRES), "Role")


async def test_a_scaler_that_is_turned_on_begins_with_the_nodes_that_are_there() -> None:
    """Without a number Kubernetes would take one, when Helm takes away the one that stood there."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/apis/apps/v1":
            kind = {"name": "deployments", "kind": "Deployment", "namespaced": True, "verbs": ["get"]}
            return web.json_response(
                {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [kind]}
            )
        if request.path.endswith("/namespaces/video/deployments/cams-holdfast-main"):
            there = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "main"}}
            return web.json_response(there | {"spec": {"replicas": 7}})
        return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    async with TestServer(app) as cluster:
        for kind, replicas in (("hpa", 7), ("keda", 7), ("none", 3)):
            scaler = flags({"nodes.autoscaling": {"kind": kind, "app": "a"}})
            live = ("--dry-run=server", "--kube-apiserver", str(cluster.make_url("/")).rstrip("/"))
            given: list[str | Path] = ["--namespace", "video", "-f", POSTGRES, *live, *scaler]
            made = await asyncio.to_thread(helm, "helm3", "template", "cams", CHART, *given)
            assert made.returncode == 0, made.stderr
            found = [each for each in yaml.safe_load_all(made.stdout) if each]
            assert of_kind(found, "Deployment")["cams-holdfast-main"]["spec"]["replicas"] == replicas


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
        values = {} if drain_s is None else {"settings.drain_timeout_s": drain_s}
        pod = pods(manifests(POSTGRES, **values))["cams-holdfast-main"]
        longest_s = usual["receive_wait_s"].default + 2 * (drain_s or usual["drain_timeout_s"].default)
        assert pod["terminationGracePeriodSeconds"] == math.ceil(longest_s) + 15
        assert "lifecycle" not in pod["containers"][0], "SIGTERM drains"


def test_a_disruption_takes_one_pod_and_waits_for_none_that_is_unwell() -> None:
    budgets = of_kind(manifests(POSTGRES), "PodDisruptionBudget")
    assert budgets.keys() == {"cams-holdfast-main", "cams-holdfast-gateway", "cams-holdfast-console"}
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


def test_other_labels_select_a_release_in_prometheus() -> None:
    scaler = {"kind": "keda", "app": "a", "selector": 'cluster="north",job="nodes"'}
    found = manifests(POSTGRES, **{"nodes.autoscaling": scaler})
    (scaled,) = of_kind(found, "ScaledObject").values()
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
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
