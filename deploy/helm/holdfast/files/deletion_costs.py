"""Tells Kubernetes what ending each node would cost, so that scaling in takes those that do least.

Runs in the image of the app: ``python deletion_costs.py API NAMESPACE ACCOUNT PAUSE_S``. ``ACCOUNT`` is a
folder with the token and the authority of the API.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

TASK = 1000
"""How many streams a running task counts as: streams move in a moment, and a task may begin again from its
start."""

TIMEOUT_S = 10.0


def costs() -> dict[str, int]:
    """Return what ending each node would cost, by the name of its pod."""
    command = [sys.executable, "-m", "holdfast", "status", "--json"]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - as above
    nodes = json.loads(said.stdout)["nodes"]
    return {node["name"]: _cost(node["load"]) for node in nodes if not node["foreign"]}


def _cost(load: dict[str, Any]) -> int:
    tasks: float = sum(work["busy"] for work in load["works"] if work["kind"] == "tasks")
    streams: int = load["streams"]
    return streams + round(TASK * tasks)


def tell(api: str, namespace: str, account: Path, pod: str, cost: int) -> None:
    """Note the cost at a pod. What is no pod here is left alone."""
    request = urllib.request.Request(  # noqa: S310 - the API's own address
        f"{api}/api/v1/namespaces/{namespace}/pods/{pod}",
        json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}}).encode(),
        {
            "Authorization": f"Bearer {(account / 'token').read_text()}",
            "Content-Type": "application/merge-patch+json",
        },
        method="PATCH",
    )
    trusted = ssl.create_default_context(cafile=account / "ca.crt") if api.startswith("https:") else None
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted).close()  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise


def main(api: str, namespace: str, account: str, pause_s: str) -> None:
    """Tell the costs again and again, those that have changed."""
    told: dict[str, int] = {}
    while True:
        try:
            for pod, cost in costs().items():
                if told.get(pod) != cost:
                    tell(api, namespace, Path(account), pod, cost)
                    told[pod] = cost
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"costs could not be told: {error}\n")
        time.sleep(float(pause_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
