"""Which server has which stream, as HAProxy's maps have it, and how to change them.

Up to HAProxy 2.8 a change or removal in a map searches all of it, an addition does not. So what is new is
added to the map ``routes``, and what changes is noted in the map ``recent``, which goes first and stays
small: when it is full, all of ``routes`` is written anew in its place, at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from holdfast.gateway.haproxy.config import NOBODY
from holdfast.gateway.node_routes import PATH

RECENT_MAX = 2000
SAFE = "!()*+,:=@"
"""What else a path may hold unescaped (RFC 3986), without what means something to HAProxy's runtime API."""


def map_key(full_key: str, only: str | None = None) -> str | None:
    """A stream's key in the maps: the path as clients commonly write it, and the name of the declared stream
    as its query, unless that is the ``only`` one. Requests that write it otherwise are in no map. None where
    it can't be told apart from others."""
    stream, _, key = full_key.partition("/")
    if not is_plain(stream) or key in (".", ".."):
        return None
    path = f"{PATH}{quote(key, safe=SAFE)}"
    return path if stream == only else f"{path}?stream={stream}"


def is_plain(stream: str) -> bool:
    """True if a stream's name needs no escapes."""
    return quote(stream, safe="") == stream


class Edit(msgspec.Struct):
    """What to do to the maps: either these entries, or ``rewrite`` all of ``routes`` and empty ``recent``."""

    new: dict[str, str] = {}
    """To add to ``routes``."""
    recent: dict[str, str] = {}
    """To add to ``recent``."""
    changed: dict[str, str] = {}
    """To set in ``recent``."""
    rewrite: bool = False


class RouteMaps:
    """The contents of both maps."""

    def __init__(self, recent_max: int = RECENT_MAX) -> None:
        self._recent_max = recent_max
        self._routes: dict[str, str] = {}
        self._recent: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(server != NOBODY for server in self._recent.values()) + sum(
            key not in self._recent for key in self._routes
        )

    def get(self, key: str) -> str | None:
        """The server of a key."""
        server = self._recent.get(key) or self._routes.get(key)
        return None if server == NOBODY else server

    def update(self, changes: Mapping[str, str | None]) -> Edit:
        """Servers by key, None for keys that have none any more; tells what HAProxy has to be told."""
        edit = Edit()
        for key, server in changes.items():
            if self.get(key) == server:
                continue
            if key in self._recent:
                self._recent[key] = edit.changed[key] = server or NOBODY
            elif key in self._routes:
                self._recent[key] = edit.recent[key] = server or NOBODY
            elif server is not None:
                self._routes[key] = edit.new[key] = server
        edit.rewrite = len(self._recent) > self._recent_max
        if edit.rewrite:
            self.fold()
        return edit

    def fold(self) -> None:
        """Bring all into ``routes``; ``recent`` is empty then."""
        for key, server in self._recent.items():
            if server == NOBODY:
                self._routes.pop(key, None)
            else:
                self._routes[key] = server
        self._recent.clear()

    def routes(self) -> Iterator[tuple[str, str]]:
        """All of ``routes``."""
        return iter(list(self._routes.items()))
