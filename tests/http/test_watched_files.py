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


def test_a_file_that_may_be_read_again_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(mode=0o000)
    watched, before = WatchedFiles(file), file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:  # the clock of the file system goes on in steps
        file.chmod(0o600)
    assert watched.changed
    assert not watched.changed
