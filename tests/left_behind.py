"""Tests work in folders of their own: a file that one leaves in the checkout's root is told of at once.

Where several processes test, it may be told of in a test that runs beside the one that left it.
"""

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

OF_TOOLS = re.compile(r"\..*|__pycache__|build|dist|.*\.egg-info")
"""What tools keep there."""

KNOWN = pytest.StashKey[set[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.stash[KNOWN] = set()
    left_behind(session.stash[KNOWN])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if told := left_behind(item.session.stash[KNOWN]):
        pytest.fail(f"left in {ROOT}: {', '.join(told)}", pytrace=False)


def left_behind(known: set[str], folder: Path = ROOT) -> list[str]:
    """Return what is new in the folder, in order, and add it to the names that are known."""
    new = {name for name in os.listdir(folder) if not OF_TOOLS.fullmatch(name)} - known  # noqa: PTH208 (each test)
    known |= new
    return sorted(new)
