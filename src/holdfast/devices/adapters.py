"""Opens the services of outboxes: the tables in the business's database, and the broker of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.devices.ports.broker import BROKERS, BrokerService
from holdfast.devices.ports.device import Connect
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import ConfigError
from holdfast.extend import extra, lookup

if TYPE_CHECKING:
    from holdfast.extend.products import Services


def open_outbox(services: Services) -> OutboxStore:
    """Open the tables of outboxes in the business's database. The caller closes them. Raises ConfigError
    without ``outbox_url``."""
    config = services.config
    if not config.outbox_url:
        raise ConfigError(
            "the app has an outbox: set outbox_url to the database that its commands are added in, such"
            " as 'sqlite:///office.db' or 'postgresql://user@host/office'"
        )
    with extra("outbox", "outbox_url"):
        from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox  # noqa: PLC0415
    access = None if services.reads_only else services.access
    return SqlOutbox(config.outbox_url, services.clock, durability=config.durability, access=access)


def shared_outbox(services: Services) -> OutboxStore:
    """Return the tables that all callers share, and that are closed with the services. Raises as
    :func:`open_outbox` does."""
    opening = services.opening("outbox_url", services.config.outbox_url)
    return opening.shared(("holdfast.devices.outbox",), lambda: open_outbox(services))


def open_devices(services: Services, spec: OutboxSpec) -> Connect:
    """Return a function that makes the devices of an outbox's shards, from ``devices_url``. Raises
    ConfigError."""
    url = services.config.devices_url
    return _broker(url).devices(url, spec, services.clock)


async def time_broker(services: Services) -> tuple[float, str]:
    """Measure how long a message takes to the broker and back. Return the median in milliseconds, and advice
    if that is too long, else an empty text. Raises ConfigError, Unavailable."""
    url = services.config.devices_url
    return await _broker(url).time_ms(url, services.clock)


def _broker(url: str) -> BrokerService:
    return lookup(BROKERS, "devices_url", url, BrokerService)
