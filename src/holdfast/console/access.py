"""Admission to a console: who may use it, and from which pages.

A caller is found in this order: by its token (``Authorization: Bearer``, or the cookie of a browser that has
entered with one), by the identity header of a proxy, or, on loopback without tokens, as a reader of this
machine. Each route says which right it needs, and a route that says none isn't served.

Browsers send cookies by themselves, and proxies their header. So a change that comes with one of them must
come from a page of this console: ``Sec-Fetch-Site`` or ``Origin`` must say so, and the request must have the
caller's form token. ``Host`` must be an address or a known name: otherwise a site could point its own name to
the address of this console and read it (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from holdfast.console.tokens import Right, Token, Tokens, with_read
from holdfast.errors import ConfigError
from holdfast.http.problem import RequestRefused
from holdfast.http.serving import Handler, is_loopback, shown_key

Group = tuple[Right, Sequence[web.RouteDef]]
"""Routes, and the right that each of them needs."""

FORM_FIELD = "form_token"
FORM_HEADER = "X-Form-Token"
"""The field of a form, or the header, that has the caller's form token."""

SAFE_METHODS = ("GET", "HEAD")
OPEN_PATHS = ("/healthz", "/enter", "/leave")
"""The paths that need no right. Files below ``/static/`` need none either."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AccessSettings(NamedTuple):
    """The settings that say who may use a console.

    Attributes:
        anybody_reads: whether callers without a token may read; for loopback only.
        names: the names of this server in ``Host``, in addition to addresses and names of loopback.
        identity_header: the header in which a proxy says who calls; "" for none.
        proxies: the networks of the proxies that are believed.
        identity_rights: the rights of users who come by a proxy.
        operators: of these, who may also change something.
    """

    anybody_reads: bool = True
    names: frozenset[str] = frozenset()
    identity_header: str = ""
    proxies: tuple[Network, ...] = ()
    identity_rights: frozenset[Right] = frozenset({"read"})
    operators: frozenset[str] = frozenset()


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. ``form_token`` must come with changes; "" for a caller whose requests no page
    of another site could send. ``token`` is the digest of the token that was shown, if one was."""

    name: str
    rights: frozenset[Right]
    form_token: str = ""
    token: str = ""

    def may(self, right: Right) -> bool:
        """Return True if the caller has this right."""
        return right in self.rights


