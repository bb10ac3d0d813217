"""The contents of HAProxy's maps from streams to servers, and how to change them.

Up to HAProxy 2.8, a change or removal in a map searches the whole map, but an addition doesn't. So new routes
are added to the map ``routes``, and changes are added to the map ``recent``, which is read first and stays
small. When it is full, ``routes`` is replaced as a whole and ``recent`` is emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from holdfast.gateway.haproxy.config import NO_SERVER
from holdfast.gateway.request_format import MESSAGES

RECENT_MAX = 2000
SAFE = "!()*+,:=@"
"""Further unescaped characters of a path (RFC 3986), without the special ones of HAProxy's runtime API."""


def map_key(full_key: str, only: str | None = None) -> str | None:
    """Return a stream's key in the maps: the path as clients commonly write it, with the name of the declared
    stream as its query, unless that is the ``only`` one; None for an ambiguous key. The fallback serves
    requests that write it differently."""
    stream, _, key = full_key.partition("/")
    if not is_plain(stream) or key in (".", ".."):
        return None
    path = f"{MESSAGES}{quote(key, safe=SAFE)}"
    return path if stream == only else f"{path}?stream={stream}"


def is_plain(stream: str) -> bool:
    """Return True if a stream's name needs no escapes."""
    return quote(stream, safe="") == stream


class Edit(msgspec.Struct):
    """A change to the maps: entries that are ``new`` in ``routes``, new in ``recent``, or ``changed`` in
    ``recent``; or with ``rewrite`` a rewrite of all ``routes``, which empties ``recent``."""

    new: dict[str, str] = {}
    recent: dict[str, str] = {}
    changed: dict[str, str] = {}
    rewrite: bool = False


class RouteMaps:
    """The contents of the maps ``routes`` and ``recent``."""

    def __init__(self, recent_max: int = RECENT_MAX) -> None:
        self._recent_max = recent_max
        self._routes: dict[str, str] = {}
        self._recent: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(server != NO_SERVER for server in self._recent.values()) + sum(
            key not in self._recent for key in self._routes
        )

    def get(self, key: str) -> str | None:
        """Return the server of a key."""
        server = self._recent.get(key) or self._routes.get(key)
        return None if server == NO_SERVER else server

    def update(self, changes: Mapping[str, str | None]) -> Edit:
        """Take new servers by key, None for keys without a route. Returns the change for HAProxy."""
        edit = Edit()
        for key, server in changes.items():
            if self.get(key) == server:
                continue
            if key in self._recent:
                self._recent[key] = edit.changed[key] = server or NO_SERVER
            elif key in self._routes:
                self._recent[key] = edit.recent[key] = server or NO_SERVER
            elif server is not None:
                self._routes[key] = edit.new[key] = server
        edit.rewrite = len(self._recent) > self._recent_max
        if edit.rewrite:
            self.fold()
        return edit

    def fold(self) -> None:
        """Move everything into ``routes``, and empty ``recent``."""
        for key, server in self._recent.items():
            if server == NO_SERVER:
                self._routes.pop(key, None)
            else:
                self._routes[key] = server
        self._recent.clear()

    def routes(self) -> Iterator[tuple[str, str]]:
        """Return all entries of ``routes``."""
        return iter(list(self._routes.items()))
