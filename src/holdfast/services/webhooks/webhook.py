"""A webhook: posts effects to a URL, signed as Standard Webhooks says (https://www.standardwebhooks.com)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from holdfast.errors import (
    Busy,
    ConfigError,
    EffectRefused,
    HoldfastError,
    LoginRefused,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.extend import Clock, Meter, OutgoingEffect
from holdfast.extend.tools import describe_http_error, redact, redact_url
from holdfast.registration.entry_points import DISTRIBUTION

if TYPE_CHECKING:
    from standardwebhooks.webhooks import Webhook as Signer

CONNECT_S = 10.0
ANSWER_S = 20.0
"""Seconds within which a server must answer completely."""

CALLS_AT_ONCE = 256
"""The most calls under way at once to hosts that answer."""
UNSURE_CALLS_AT_ONCE = 64
"""The most calls under way at once to hosts that didn't answer the last one. They have connections of their
own, so that no host that answers waits for them."""
CALLS_A_HOST = 16

HOSTS_MAX = 10_000
"""The most hosts that are remembered to have answered: handlers may make up any number of URLs."""

LATER = (408, 425, 429)
"""Statuses below 500 after which the same request may succeed."""

READ_BYTES = 4096
SHOWN_CHARS = 300
"""Characters of an answer that a dead letter shows."""

RETRY_AFTER_MAX_S = 300.0


def signers(secret: str) -> list[Signer]:
    """Make a signer for each secret in ``secret``, which are separated by spaces. Raises ConfigError."""
    if not secret:
        return []
    from standardwebhooks.webhooks import Webhook as Signer  # noqa: PLC0415 - not all webhooks are signed

    try:
        return [Signer(each) for each in secret.split()]
    except Exception:  # noqa: BLE001 - its text may hold the secret
        raise ConfigError(
            "a secret of a webhook in target_secrets is 'whsec_' and base64, or several of these, separated"
            " by spaces"
        ) from None


class Poster:
    """The connections of all webhooks of a process."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._answering: dict[str, None] = {}
        """The hosts that have answered their last call."""
        self._closed = False

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, str]:
        """Post a body; returns the status of the answer, its ``Retry-After`` or ``Location``, and the
        beginning of its text. Raises LoginRefused, Unavailable, OutcomeUnknown."""
        host = urlsplit(url).netloc
        try:
            answer = await self._post(self._session(answers=host in self._answering), url, body, headers)
        except HoldfastError:
            self._answering.pop(host, None)
            raise
        if len(self._answering) >= HOSTS_MAX:
            self._answering.clear()
        self._answering[host] = None
        return answer

    async def _post(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, str, str]:
        name = f"webhook {redact_url(url)}"
        self._meter.count("webhook", "POST")
        try:
            async with session.post(
                URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = await _beginning(answer)
                header = answer.headers.get("Retry-After", "") or answer.headers.get("Location", "")
                return answer.status, header, text
        except aiohttp.ClientConnectorCertificateError as error:
            raise LoginRefused(
                f"{name}: its certificate is not trusted: {describe_http_error(error)}"
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(f"{name}: {describe_http_error(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise OutcomeUnknown(f"{name}: {describe_http_error(error)}") from error

    async def close(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            await session.close()

    def _session(self, *, answers: bool) -> aiohttp.ClientSession:
        """Return the connections of hosts that have answered their last call, or of the others."""
        if self._closed:
            raise Unavailable("the connections to webhooks are closed")
        if answers not in self._sessions:
            limit = CALLS_AT_ONCE if answers else UNSURE_CALLS_AT_ONCE
            self._sessions[answers] = aiohttp.ClientSession(
                headers={"User-Agent": f"holdfast/{version(DISTRIBUTION)}"},
                connector=aiohttp.TCPConnector(limit=limit, limit_per_host=CALLS_A_HOST),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=CONNECT_S + ANSWER_S, connect=CONNECT_S, sock_read=ANSWER_S
                ),
            )
        return self._sessions[answers]


async def _beginning(answer: aiohttp.ClientResponse) -> str:
    """Return the beginning of an answer's text. It is empty if it can't be read: the status shows the
    outcome."""
    try:
        return (await answer.content.read(READ_BYTES)).decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return ""


class Webhook:
    """The target at one URL. ``signing`` is what signs; without any, effects are posted unsigned."""

    max_batch = 1
    ordered = False

    def __init__(self, url: str, poster: Poster, clock: Clock, signing: Sequence[Signer] = ()) -> None:
        self._url = url
        self._poster = poster
        self._clock = clock
        self._signing = signing

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        """See Target.take. An answer of 2xx means that the effect is taken. ``LATER``, 5xx and no answer mean
        that it may be taken later. Any other answer means that it never is."""
        for effect in effects:
            headers = self._headers(effect)
            self._judge(*await self._poster.post(self._url, effect.body, headers))

    def _headers(self, effect: OutgoingEffect) -> dict[str, str]:
        at = int(self._clock.wall())
        headers = {
            "Content-Type": "application/json" if _is_json(effect.body) else "application/octet-stream",
            "webhook-id": effect.id,
            "webhook-timestamp": str(at),
        }
        if effect.traceparent:
            headers["traceparent"] = effect.traceparent
        if self._signing:
            try:
                text = effect.body.decode()
            except UnicodeDecodeError:
                raise EffectRefused(
                    "the body of a signed webhook must be JSON or UTF-8 text; send bytes as base64"
                ) from None
            signed = [
                signer.sign(effect.id, datetime.fromtimestamp(at, UTC), text) for signer in self._signing
            ]
            headers["webhook-signature"] = " ".join(signed)
        return headers

    def _judge(self, status: int, header: str, text: str) -> None:
        if 200 <= status < 300:
            return
        reason = f"webhook {redact_url(self._url)} answered {status}{_shown(text)}"
        if status in LATER or status >= 500:
            wait_s = self._wait_s(header)
            raise Busy(reason, wait_s) if wait_s else Unavailable(reason)
        if 300 <= status < 400:
            reason = f"{reason}; redirects are not followed: send to {redact_url(header) or 'the right URL'}"
        raise EffectRefused(reason)

    def _wait_s(self, header: str) -> float:
        """Return the seconds in a header ``Retry-After``, which holds them or a date; 0 for none."""
        try:
            wait_s = float(header) if header[:1].isdigit() else _date(header) - self._clock.wall()
        except (ValueError, OverflowError):
            return 0.0
        return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S) if math.isfinite(wait_s) else 0.0


def _date(header: str) -> float:
    return parsedate_to_datetime(header).timestamp()


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _shown(text: str) -> str:
    words = " ".join(redact(text).split())
    if len(words) > SHOWN_CHARS:
        words = f"{words[:SHOWN_CHARS]}…"
    return f": {words}" if words.isprintable() and words else ""
