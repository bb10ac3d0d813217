"""Brokers of devices by the scheme of ``devices_url``, as packages register them."""

from __future__ import annotations

from holdfast.devices.ports.device import Connect
from holdfast.devices.spec import OutboxSpec
from holdfast.extend import Clock

BROKERS = "holdfast.devices"


class BrokerService:
    """Serves the ``devices_url`` of some schemes. An adapter's package registers an object of a subclass in
    the group :data:`BROKERS`, under each scheme.

    Attributes:
        example: a URL that it serves, for errors to name.
    """

    example = ""

    def devices(self, url: str, spec: OutboxSpec, clock: Clock) -> Connect:
        """What makes the devices of each shard of an outbox. Raises ConfigError for a URL that can't be, and
        for an outbox that it can't serve; connects to nothing."""
        raise NotImplementedError

    async def time_ms(self, url: str, clock: Clock) -> tuple[float, str]:
        """How long a message takes to the broker and back, the median in milliseconds, and what to do about
        it, if anything. Raises ConfigError, Unavailable."""
        raise NotImplementedError
