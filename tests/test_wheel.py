"""What ``pip install`` brings: the package, and nothing that only a checkout has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OF_CHECKOUTS = {"benchmarks", "deploy", "docs", "examples", "simulator", "tests", "tools"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of this code."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.iterdir())) as opened:
        yield opened


def imported(source: bytes) -> Iterator[str]:
    """Yield the top-level package of each import, the deferred ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(wheel: zipfile.ZipFile) -> None:
    folders = {name.partition("/")[0] for name in wheel.namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"holdfast"}


@pytest.mark.slow
def test_the_wheel_never_makes_pip_fetch_the_package_of_another_project(wheel: zipfile.ZipFile) -> None:
    (place,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    about = HeaderParser().parsestr(wheel.read(place).decode())
    needs = {re.split(r"[^\w.-]", need)[0] for need in about.get_all("Requires-Dist", [])}
    assert about["Name"] == "holdfast-streams"
    assert "aiohttp" in needs
    assert "holdfast" not in needs


@pytest.mark.slow
def test_nothing_in_the_wheel_imports_what_only_a_checkout_has(wheel: zipfile.ZipFile) -> None:
    modules = [name for name in wheel.namelist() if name.endswith(".py")]
    assert modules
    found = [
        f"{name}: {package}" for name in modules for package in OF_CHECKOUTS & set(imported(wheel.read(name)))
    ]
    assert found == []


@pytest.mark.slow
def test_commands_and_services_are_registered_for_modules_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    places = [line.partition(" = ")[2] for line in wheel.read(entry_points).decode().splitlines()]
    modules = {place.partition(":")[0] for place in places if place}
    files = set(wheel.namelist())
    missing = [
        module
        for module in modules
        if {f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")}.isdisjoint(files)
    ]
    assert missing == []
