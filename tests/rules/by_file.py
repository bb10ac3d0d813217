"""A plugin of pytest: coverage notes what runs under the name of the test file that runs it.

Few examples of Hypothesis run: no branch may depend on the luck of a search.
"""

from collections.abc import Generator
from importlib import import_module

import coverage
import pytest
from hypothesis import settings

from tests.rules.modules import MODULES, TESTS


def note_under(name: str) -> None:
    """What runs from now on is noted under this name."""
    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(name)


def pytest_configure() -> None:
    """Import all of the rules under no name: whoever came first would have run its definitions."""
    for module in MODULES:
        import_module(module)
    settings.register_profile("few", max_examples=5, deadline=None)
    settings.load_profile("few")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    note_under(str(collector.path.relative_to(TESTS)) if collector.path.is_relative_to(TESTS) else "")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    note_under(str(item.path.relative_to(TESTS)))
    return (yield)
