"""The configuration as text, and that HAProxy takes it without a word."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.gateway.clients import Clients
from holdfast.gateway.haproxy.binary import Build, find
from holdfast.gateway.haproxy.config import ERRORS, HaproxyFiles, Settings, error_page, render
from holdfast.gateway.listen import GatewaySettings
from holdfast.system.clock import SystemClock
from tests.cluster.fakes import Log

OLD, NEW = Build("/x", (2, 8, 25)), Build("/x", (3, 2, 0), prometheus=True)


def settings(folder: Path, build: Build = OLD) -> Settings:
    return Settings(
        build=build,
        files=HaproxyFiles.of(folder, 1),
        gateway=GatewaySettings(host="", port=0, max_body_bytes=1000, no_auth=True),
        listeners=(3, 4),
        servers={"s1": "10.0.0.1:8300", "s2": None},
        connections_max=500,
    )


def backend(text: str, name: str) -> list[str]:
    """The lines of a backend."""
    (found,) = [section for section in text.split("\n\n") if section.startswith(f"backend {name}\n")]
    return [line.strip() for line in found.splitlines()]


@pytest.mark.parametrize("size", ["small", "large"])
def test_nodes_weigh_nothing_so_that_only_the_fallback_is_chosen(tmp_path: Path, size: str) -> None:
    text = render(settings(tmp_path))
    assert "server node 10.0.0.1:8300 weight 0" in backend(text, f"s1-{size}")
    assert "server node 127.0.0.1:1 disabled weight 0" in backend(text, f"s2-{size}")
    assert f"server fallback unix@{tmp_path}/fallback.sock weight 1" in backend(text, f"s2-{size}")
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("bind")] == ["bind fd@3", "bind fd@4"]


def test_a_refusal_is_asked_for_in_the_way_that_can_be_retried(tmp_path: Path) -> None:
    old, new = render(settings(tmp_path, OLD)), render(settings(tmp_path, NEW))
    assert "set-header X-Data-Plane no-421" in old
    assert " 425 503\n" in old
    assert "X-Data-Plane" not in new
    assert " 425 503 421\n" in new


def test_buffers_hold_what_is_to_be_sent_again(tmp_path: Path) -> None:
    larger = msgspec.structs.replace(settings(tmp_path), replay_bytes=1 << 20)
    assert "tune.bufsize 16384\n" in render(settings(tmp_path))
    assert f"tune.bufsize {(1 << 20) + 2048}\n" in render(larger)


def test_a_head_has_less_time_than_a_body(tmp_path: Path) -> None:
    defaults, frontend = render(settings(tmp_path)).split("\n\n")[1:3]
    assert "timeout http-request 30s" in defaults
    assert "timeout http-request 10s" in frontend


def test_numbers_are_told_where_it_can(tmp_path: Path) -> None:
    assert "prometheus" not in render(settings(tmp_path, OLD))
    assert "use-service prometheus-exporter" in render(settings(tmp_path, NEW))


@pytest.mark.parametrize(
    "more, serving",
    [
        ({}, {}),
        ({"clients": Clients(None, SystemClock(), Log(), per_s=5)}, {}),
        (
            {"replay_bytes": 1 << 20, "only": "-a_stream.of~mine"},
            {"secret": "s", "access_log": True, "no_auth": False},
        ),
    ],
)
def test_haproxy_takes_it_without_a_warning(
    tmp_path: Path, more: dict[str, object], serving: dict[str, Any]
) -> None:
    build = find()
    if build is None:
        pytest.skip("no HAProxy is here")
    made = settings(tmp_path, build)
    gateway = msgspec.structs.replace(made.gateway, **serving)
    made = msgspec.structs.replace(made, gateway=gateway, listeners=(), **more)
    for file in (
        made.files.routes,
        made.files.recent,
        made.files.refused,
        made.files.rates,
        *map(made.files.error, ERRORS),
    ):
        file.write_text(error_page(400) if "error" in file.name else "")
    text = render(made).replace("frontend clients", f"frontend clients\n    bind unix@{tmp_path}/c.sock")
    made.files.config.write_text(text)
    done = subprocess.run(
        [build.path, "-c", "-f", str(made.files.config)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("status", ERRORS)
def test_what_haproxy_answers_itself_is_a_problem(status: int) -> None:
    head, _, body = error_page(status).partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert f"Content-Length: {len(body)}\r\n" in head
    assert "Content-Type: application/problem+json\r\n" in head
    assert json.loads(body)["status"] == status
