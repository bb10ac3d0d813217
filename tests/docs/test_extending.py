"""The package of the page on extending Holdfast, installed as another's would be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config import load
from holdfast.errors import ConfigError
from holdfast.extend import Service
from holdfast.wiring import Services
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "extending.md"


def install(folder: Path, entry_points: str, package: str = "crates") -> None:
    """As pip would: metadata beside the code."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


@pytest.mark.slow
def test_streams_run_on_the_backend_of_another_package(tmp_path: Path) -> None:
    """And it passes the suite of its port."""
    files = []
    for block in blocks(PAGE, "python"):
        title = re.match(r"# (\w+\.py)\n", block.text)
        assert title, "say in a comment which file it is"
        (tmp_path / title[1]).write_text(block.text)
        files.append(title[1])
    declared = blocks(PAGE, "ini")[0]
    name, value = re.findall(r'^(\w+) = "(.+)"$', declared.text, re.MULTILINE)[0]
    install(tmp_path, f"[holdfast.services]\n{name} = {value}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files[1:]],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stdout


class OfAnother(Service):
    """A service that offers nothing."""


not_a_service = object()


@pytest.mark.parametrize(
    "registered, said",
    [
        (f"{__name__}:OfAnother", "no holdfast.extend.Service"),
        (f"{__name__}:not_a_service", "no holdfast.extend.Service"),
        ("no_such_module:service", "registered as 'other' in holdfast.services, can't be imported"),
        (f"{__name__}:missing", "can't be imported"),
    ],
)
async def test_what_is_registered_wrongly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: str, said: str
) -> None:
    install(tmp_path, f"[holdfast.services]\nother = {registered}\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here"})) as services:
        with pytest.raises(ConfigError, match=re.escape(said)):
            services.state()


async def test_two_packages_for_one_scheme_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("one", "two"):
        install(tmp_path, f"[holdfast.services]\nother = {package}:service\n", package)
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here"})) as services:
        with pytest.raises(ConfigError, match="one:service and two:service are both registered as 'other'"):
            services.state()


async def test_our_own_schemes_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "[holdfast.services]\nsqlite = no_such_module:service\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with Services(load()) as services:
        assert type(services.state()).__name__ == "SqliteState"


async def test_a_service_without_the_port_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offers_nothing.py").write_text("from holdfast.extend import Service\nservice = Service()\n")
    install(tmp_path, "[holdfast.services]\nother = offers_nothing:service\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here", "queue_url": "other://"})) as services:
        with pytest.raises(ConfigError, match="state_url is 'other://here': nothing serves that"):
            services.state()
        assert await services.filled_queues() == []
        assert services.queue_setup() is None


def test_a_command_of_another_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "greets.py").write_text('def greet(name: str) -> None:\n    print("hello", name)\n')
    install(tmp_path, "[holdfast.commands]\ngreet = greets:greet\n", "greets")
    said = subprocess.run(
        [sys.executable, "-m", "holdfast", "greet", "world"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "hello world\n"
