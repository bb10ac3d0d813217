"""Clusters, a receiver of what their streams send, and the history that has the last release."""

import subprocess

import pytest

from tests.nodes.conftest import make_cluster, receiver
from tests.versions import released

__all__ = ["make_cluster", "receiver"]


@pytest.fixture(autouse=True, scope="session")
def history() -> None:
    asked = ["git", "-C", str(released.ROOT), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip() == "true":
        pytest.skip("a shallow clone doesn't have the commit of the last release: git fetch --unshallow")
