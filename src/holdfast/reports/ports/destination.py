"""Destinations by the scheme of their URL, as packages register them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.extend import Access, Clock, Meter
from holdfast.reports.deliver_credentials import Credential
from holdfast.reports.ports.sink import Sink

SINKS = "holdfast.sinks"


class SinkOpening(NamedTuple):
    """What a destination's service is told when a connection to it is made.

    Attributes:
        url: the destination's, which lies below the credential's root.
        credential: what opens it.
        clock: the only source of time, chance and ids.
        meter: counts the calls to the service; None where nobody counts.
        access: the modes of files that are made on this machine.
    """

    url: str
    credential: Credential
    clock: Clock
    meter: Meter | None
    access: Access


class SinkService:
    """Serves the destinations of some URL schemes. An adapter's package registers an object of a subclass in
    the group :data:`SINKS`, under each scheme. Import client libraries in its methods, not at the top of the
    module.

    Attributes:
        example: a URL that it serves, for errors to name.
    """

    example = ""

    def sink(self, opening: SinkOpening) -> Sink:
        """A connection to the destination, not made yet. Raises ConfigError for a URL that can't be, or that
        holds a password."""
        raise NotImplementedError

    def preload(self) -> None:
        """Import the libraries that it needs, for slots that are forked afterwards to have them. Raises
        ConfigError where one isn't installed."""
