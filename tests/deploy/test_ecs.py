"""The task of deploy/ecs-task.json: its settings, command and probe, as a process of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.settings import Config
from simulator.servers.loopback import free_port
from simulator.servers.server import until

TASK: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy/ecs-task.json").read_text())
[NODE] = TASK["containerDefinitions"]
APP = """
from holdfast import App

app = App("cameras")


@app.stream("frames", key="camera")
def frames(message, context):
    return message
"""


def test_every_variable_is_a_setting_and_no_secret_stands_in_the_file() -> None:
    plain = {each["name"]: each["value"] for each in NODE["environment"]}
    secret = {each["name"] for each in NODE["secrets"]}
    for name in {*plain, *secret} - {"AWS_REGION"}:
        assert name.removeprefix("HOLDFAST_").lower() in Config.model_fields, name
    assert {"HOLDFAST_URL", "HOLDFAST_PEER_SECRET"} <= secret


def test_it_is_stopped_later_than_its_drain_may_take() -> None:
    drain_s = next(
        float(each["value"]) for each in NODE["environment"] if each["name"] == "HOLDFAST_DRAIN_TIMEOUT_S"
    )
    assert drain_s < NODE["stopTimeout"] <= 120, "Fargate waits for 120 s at most"


@pytest.mark.nightly
def test_the_node_starts_with_its_own_command_is_found_healthy_and_ends_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text(APP)
    port = str(free_port())

    def filled_in(text: str) -> str:
        text = text.replace("/opt/holdfast/bin/python", sys.executable).replace(
            "myproject.streams", "streams"
        )
        return (
            text.replace("0.0.0.0", "127.0.0.1")
            .replace("8750", port)
            .replace("hostname -i", "echo 127.0.0.1")
        )

    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    given = {"HOLDFAST_URL": f"sqlite:///{tmp_path}/holdfast.db", "HOLDFAST_DRAIN_TIMEOUT_S": "90"}
    command = [filled_in(part) for part in (*NODE["entryPoint"], *NODE["command"])]
    node = subprocess.Popen(command, cwd=tmp_path, env=kept | given)
    probe = [filled_in(part) for part in NODE["healthCheck"]["command"][1:]]

    async def healthy() -> bool:
        ran = await asyncio.to_thread(subprocess.run, probe, capture_output=True, check=False)
        return ran.returncode == 0

    try:
        asyncio.run(until(healthy, "its probe succeeds"))
        node.terminate()
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
