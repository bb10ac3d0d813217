"""The TLS context of an address."""

from __future__ import annotations

import ssl

from holdfast.devices.services.mqtt.address import MqttAddress
from holdfast.errors import ConfigError


def tls_context(address: MqttAddress) -> ssl.SSLContext | None:
    """Return the TLS context of an address; None without TLS. Raises ConfigError if its files can't be
    used."""
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except OSError as error:
        raise ConfigError(f"{address}: the files of ca, cert and key can't be used: {error}") from None
    return context
