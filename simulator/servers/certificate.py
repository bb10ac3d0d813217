"""A certificate for loopback that its own key signed."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from holdfast.errors import ConfigError
from simulator.servers.loopback import HOST

DAYS = 2


def make(folder: Path, named: str = "") -> tuple[Path, Path]:
    """Write a certificate, which is its own authority, and its key; returns their paths. It is for loopback,
    or only for the name ``named``. Raises ConfigError without the package cryptography."""
    try:
        from cryptography import x509  # noqa: PLC0415 (only servers with TLS need it)
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise ConfigError("a server with TLS needs the package cryptography: install it") from None

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Each has a subject of its own: where several are trusted, it says which one has signed.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"holdfast test server {serial:x}")])
    loopback: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(HOST)),
        x509.DNSName("localhost"),
    ]
    names = x509.SubjectAlternativeName([x509.DNSName(named)] if named else loopback)
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    private.chmod(0o600)
    return certificate, private
