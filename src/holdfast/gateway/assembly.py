"""Makes a gateway of the services that a config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cluster.limits import Limits
from holdfast.system.log import get_logger
from holdfast.wiring.services import Services, metrics_page_settings, peer_tls, revealed

if TYPE_CHECKING:
    from holdfast.gateway.clients import Clients
    from holdfast.gateway.haproxy.plane import HaproxyOptions
    from holdfast.gateway.listen import Tls
    from holdfast.gateway.service import Gateway


def make_gateway(
    services: Services,
    host: str,
    port: int,
    *,
    haproxy: HaproxyOptions | None = None,
    tls: Tls | None = None,
    access_log: bool = False,
    clients: Clients | None = None,
    no_auth: bool = False,
) -> Gateway:
    """A gateway for clients, not started yet; the rest is as
    :class:`~holdfast.gateway.service.Gateway` has it. Raises ConfigError."""
    from holdfast.cluster.host import Host  # noqa: PLC0415
    from holdfast.gateway.listen import GatewaySettings  # noqa: PLC0415
    from holdfast.gateway.service import Gateway  # noqa: PLC0415

    config = services.config
    log = get_logger(__name__)
    return Gateway(
        Host(services.coordinator(), services.peer(), services.clock, Limits.of(config), log, "gateway"),
        GatewaySettings(
            host=host,
            port=port,
            max_body_bytes=config.max_message_bytes,
            max_connections=config.max_connections,
            secret=revealed(config.peer_secret),
            peer_tls=peer_tls(config),
            tls=tls,
            access_log=access_log,
            foreign=config.foreign_streams == "forward",
            no_auth=no_auth,
            metrics=metrics_page_settings(config),
        ),
        haproxy=haproxy,
        clients=clients,
        push=lambda registry: services.metrics_push(registry, "holdfast-gateway"),
    )
