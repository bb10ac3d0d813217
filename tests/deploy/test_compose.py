"""The services of deploy/compose.yaml: their commands, settings and probes, as processes of this machine."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config.settings import Config
from holdfast.image.image_config import LIVE
from simulator.servers import PostgresqlServer
from simulator.servers.loopback import free_port
from simulator.servers.server import until

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
GIVEN = {
    "IMAGE": "doors:1",
    "APP": "doors:app",
    "POSTGRES_PASSWORD": "secret-of-postgres",
    "PEER_SECRET": "p" * 40,
}
OURS = ("migrate", "nodes", "gateway", "console")

APP = """
from holdfast import App

app = App("doors")


@app.stream("doors", key="door")
def doors(message, context):
    return message
"""


def substituted(text: str) -> str:
    """As Compose puts in variables: those given, or their default."""
    found = re.sub(
        r"(?<!\$)\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", lambda m: GIVEN.get(m[1]) or m[2] or "", text
    )
    return found.replace("$$", "$")


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(substituted(COMPOSE.read_text()))["services"]
    return found


def test_every_variable_of_compose_is_a_setting() -> None:
    for name in OURS:
        for variable in services()[name]["environment"]:
            known = variable.removeprefix("HOLDFAST_").lower() in Config.model_fields
            assert known or variable == "APP", f"{name} sets {variable}"


def test_nobody_is_root_and_nothing_is_written_but_below_tmp() -> None:
    for name in OURS:
        service = services()[name]
        assert service["user"] == "10001:10001"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_the_health_check_asks_where_a_service_listens() -> None:
    for name in ("gateway", "console"):
        service = services()[name]
        assert "healthcheck" not in service
        port = service["command"][service["command"].index("--port") + 1]
        assert service["environment"]["HOLDFAST_PORT"] == port


def test_objects_are_on_one_volume_that_their_user_may_write_to() -> None:
    for name in OURS:
        service = services()[name]
        place = service["environment"]["HOLDFAST_OBJECTS_URL"].removeprefix("file:")
        assert f"objects:{place}" in service["volumes"]
        assert not any(place.startswith(folder) for folder in service["tmpfs"]), "of each container alone"
    maker = services()["objects"]
    assert (maker["user"], maker["cap_drop"], maker["cap_add"]) == ("0:0", ["ALL"], ["CHOWN"])
    assert maker["network_mode"] == "none"
    assert "chown('/objects', 10001, 10001)" in maker["command"][0]
    for name in OURS[1:]:
        assert services()[name]["depends_on"]["objects"]["condition"] == "service_completed_successfully"


def test_postgres_counts_as_healthy_only_once_others_reach_it() -> None:
    """At its first start the image runs a server for itself alone, which its socket answers for."""
    probe = services()["postgres"]["healthcheck"]["test"]
    assert probe[:4] == ["CMD", "pg_isready", "--host", "127.0.0.1"]


def test_postgres_is_stopped_after_all_that_need_it_to_end() -> None:
    for name in OURS:
        assert services()[name]["depends_on"]["postgres"]["condition"] == "service_healthy"


class Here:
    """Runs the services on this machine: other addresses and folders, else as they stand."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.ports = {name: str(free_port()) for name in ("8750", "8080", "8090")}
        self._database = database
        self.processes: list[subprocess.Popen[bytes]] = []

    def _filled_in(self, text: str) -> str:
        text = text.replace("/opt/holdfast/bin/python", sys.executable).replace("$(hostname)", "127.0.0.1")
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/keys/", f"{self.folder}/")
        text = text.replace("file:/objects", f"file:{self.folder}/objects")
        for name, port in self.ports.items():
            text = text.replace(name, port)
        return text

    def start(self, name: str) -> subprocess.Popen[bytes]:
        service = services()[name]
        given = {key: self._filled_in(value) for key, value in service["environment"].items()}
        variables = given | {"HOLDFAST_URL": self._database}
        entry = service.get("entrypoint") or [sys.executable, "-m", "holdfast"]
        command = [self._filled_in(part) for part in (*entry, *service["command"])]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        process = subprocess.Popen(command, cwd=self.folder, env=kept | variables)
        self.processes.append(process)
        return process

    def healthy(self) -> bool:
        """What the nodes' own probe says."""
        probe = [self._filled_in(part) for part in services()["nodes"]["healthcheck"]["test"][1:]]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    async def answers(self, name: str) -> None:
        """The health check of the image succeeds in a service that has none of its own."""
        asked_port = {"HOLDFAST_PORT": self._filled_in(services()[name]["environment"]["HOLDFAST_PORT"])}

        async def asked() -> bool:
            probe = [sys.executable, *LIVE[1:]]
            ran = await asyncio.to_thread(subprocess.run, probe, env=os.environ | asked_port, check=False)
            return ran.returncode == 0

        await until(asked, f"the health check of {name} succeeds")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    (tmp_path / "doors.py").write_text(APP)
    server = PostgresqlServer()
    asyncio.run(server.start())
    started = Here(tmp_path, server.url)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.wait()
        asyncio.run(server.stop())


@pytest.mark.slow
def test_nodes_gateway_and_console_start_with_their_own_commands_and_end_on_sigterm(here: Here) -> None:
    holdfast = [sys.executable, "-m", "holdfast"]
    for made in (
        ["gateway-key", "camera-1", "--keys", "clients.keys"],
        ["console-token", "ann", "--tokens", "console.tokens"],
    ):
        subprocess.run([*holdfast, *made], cwd=here.folder, check=True, capture_output=True)
    assert here.start("migrate").wait(60) == 0
    node = here.start("nodes")
    others = [here.start("gateway"), here.start("console")]

    async def all_answer() -> None:
        async def healthy() -> bool:
            return await asyncio.to_thread(here.healthy)

        await until(healthy, "the node's probe succeeds")
        await here.answers("gateway")
        await here.answers("console")

    asyncio.run(all_answer())
    for process in (*others, node):
        process.terminate()
        assert process.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(here.ports["8750"]))) != 0


def test_the_containerfile_probes_as_built_images_do() -> None:
    assert LIVE[-1] in (ROOT / "deploy/Containerfile").read_text()
