"""Annotates each node's pod with the cost of ending it, so that a scaler ends the least busy nodes.

Runs in the image of the app: ``python deletion_costs.py API NAMESPACE ACCOUNT PAUSE_S``. ``ACCOUNT`` is a
folder with the API's token and certificate authority.
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
"""How many streams a running task counts as: streams move quickly, but a task may have to start again."""

TIMEOUT_S = 10.0


def costs() -> dict[str, int]:
    """Return the cost of ending each node, by the name of its pod."""
    command = [sys.executable, "-m", "holdfast", "status", "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - as above
    nodes = json.loads(result.stdout)["nodes"]
    return {node["name"]: _cost(node["load"]) for node in nodes if not node["foreign"]}


def _cost(load: dict[str, Any]) -> int:
    tasks: float = sum(work["busy"] for work in load["works"] if work["kind"] == "tasks")
    streams: int = load["streams"]
    return streams + round(TASK * tasks)


def annotate(api: str, namespace: str, account: Path, pod: str, cost: int) -> None:
    """Annotate a pod with its cost. Pods of other namespaces are skipped."""
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
    """Annotate the pods whose costs have changed, again and again."""
    annotated: dict[str, int] = {}
    while True:
        try:
            for pod, cost in costs().items():
                if annotated.get(pod) != cost:
                    annotate(api, namespace, Path(account), pod, cost)
                    annotated[pod] = cost
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"can't annotate pods with their costs: {error}\n")
        time.sleep(float(pause_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
