"""The service that URLs of web servers open as targets: ``https://hooks.example.com/alerts``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.extend import TargetOpening, TargetService, extra
from holdfast.extend.tools import redact_url

if TYPE_CHECKING:
    from holdfast.services.webhooks.webhook import Webhook

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class WebhookService(TargetService):
    """Web servers that take effects by POST."""

    example = "https://hooks.example.com/alerts"

    def check(self, url: str) -> None:
        problem = ""
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ConfigError(f"target is {redact_url(url)!r}: it isn't a URL ({error})") from None
        if "@" in parts.netloc:
            problem = "it holds a user, and webhooks are signed instead: put a secret into target_secrets"
        elif not parts.hostname:
            problem = "it names no host"
        elif parts.fragment:
            problem = "a part behind '#' is never sent to a web server; leave it out"
        elif not (url.isascii() and url.isprintable()) or " " in url:
            problem = "percent-encode what is not ASCII"
        if problem:
            raise ConfigError(f"target is {redact_url(url)!r}: {problem}; use a URL such as {self.example!r}")

    def target(self, opening: TargetOpening) -> Webhook:
        self.check(opening.url)
        parts = urlsplit(opening.url)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not opening.plain_http:
            raise ConfigError(
                f"target is {redact_url(opening.url)!r}: it has no TLS, and its host isn't this one; use"
                " https://, or set plain_http_targets to 'any'"
            )
        from holdfast.services.webhooks.webhook import Poster, Webhook, signers  # noqa: PLC0415

        with extra("webhooks", "target_secrets"):
            signing = signers(opening.secret)
        poster = opening.shared(("holdfast.webhooks",), lambda: Poster(opening.meter))
        return Webhook(opening.url, poster, opening.clock, signing)


service = WebhookService()
