"""Services in memory are tested in virtual time, as they are used."""

from tests.services.memory.conftest import clock, pytest_asyncio_loop_factories  # noqa: F401 (for pytest to find)
