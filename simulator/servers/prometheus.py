"""Prometheus, and the tool that checks and tests its rules."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from simulator.servers import programs
from simulator.servers.server import ASK_TIMEOUT_S, Server, exchange

EVERY = "1s"


class PrometheusServer(Server):
    """A Prometheus that reads ``targets``, addresses such as ``127.0.0.1:8711``, once a second, as the job
    ``job``. ``rules`` are the text of a file of rules, which it evaluates as often."""

    name: ClassVar[str] = "prometheus"

    def __init__(self, targets: Sequence[str], rules: str, job: str = "holdfast") -> None:
        super().__init__()
        self._targets = targets
        self._rules = rules
        self._job = job

    def command(self) -> Sequence[str | Path]:
        (self.folder / "holdfast.rules.yml").write_text(self._rules)
        settings = {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": ["holdfast.rules.yml"],
            "scrape_configs": [
                {"job_name": self._job, "static_configs": [{"targets": [*self._targets]}]},
            ],
        }
        file = self.folder / "prometheus.yml"
        file.write_text(json.dumps(settings))  # which YAML reads as it is
        return [
            programs.find("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={self.data}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    async def answers(self) -> bool:
        request = f"GET /-/ready HTTP/1.0\r\nHost: {self.address}\r\n\r\n"
        return b"200 OK" in await exchange(self.port, request.encode())

    async def value(self, expr: str) -> dict[str, float]:
        """What an expression gives now, by the labels of each series, sorted, as ``{name="value"}``."""
        found = await self._asked(f"/api/v1/query?query={quote(expr)}")
        return {_labels(each["metric"]): float(each["value"][1]) for each in found["result"]}

    async def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire, or are about to: ``labels``, ``annotations`` and ``state`` of each."""
        alerts: list[dict[str, Any]] = (await self._asked("/api/v1/alerts"))["alerts"]
        return alerts

    async def _asked(self, path: str) -> dict[str, Any]:
        data: dict[str, Any] = await asyncio.to_thread(_fetched, f"http://{self.address}{path}")
        return data


def promtool(*arguments: str | Path) -> tuple[bool, str]:
    """Run promtool; returns whether it is content, and what it says."""
    command = [programs.find("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.returncode == 0, done.stdout + done.stderr


def _fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310
        return json.load(answer)["data"]


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
