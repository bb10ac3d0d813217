"""``holdfast new``."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__ as version
from holdfast.config.settings import Config
from tests.cli.test_node import PATIENCE_S, Process


@pytest.mark.slow
def test_a_new_project_passes_its_test_and_runs(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = holdfast("new", "water-meters")
    assert written.code == 0
    assert "holdfast dev water_meters:app" in written.out
    project = place / "water-meters"
    monkeypatch.chdir(project)
    assert set(tomllib.loads(Path("holdfast.toml").read_text())) <= set(Config.model_fields)
    about = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert about["name"] == "water-meters"
    assert about["dependencies"] == [f"holdfast-streams>={version}"]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        check=False,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "2 passed" in tested.stdout, tested.stdout
    node = Process("water_meters:app", "--set", "slots=1", as_users_do=True)
    try:
        node.wait_for("node runs")
        # As its README has it.
        assert holdfast("send", "readings", '{"meter": "m1", "number": 0, "kwh": 1.5}').code == 0
        (line,) = holdfast("results", "--follow", "--limit", "1").lines
        assert line["result"] == 1.5
        assert node.end() == 0
    finally:
        node.child.kill()
        node.join()


def test_a_new_project_overwrites_nothing_that_is_there(holdfast: Any, place: Path) -> None:
    (place / "meters").mkdir()
    (place / "meters/README.md").write_text("mine")
    refused = holdfast("new", "meters")
    assert refused.code == 2
    assert "meters already exists" in refused.err
    assert [file.name for file in (place / "meters").iterdir()] == ["README.md"]
    assert (place / "meters/README.md").read_text() == "mine"
    (place / "file").touch()
    assert holdfast("new", "file").code == 2
    assert holdfast("new", "file/below").code == 2


def test_a_folder_that_is_empty_or_deep_will_do(holdfast: Any, place: Path) -> None:
    (place / "empty").mkdir()
    assert holdfast("new", "empty").code == 0
    assert holdfast("new", "deep/meters").code == 0
    assert (place / "deep/meters/meters.py").exists()


@pytest.mark.parametrize("name", ["2cameras", "my project", "class", "json", "holdfast", "müll", "."])
def test_a_name_that_can_not_be_imported_is_refused(holdfast: Any, place: Path, name: str) -> None:
    refused = holdfast("new", name)
    assert refused.code == 2
    assert "name" in refused.err
    assert list(place.iterdir()) == []
