"""What the pages and the API of a console have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.cluster.host import Host
from holdfast.cluster.view import View
from holdfast.console.access import Admission
from holdfast.console.assets import Assets
from holdfast.console.audit import AuditLog
from holdfast.console.events import Events
from holdfast.console.rendering import Renderer
from holdfast.console.tokens import Tokens
from holdfast.wiring import Services


@dataclass(frozen=True, kw_only=True)
class ConsoleParts:
    """The parts of one console.

    Attributes:
        services: the cluster's services.
        host: clock, log and background tasks.
        view: the living nodes.
        audit: every change is done within ``audit.doing``.
        events: tells browsers which topics have changed.
    """

    services: Services
    host: Host
    view: View
    tokens: Tokens
    access: Admission
    audit: AuditLog
    events: Events
    assets: Assets
    renderer: Renderer

    @property
    def clock(self) -> Any:
        return self.host.clock
