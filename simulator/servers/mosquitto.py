"""Mosquitto: an MQTT broker."""

from __future__ import annotations

import getpass
import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from simulator.servers import certificate, programs
from simulator.servers.loopback import HOST, free_port
from simulator.servers.server import Server, exchange

HELLO = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x05\x00\x00"
"""CONNECT of MQTT 3.1.1, without a client id. The answer may be a refusal; it is an answer."""
HASH_ROUNDS = 101


class MosquittoServer(Server):
    """A broker that keeps nothing over a restart, without limits of its own on what is under way.

    Args:
        nodelay: send at once what is small, as a broker for devices should; its own default is not to.
        tls: listen with TLS at ``port`` too; ``certificate`` and ``key`` are the files that clients may trust
            and, with ``client_certificates``, must show.
        users: names and passwords of who may connect; none: anybody.
        settings: further lines of its configuration.
    """

    name: ClassVar[str] = "mosquitto"

    def __init__(
        self,
        *,
        nodelay: bool = True,
        tls: bool = False,
        client_certificates: bool = False,
        users: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.plain_port = free_port() if tls else self.port
        self._nodelay = nodelay
        self._tls = tls
        self._client_certificates = client_certificates
        self._users = dict(users or {})
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        return f"mqtts://{self.address}?ca={self.certificate}" if self._tls else f"mqtt://{self.address}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    def command(self) -> Sequence[str | Path]:
        lines = {
            "user": getpass.getuser(),  # else it gives up root, and can't read its folder
            "set_tcp_nodelay": str(self._nodelay).lower(),
            "max_inflight_messages": "0",
            "max_queued_messages": "1000000",
            "persistence": "false",
            "allow_anonymous": str(not self._users).lower(),
        } | self._settings
        if self._users:
            lines["password_file"] = str(self._passwords())
        listeners = [f"listener {self.plain_port} {HOST}"]
        if self._tls:
            if not self.certificate.exists():
                certificate.make(self.folder)
            listeners += [
                f"listener {self.port} {HOST}",
                f"cafile {self.certificate}",
                f"certfile {self.certificate}",
                f"keyfile {self.key}",
                f"require_certificate {str(self._client_certificates).lower()}",
            ]
        conf = self.folder / "mosquitto.conf"
        conf.write_text("\n".join([*(f"{name} {value}" for name, value in lines.items()), *listeners, ""]))
        return [programs.find("mosquitto"), "-c", conf]

    async def answers(self) -> bool:
        return (await exchange(self.plain_port, HELLO)).startswith(b"\x20")

    def _passwords(self) -> Path:
        file = self.folder / "passwords"
        file.write_text("".join(f"{name}:{_hashed(password)}\n" for name, password in self._users.items()))
        file.chmod(0o600)
        return file


def _hashed(password: str) -> str:
    """As its file of passwords has them: PBKDF2 with SHA-512."""
    salt = os.urandom(12)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, HASH_ROUNDS)
    return f"$7${HASH_ROUNDS}${b64encode(salt).decode()}${b64encode(key).decode()}"
