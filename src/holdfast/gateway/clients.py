"""The clients that may use a gateway: their names, their keys, and their request rates.

A line of the key file may end with the number of requests per second of its client. The file is read again
when it changes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from holdfast.common.rate import Limiter, Rate
from holdfast.errors import Busy, ConfigError
from holdfast.http import problem
from holdfast.http.key_file import KeyFile, digest_of
from holdfast.http.problem import RequestRefused
from holdfast.http.serving import Handler, shown_key
from holdfast.http.watched_files import LOOK_S
from holdfast.ports.clock import Clock

OPEN_PATHS = ("/healthz", "/readyz", "/openapi.json")
"""The paths that need no key."""

RATE_MAX = 1_000_000

KEYS = "the keys of clients"
FORM = "write NAME DIGEST, or NAME DIGEST REQUESTS_PER_S; `holdfast gateway-key` writes such lines"


class GatewayClient(msgspec.Struct, frozen=True):
    """A client. ``per_s`` is its limit in requests per second; None for the gateway's default."""

    name: str
    digest: str
    per_s: int | None = None


class Clients:
    """The clients of one gateway. ``news``, if set, is called when they change.

    Args:
        file: the key file; None if clients need no keys.
        per_s: the limit of a client without its own, in requests per second; 0 for no limit. If clients need
            no keys, each address counts as a client, and each /64 of IPv6.
    """

    def __init__(self, file: Path | None, clock: Clock, log: Any, *, per_s: int = 0) -> None:
        self._file = None if file is None else KeyFile(file, KEYS)
        self._clock = clock
        self._log = log
        self.per_s = per_s
        self._by_digest: dict[str, GatewayClient] = {}
        self.limiter = Limiter(None)
        self.news: Callable[[], None] | None = None
        if self._file is not None:
            self._by_digest = self._file.read(_client, FORM)
        self._limit()

    def __iter__(self) -> Iterator[GatewayClient]:
        return iter(self._by_digest.values())

    @property
    def need_keys(self) -> bool:
        """True if clients must show keys."""
        return self._file is not None

    @property
    def limits(self) -> bool:
        """True if the rate of any client is limited."""
        return self.per_s > 0 or any(client.per_s for client in self)

    async def watch(self) -> None:
        """Until cancelled, read the file again when it changes, and forget the rates of idle clients. A file
        with errors changes nothing."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.limiter.forget(self._clock.monotonic())
            if self._file is None or not self._file.changed:
                continue
            try:
                self._by_digest = self._file.read(_client, FORM)
            except ConfigError as error:
                self._log.error(
                    "cannot read clients' keys",
                    error=str(error),
                    fix="repair the file; known keys stay valid",
                )
                continue
            self._limit()
            self._log.info("clients' keys read", clients=len(self._by_digest))
            if self.news is not None:
                self.news()

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that refuses requests without a key, and clients that send too fast."""
        if request.path in OPEN_PATHS:
            return await handler(request)
        try:
            name = self._name(request)
        except RequestRefused as error:
            answer = problem.response(error)
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if (wait_s := self.limiter.take(name, 1, self._clock.monotonic())) > 0:
            return problem.response(Busy("this client sends more requests per second than its limit", wait_s))
        return await handler(request)

    def _name(self, request: web.Request) -> str:
        if self._file is None:
            return source_of(request.remote or "")
        client = self._by_digest.get(digest_of(shown_key(request)))
        if client is None:
            raise RequestRefused(
                401,
                "unauthorized",
                "Unauthorized",
                "show one key, once, in the header Authorization: Bearer KEY",
            )
        return client.name

    def _limit(self) -> None:
        default = Rate(self.per_s, self.per_s) if self.per_s else None
        own = {c.name: Rate(c.per_s, c.per_s) for c in self._by_digest.values() if c.per_s}
        self.limiter.change(default, own)


def read(file: Path) -> list[GatewayClient]:
    """Return the clients in a file. Raises ConfigError with the wrong line."""
    return [*KeyFile(file, KEYS).read(_client, FORM).values()]


def add(file: Path, name: str, per_s: int | None) -> str:
    """Make a key for a client and add its line to the file; return the key, which is stored nowhere. A client
    may have several keys, for example while it changes its key. Raises ConfigError."""
    if per_s is not None and not 0 < per_s <= RATE_MAX:
        raise ConfigError(f"--per-s is {per_s}; it must be from 1 to {RATE_MAX}")
    return KeyFile(file, KEYS).add(name, *([str(per_s)] if per_s else []))


def _client(name: str, digest: str, words: Sequence[str]) -> GatewayClient | None:
    """Return the client of a line; None if the line is wrong."""
    match words:
        case []:
            return GatewayClient(name, digest)
        case [rate] if rate.isascii() and rate.isdigit() and 0 < int(rate) <= RATE_MAX:
            return GatewayClient(name, digest, int(rate))
    return None


def source_of(address: str) -> str:
    """Return the address whose requests count together: a customer usually has a whole /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
