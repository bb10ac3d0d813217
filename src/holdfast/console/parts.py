"""The parts that the pages and the API of a console have in common."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cluster.host import Host
from holdfast.cluster.view import View
from holdfast.console.access import Admission
from holdfast.console.assets import Assets
from holdfast.console.attention import Attention
from holdfast.console.audit import AuditLog
from holdfast.console.caching import PartCache
from holdfast.console.events import Events
from holdfast.console.index import StreamIndex
from holdfast.console.life import StreamEvents
from holdfast.console.overview import Overview
from holdfast.console.rendering import Renderer
from holdfast.console.tokens import Tokens
from holdfast.ports.clock import Clock
from holdfast.wiring.services import Services


@dataclass(frozen=True, kw_only=True)
class ConsoleParts:
    """The parts of one console.

    Attributes:
        services: the cluster's services.
        host: clock, log and background tasks.
        view: the living nodes.
        audit: the audit log; every change is done within ``audit.doing``.
        events: the events for browsers.
        attention: call ``asked`` in each page that shows what the cluster does.
        index: all streams.
        cache: parts of pages, for many requests.
        life: the events of streams.
    """

    services: Services
    host: Host
    view: View
    tokens: Tokens
    access: Admission
    audit: AuditLog
    events: Events
    attention: Attention
    index: StreamIndex
    life: StreamEvents
    overview: Overview
    assets: Assets
    renderer: Renderer
    cache: PartCache

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self.host.clock
