"""The port of brokers, which packages register by URL schemes."""

from __future__ import annotations

from holdfast.devices.ports.device import Connect
from holdfast.devices.spec import OutboxSpec
from holdfast.extend import Clock

BROKERS = "holdfast.devices"


class BrokerService:
    """Base class of brokers at URLs of some schemes (``devices_url``). A package registers an object of a
    subclass in the group :data:`BROKERS`, under each scheme.

    Attributes:
        example: a URL that the service serves, for error messages.
    """

    example = ""

    def devices(self, url: str, spec: OutboxSpec, clock: Clock) -> Connect:
        """Return a function that makes the :class:`Devices` of each shard of an outbox. Raises ConfigError
        for a wrong URL, and for an outbox that the broker can't serve."""
        raise NotImplementedError

    async def time_ms(self, url: str, clock: Clock) -> tuple[float, str]:
        """Measure how long a message takes to the broker and back. Return the median in milliseconds, and
        advice if that is too long, else an empty text. Raises ConfigError, Unavailable."""
        raise NotImplementedError
