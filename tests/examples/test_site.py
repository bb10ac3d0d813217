"""The example of a site, played as a reader of the docs would."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_all_five_parts_of_the_site_do_their_work() -> None:
    played = subprocess.run(
        [sys.executable, "-m", "examples.site_demo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
    _, *lines = played.stdout.splitlines()
    found = sorted(tuple(line.split(maxsplit=1)) for line in lines)
    (task, report) = next(line for line in found if line[0] == "task")
    assert found == [
        ("outbox", "door-1 has opened for ada"),
        ("stream", "harbour has counted 3 people"),
        (task, report),
        ("timer", "cam-1 has been silent for 2 s"),
        ("timer", "cam-2 has been silent for 2 s"),
        ("webhook", "the alert of cam-1 has come, with the right signature"),
        ("webhook", "the alert of cam-2 has come, with the right signature"),
    ]
    assert report.startswith("harbour, ")
    assert report.endswith(": 3 people: ada, grace, mallory")
