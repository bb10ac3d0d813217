"""Makes a gateway from a config."""

from __future__ import annotations

from holdfast.cluster.host import Host
from holdfast.cluster.limits import Limits
from holdfast.gateway.clients import Clients
from holdfast.gateway.haproxy.plane import HaproxyOptions
from holdfast.gateway.listen import GatewaySettings, Tls
from holdfast.gateway.service import Gateway
from holdfast.system.log import get_logger
from holdfast.wiring.services import Services, metrics_page_settings, peer_tls, revealed


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
    """Return a gateway that isn't started; for the arguments see :class:`~holdfast.gateway.service.Gateway`.
    Raises ConfigError."""
    config, log = services.config, get_logger(__name__)
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
