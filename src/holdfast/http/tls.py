"""TLS of servers, and between nodes. Changed files are reloaded, so that certificates are renewed without a
restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast.http.watched_files import LOOK_S, WatchedFiles
from holdfast.system.log import get_logger

log = get_logger(__name__)

NO_TLS = "its address is not https://; set peer_tls_cert, peer_tls_key and peer_tls_ca on every node"
"""The reason why a node with TLS doesn't call one without: secret and messages would be sent unencrypted."""


def tls_server(cert: Path, key: Path, named: str) -> ssl.SSLContext:
    """Return the TLS context of a server with a certificate and its key. New connections get the present
    contents of the files, or the last valid ones. Raises ConfigError, which calls them ``named``."""
    files = WatchedFiles(cert, key, pause_s=LOOK_S)
    first = newest = _with_certificate(cert, key, named)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal newest
        if files.changed:
            try:
                newest = _with_certificate(cert, key, named)
            except ConfigError as error:
                log.error("cannot reload certificate", error=str(error))
            else:
                log.info("certificate read again", cert=str(cert))
        connection.context = newest

    first.sni_callback = renew  # is called for every connection, whether a name is asked for or not
    return first


def _with_certificate(cert: Path, key: Path, named: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # an SSLError is an OSError
        raise ConfigError(f"{named} must be a certificate and its key: {error}") from None
    return context


class PeerTls(msgspec.Struct, frozen=True):
    """TLS between nodes: the certificate of this node with its chain and key, and the authority of all, in
    PEM form. Certificates are for the addresses of nodes, or all for ``name`` if given."""

    cert: Path
    key: Path
    ca: Path
    name: str | None = None

    def server(self) -> ssl.SSLContext:
        """Return the context of the called side. Raises ConfigError."""
        return tls_server(self.cert, self.key, f"peer_tls_cert {self.cert} and peer_tls_key {self.key}")

    def authorities(self) -> str:
        """Return the certificates of the authority. Raises ConfigError if its file has none."""
        try:
            text = self.ca.read_text("ascii", "ignore")  # only comments have other letters
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"peer_tls_ca {self.ca} must be certificates: {error}") from None
        return text


class PeerTrust:
    """The trust of a calling node: only certificates of the authority, for the called address or the common
    name. An authority that is added to the file is trusted at once; a removed one until the restart. Raises
    ConfigError for a file without authorities."""

    def __init__(self, tls: PeerTls) -> None:
        self._tls = tls
        self._files = WatchedFiles(tls.ca, pause_s=LOOK_S)
        # Without certificates this would be the context that trusts all public authorities.
        self.context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=tls.authorities())

    def look(self) -> None:
        """Read the file again if it has changed."""
        if self._files.changed:
            try:
                self.context.load_verify_locations(cadata=self._tls.authorities())
            except ConfigError as error:
                log.error("cannot reload authorities", error=str(error))
