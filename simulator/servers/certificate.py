"""A certificate for loopback that its own key signed."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from holdfast.errors import ConfigError
from simulator.servers.loopback import HOST

DAYS = 2


def make(folder: Path) -> tuple[Path, Path]:
    """Write a certificate, which is its own authority, and its key; returns their paths. Raises ConfigError
    without the package cryptography."""
    try:
        from cryptography import x509  # noqa: PLC0415 (only servers with TLS need it)
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise ConfigError("a server with TLS needs the package cryptography: install it") from None

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast test server")])
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    )
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
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
