"""Devices as a product: their part of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.devices.spec import LABEL
from holdfast.errors import ConfigError
from holdfast.extend.products import Product

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.extend import Target
    from holdfast.extend.products import Host, NodePart, Services

TARGET_KIND = "outbox"


class DevicesProduct(Product):
    """Outboxes that ``App.outbox`` declares. Methods import late, because they are called for every app."""

    claim_label = LABEL
    operator = "holdfast.devices.operator:operator"

    def declared(self, app: App) -> list[str]:
        return [f"outbox {name}" for name in app.outboxes]

    def check(self, services: Services, app: App) -> None:
        from holdfast.extend.products import task_queue  # noqa: PLC0415

        others = {*app.streams, *(task_queue(app.name, name) for name in app.tasks)}
        for name, outbox in app.outboxes.items():
            if outbox.spec.briefs in others:
                raise ConfigError(
                    f"outbox {name!r}: briefs is {outbox.spec.briefs!r}, the queue of a stream or task of"
                    " this app; give it one that only briefs go to"
                )

    def queues(self, app: App) -> Mapping[str, float]:
        names = [outbox.spec.briefs for outbox in app.outboxes.values() if outbox.spec.briefs]
        if not names:
            return {}
        from holdfast.extend.products import BRIEF_VISIBILITY_S  # noqa: PLC0415

        return dict.fromkeys(names, BRIEF_VISIBILITY_S)

    def node_part(self, services: Services, app: App, host: Host) -> NodePart | None:
        """Return the outboxes of an app in a node, and their metrics."""
        if not app.outboxes:
            return None
        from holdfast.devices.adapters import open_devices, open_outbox  # noqa: PLC0415
        from holdfast.devices.metrics import OutboxMetrics  # noqa: PLC0415
        from holdfast.devices.work import DeviceWork  # noqa: PLC0415
        from holdfast.extend.products import NodePart  # noqa: PLC0415

        outboxes = [
            DeviceWork(
                host,
                outbox,
                open_outbox(services),
                open_devices(services, outbox.spec),
                app=app.name,
                briefs=services.queue(outbox.spec.briefs) if outbox.spec.briefs else None,
            )
            for outbox in app.outboxes.values()
        ]
        return NodePart(outboxes, [OutboxMetrics(outboxes)])

    def targets(self, services: Services, app: App, host: Host) -> Mapping[tuple[str, str], Target]:
        """Return the outboxes as targets of effects."""
        if not app.outboxes:
            return {}
        from holdfast.devices.adapters import shared_outbox  # noqa: PLC0415
        from holdfast.devices.target import OutboxTarget  # noqa: PLC0415

        store = shared_outbox(services)
        return {(TARGET_KIND, name): OutboxTarget(outbox, store) for name, outbox in app.outboxes.items()}


product = DevicesProduct()
