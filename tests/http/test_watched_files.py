"""Whether files have changed."""

import time
from pathlib import Path

import pytest

from holdfast.http.watched_files import WatchedFiles


def test_who_asks_often_has_the_file_system_asked_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now = tmp_path / "file", [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    often, seldom = WatchedFiles(file), WatchedFiles(file, pause_s=1.0)
    assert (often.changed, seldom.changed) == (False, False)
    file.touch()
    assert (often.changed, seldom.changed) == (True, False)
    now[0] += 1.0
    assert (often.changed, seldom.changed) == (False, True)
    assert not seldom.changed
