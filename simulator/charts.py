"""The manifests that a Helm makes of the chart."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.servers import programs

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/holdfast"
EXAMPLES = sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))
HELMS = ("helm", "helm3")

Manifest = dict[str, Any]


def helm(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Helm."""
    command = [programs.find(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a Helm


def flags(values: Mapping[str, Any]) -> Iterator[str]:
    """Single values, by their dotted names, as Helm takes them."""
    for name, value in values.items():
        yield from ("--set-json", f"{name}={json.dumps(value)}")


@functools.cache
def _rendered(program: str, example: Path, more: tuple[str, ...]) -> str:
    made = helm(program, "template", "cams", CHART, "--namespace", "video", "--values", example, *more)
    assert made.returncode == 0, made.stderr
    return made.stdout


def manifests(example: Path, program: str = "helm", /, **values: Any) -> list[Manifest]:
    """Everything of an example with some values changed. ``nodes__replicas`` names nodes.replicas."""
    more = tuple(flags({name.replace("__", "."): value for name, value in values.items()}))
    return [found for found in yaml.safe_load_all(_rendered(program, example, more)) if found]


def refusal(example: Path, program: str = "helm", /, **values: Any) -> str:
    """What Helm says instead of making manifests."""
    more = flags({name.replace("__", "."): value for name, value in values.items()})
    made = helm(program, "template", "cams", CHART, "--values", example, *more)
    assert made.returncode != 0, made.stdout
    return made.stderr


def pods(found: list[Manifest]) -> dict[str, Manifest]:
    """The specifications of pods, by the name of what makes them."""
    makers = [each for each in found if each["kind"] in ("Deployment", "Job")]
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in makers}


def of_kind(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Those of one kind, by name."""
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def variables(pod: Manifest) -> dict[str, str]:
    """The plain variables of a pod's container."""
    return {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}
