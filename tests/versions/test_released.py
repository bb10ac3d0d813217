"""The wheel of the last release, which is built from its commit."""

import subprocess
from pathlib import Path

import pytest

from holdfast.operate.versions import OLDEST, release
from tests.versions import released


def test_this_version_runs_beside_the_last_release() -> None:
    assert release(released.version()) == release(OLDEST)


@pytest.mark.nightly
def test_the_environment_runs_the_wheel_and_not_the_code_under_test() -> None:
    program = "import holdfast; print(holdfast.__version__, holdfast.__file__)"
    result = subprocess.run([released.python(), "-c", program], capture_output=True, text=True, check=True)
    version, place = result.stdout.split()
    assert version == released.version()
    assert released.CACHE in Path(place).parents
