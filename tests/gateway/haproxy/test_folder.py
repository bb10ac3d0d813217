"""Where HAProxy's files are, and what becomes of those of gateways that were killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.gateway.haproxy.folder import Folder

PROGRAM = """
import sys, time
from holdfast.gateway.haproxy.folder import Folder
folder = Folder()
folder.hide("secret", "certificate")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_one_left_is_deleted_and_what_lives_is_not(place: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(place)},
        text=True,
    )
    with started:
        assert started.stdout is not None
        theirs = Path(started.stdout.readline().strip())
        assert theirs.parent == place
        foreign = place / "holdfast-gateway-of-somebody-else"
        foreign.mkdir()
        ours = Folder()
        assert theirs.exists()
        started.send_signal(signal.SIGKILL)
        started.wait()
    again = Folder()
    assert sorted(place.iterdir()) == sorted([ours.path, again.path, foreign])
    again.close()
    ours.close()
    assert list(place.iterdir()) == [foreign]


def test_a_secret_is_read_by_who_inherits_it_and_on_linux_stands_in_no_file() -> None:
    folder = Folder()
    path = folder.hide("secret", "certificate")
    for _ in range(2):
        told = subprocess.run(["cat", path], pass_fds=folder.descriptors, capture_output=True, check=True)
        assert told.stdout == b"secret"
    assert folder.hide("new", "certificate") == path
    told = subprocess.run(["cat", path], pass_fds=folder.descriptors, capture_output=True, check=True)
    assert told.stdout == b"new"
    assert sys.platform != "linux" or [file.name for file in folder.path.iterdir()] == ["lock"]
    folder.close()
