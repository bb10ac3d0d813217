"""In virtual time where a module asks for it with ``VIRTUAL``."""

from tests.virtual_time import pytest_asyncio_loop_factories  # noqa: F401 (for pytest to find)
