"""What a test leaves in the checkout's root is found in that test."""

from pathlib import Path

import pytest

from tests import left_behind


def test_a_new_file_in_the_root_is_told_of_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.is_registered(left_behind)
    (tmp_path / "README.md").touch()
    known: set[str] = set()
    assert left_behind.left_behind(known, tmp_path) == ["README.md"]
    (tmp_path / ".pytest_cache").mkdir()
    (tmp_path / "holdfast.db").touch()
    assert left_behind.left_behind(known, tmp_path) == ["holdfast.db"]
    assert left_behind.left_behind(known, tmp_path) == []
