"""Docker's registry of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from simulator.servers import programs
from simulator.servers.server import Server, exchange

USER, PASSWORD = "builder", "let-me-in"
_LOGIN = "builder:$2b$04$1Z7A6/2mTZK/VxfhFzyGmO0KOFGMSJ.WwqqoRpKsDNpLD.W/UcBt."
"""As htpasswd writes it."""


class DockerRegistryServer(Server):
    """A registry that keeps its blobs in its folder.

    Args:
        login: ask everybody for ``USER`` and ``PASSWORD``.
        token_realm: ask for a token that this URL issues, instead.
        token_certificates: file of the certificates whose tokens are believed.
    """

    name: ClassVar[str] = "docker-registry"

    def __init__(
        self, *, login: bool = False, token_realm: str = "", token_certificates: Path | None = None
    ) -> None:
        super().__init__()
        self._login = login
        self._token_realm = token_realm
        self._token_certificates = token_certificates

    def command(self) -> Sequence[str | Path]:
        lines = [
            "version: 0.1",
            "log: {level: info}",
            f"storage: {{filesystem: {{rootdirectory: '{self.data}'}}, delete: {{enabled: true}}}}",
            f"http: {{addr: '{self.address}', secret: not-so-secret}}",
        ]
        if self._login:
            (self.folder / "htpasswd").write_text(f"{_LOGIN}\n")
            lines.append(f"auth: {{htpasswd: {{realm: images, path: '{self.folder / 'htpasswd'}'}}}}")
        elif self._token_realm:
            lines += [
                "auth:",
                "  token:",
                f"    realm: {self._token_realm}",
                "    service: images",
                "    issuer: tests",
                f"    rootcertbundle: {self._token_certificates}",
            ]
        config = self.folder / "config.yml"
        config.write_text("\n".join(lines))
        return [programs.find(self.name), "serve", config]

    async def answers(self) -> bool:
        request = f"GET /v2/ HTTP/1.0\r\nHost: {self.address}\r\n\r\n"
        return (await exchange(self.port, request.encode())).startswith(b"HTTP/1.0 ")
