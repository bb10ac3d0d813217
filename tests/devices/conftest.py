"""The outbox ``doors`` in a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.config.settings import Config
from holdfast.devices.adapters import open_outbox
from holdfast.devices.ports.outbox import OutboxStore, WriterSettings
from holdfast.wiring.services import Services
from tests.console.chromium import chromium

__all__ = ["chromium"]


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """Services with a database of commands."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with Services(Config(url=url, outbox_url=f"sqlite:///{tmp_path}/office.db")) as opened:
        yield opened


@pytest.fixture
async def store(services: Services) -> AsyncIterator[OutboxStore]:
    """The outbox ``doors``, as a node makes it."""
    opened = open_outbox(services)
    await opened.prepare("doors", 3, WriterSettings(lanes=1, expires_in_s=60.0, max_body=1_000))
    yield opened
    await opened.close()
