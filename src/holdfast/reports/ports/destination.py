"""The port for destinations of other URL schemes, which packages register."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.extend import Access, Clock, Meter
from holdfast.reports.deliver_credentials import Credential
from holdfast.reports.ports.sink import Sink

SINKS = "holdfast.sinks"


class SinkOpening(NamedTuple):
    """The arguments with which a sink is opened.

    Attributes:
        url: the URL of the destination. It is below the root of the credential.
        credential: the secrets for the destination.
        clock: the only source of time, chance and ids.
        meter: counts the calls to the service, or None.
        access: the modes of files and folders that are made on this machine.
    """

    url: str
    credential: Credential
    clock: Clock
    meter: Meter | None
    access: Access


class SinkService:
    """Base of the services that open destinations. An adapter's package registers an object of a subclass in
    the
    group :data:`SINKS`, under each URL scheme. Import client libraries inside the methods, not at the top of
    the module.

    Attributes:
        example: a URL that the service serves, for error messages.
    """

    example = ""

    def sink(self, opening: SinkOpening) -> Sink:
        """Return a sink for the destination. The sink connects at its first call. Raises ConfigError for a
        URL that is wrong or holds a password."""
        raise NotImplementedError

    def preload(self) -> None:
        """Import the libraries that the sinks need, so that slots which are forked later have them. Raises
        ConfigError if one isn't installed."""