class Admission:
    """Admits callers to one console."""

    def __init__(self, settings: AccessSettings, tokens: Tokens) -> None:
        self._settings = settings
        self._tokens = tokens
        self._rights: dict[Any, Right] = {}
        self._seal = secrets.token_bytes(32)
        self.cookie = "holdfast-console"
        self.secure = False

    def require(self, groups: Iterable[Group]) -> list[web.RouteDef]:
        """Note the right that each route needs; returns the routes, for the application."""
        routes = []
        for right, some in groups:
            for route in some:
                self._rights[route.handler] = right
                routes.append(route)
        return routes

    def served_at(self, port: int, *, secure: bool) -> None:
        """Note the port of the console: browsers send a cookie to all ports of a host."""
        self.cookie, self.secure = f"holdfast-console-{port}", secure

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that refuses requests without the right that their route needs, and changes that pages
        of other sites send."""
        request[_CALLER] = NOBODY
        self._check_host(request)
        self._check_use(request)
        caller = request[_CALLER] = self._caller(request)
        if request.path in OPEN_PATHS or request.path.startswith("/static/"):
            if request.method not in SAFE_METHODS:
                self._check_site(request)
            return await handler(request)
        right = self._rights.get(request.match_info.handler)
        if request.match_info.http_exception is not None and caller.may("read"):
            return await handler(request)  # no such path, or no such method
        if right is None or not caller.may(right):
            raise _refused(caller, right or "read")
        if request.method not in SAFE_METHODS and caller.form_token:
            self._check_site(request)
            await self._check_form(request, caller)
        return await handler(request)

    def still(self, caller: Caller) -> bool:
        """Return True if a caller who was admitted before would still be admitted."""
        return not caller.token or self._tokens.by_digest(caller.token) is not None

    def enter(self, shown: str) -> Token | None:
        """Return the token of this text, if it is one."""
        return self._tokens.find(shown)

    # --- who calls

    def _caller(self, request: web.Request) -> Caller:
        shown = request.headers.getall("Authorization", [])
        if any(given[:6].lower() == "bearer" for given in shown):
            token = self._tokens.find(shown_key(request))
            return Caller(token.name, token.rights, token=token.digest) if token is not None else NOBODY
        if (cookie := request.cookies.get(self.cookie)) and (token := self._tokens.find(cookie)) is not None:
            sealed = self._sealed(f"token {token.digest}")
            return Caller(token.name, token.rights, sealed, token.digest)
        if (name := self._identity(request)) is not None:
            rights = self._settings.identity_rights
            if name in self._settings.operators:
                rights |= {"operate"}
            return Caller(name, rights, self._sealed(f"identity {name}"))
        if self._settings.anybody_reads:
            return Caller("", frozenset({"read"}), self._sealed("anybody"))
        return NOBODY

    def _identity(self, request: web.Request) -> str | None:
        """Return who a trusted proxy says is calling."""
        header = self._settings.identity_header
        if not header:
            return None
        names = request.headers.getall(header, [])
        if len(names) != 1 or not names[0].strip() or not self._is_proxy(request.remote or ""):
            return None
        return names[0].strip()[:200]

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._settings.proxies)

    def _sealed(self, text: str) -> str:
        return hmac.new(self._seal, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()

    # --- from where

    def _check_host(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            name = ""
        if _is_address(name) or is_loopback(name) or name in self._settings.names:
            return
        raise foreign(f"Host is {host[:200]!r}, which isn't a name of this console; --name adds one")

    def _check_use(self, request: web.Request) -> None:
        """Refuse what pages of other sites load by themselves; a link of theirs may lead here."""
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        mode = request.headers.get("Sec-Fetch-Mode", "navigate")
        if site not in ("same-origin", "none") and mode != "navigate":
            raise foreign("a page of another site loads this; open it in a window of its own")

    def _check_site(self, request: web.Request) -> None:
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site == "same-origin":
            return
        if site is not None:
            raise foreign(f"Sec-Fetch-Site is {site[:50]!r}; only pages of this console may change something")
        if origin is None:  # browsers always send one of the two
            raise foreign("neither Sec-Fetch-Site nor Origin is there; programs show a token instead")
        if origin.lower().partition("://")[2] != request.host.lower():
            raise foreign(f"Origin is {origin[:200]!r}, another site")

    async def _check_form(self, request: web.Request, caller: Caller) -> None:
        given = request.headers.get(FORM_HEADER)
        if given is None and request.content_type == "application/x-www-form-urlencoded":
            given = str((await request.post()).get(FORM_FIELD, ""))
        if not hmac.compare_digest((given or "").encode(errors="replace"), caller.form_token.encode()):
            raise foreign("the form token is missing or wrong; load the page again")


NOBODY = Caller("", frozenset())
_CALLER = web.RequestKey("caller", Caller)


def caller_of(request: web.Request) -> Caller:
    """Return who sends this request."""
    caller: Caller = request.get(_CALLER, NOBODY)
    return caller


def foreign(detail: str) -> RequestRefused:
    """Return the error for a request that a page of another site may have sent."""
    return RequestRefused(HTTPStatus.FORBIDDEN, "foreign", "Cross-site request refused", detail)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return networks by their texts, such as ``10.0.0.0/8``. Raises ConfigError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(f"--proxy {text!r} must be an address or a network: {error}") from None
    return tuple(found)


def settings_for(
    host: str,
    *,
    tokens: bool,
    names: Iterable[str] = (),
    identity_header: str = "",
    proxies: Iterable[str] = (),
    operators: Iterable[str] = (),
    pictures: bool = False,
) -> AccessSettings:
    """Return who may use a console that listens on ``host``. Raises ConfigError where strangers would be
    served without being allowed."""
    trusted = networks(proxies)
    if bool(identity_header) != bool(trusted):
        raise ConfigError(
            "--identity-header and --proxy go together: the header is believed only from these networks"
        )
    if operators and not identity_header:
        raise ConfigError("--operator needs --identity-header: it names who may change something by a proxy")
    local = is_loopback(host)
    if not (local or tokens or identity_header):
        raise ConfigError(
            f"--host {host!r} can be reached from other machines: give --tokens FILE with the users of"
            " the console (`holdfast console-token` writes it), or --identity-header and --proxy"
        )
    return AccessSettings(
        anybody_reads=local and not (tokens or identity_header),
        names=frozenset(name.lower().rstrip(".") for name in names),
        identity_header=identity_header,
        proxies=trusted,
        identity_rights=with_read(["pictures"] if pictures else []),
        operators=frozenset(operators),
    )


def _refused(caller: Caller, right: Right) -> RequestRefused:
    if caller is NOBODY:
        return RequestRefused(
            HTTPStatus.UNAUTHORIZED, "unauthorized", "Unauthorized", "enter with a token of this console"
        )
    text = f"this needs the right {right!r}; enter with a token that has it"
    return RequestRefused(HTTPStatus.FORBIDDEN, "no-right", "You may not", text)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
