"""A plugin of pytest: coverage notes what runs under the name of the test file that runs it.

Few examples of Hypothesis run: no branch may depend on the luck of a search.
"""

from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import coverage
import pytest
from hypothesis import settings

import holdfast.core

CORE = Path(*holdfast.core.__path__)


def note_under(name: str) -> None:
    """What runs from now on is noted under this name."""
    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(name)


def pytest_configure() -> None:
    """Import all of the core under no name: whoever came first would have run its definitions."""
    for path in CORE.glob("[!_]*.py"):
        import_module(f"holdfast.core.{path.stem}")
    settings.register_profile("few", max_examples=5, deadline=None)
    settings.load_profile("few")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    note_under(collector.path.stem)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    note_under(item.path.stem)
    return (yield)
