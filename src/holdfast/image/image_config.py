"""The config of an image: command, user and environment."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any

import holdfast
from holdfast.image.base import Base
from holdfast.image.contents import PATH, Facts
from holdfast.image.layer import Layer
from holdfast.image.packages import ROOT
from holdfast.image.platform import Platform

USER = "10001:10001"
PORT = 8750
PYTHON = f"/{ROOT}/bin/python"

_PROBE = (
    "import http.client,os,sys;"
    "c=http.client.HTTPConnection('127.0.0.1',int(os.environ['HOLDFAST_PORT']),timeout=2);"
    "c.request('GET','{path}');sys.exit(c.getresponse().status!=200)"
)
LIVE = [PYTHON, "-Ic", _PROBE.format(path="/healthz")]
READY = [PYTHON, "-Ic", _PROBE.format(path="/readyz")]
SECOND_NS = 1_000_000_000


def make(
    base: Base,
    facts: Facts,
    layers: Sequence[Layer],
    platform: Platform,
    *,
    app: str,
    search_path: str,
    version: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return the config. The base's environment, labels and history are kept; its command is replaced."""
    before = base.config.get("config") or {}
    variables = dict(each.partition("=")[::2] for each in before.get("Env") or [])
    path = variables.get("PATH") or PATH
    variables |= {
        "PATH": f"/{ROOT}/bin:{path.removeprefix(f'/{ROOT}/bin:')}",
        "HOME": "/tmp",  # noqa: S108 # the only folder that a user without a home can write to
        "PYTHONPATH": search_path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOLDFAST_PORT": str(PORT),
        "HOLDFAST_LOG_FORMAT": "json",
    }
    kept = {name: before[name] for name in ("Volumes", "ExposedPorts") if before.get(name)}
    own_labels = {
        **({"org.opencontainers.image.base.name": base.reference} if base.reference else {}),
        "org.opencontainers.image.base.digest": base.digest,
        "holdfast.app": app,
        "holdfast.version": holdfast.__version__,
        "holdfast.probe.live": "/healthz",
        "holdfast.probe.ready": "/readyz",
    }
    if version:
        own_labels["org.opencontainers.image.version"] = version
    created = _created()
    history = [*(base.config.get("history") or [])]
    return {
        **platform.document(),
        "created": created,
        "config": kept | {
            "User": USER,
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Entrypoint": [PYTHON, "-m", "holdfast"],
            "Cmd": ["node", app],
            "WorkingDir": "/app",
            "StopSignal": "SIGTERM",
            "Labels": (before.get("Labels") or {}) | own_labels | dict(labels),
            # Docker's alone; Kubernetes has its own probes.
            "Healthcheck": {
                "Test": ["CMD", *LIVE],
                "Interval": 10 * SECOND_NS,
                "Timeout": 3 * SECOND_NS,
                "StartPeriod": 30 * SECOND_NS,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in (*base.layers, *layers)]},
        "history": history + [
            {"created": created, "created_by": f"holdfast image build: {layer.what}"} for layer in layers
        ],
    }  # fmt: skip


def scaffold(facts: Facts) -> dict[str, bytes | str]:
    """Return the files of a virtual environment of the base's Python, by path; a text is a link's target."""
    home = facts.python.rpartition("/")[0]
    settings = f"home = {home}\ninclude-system-site-packages = false\nversion = 3.{facts.python_minor}\n"
    return {
        f"{ROOT}/pyvenv.cfg": settings.encode(),
        f"{ROOT}/bin/python": facts.python,
        f"{ROOT}/bin/python3": "python",
    }


def _created() -> str:
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    return dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
