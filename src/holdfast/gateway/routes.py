"""Routes: which member owns a key, as far as one gateway knows. A route may be wrong; the owner checks it at
every use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.ports.coordinator import Claim

ROUTES_MAX = 1_000_000


class GatewayRoute(msgspec.Struct, frozen=True):
    """The member that owns a key, and its epoch if an owner has reported it (else 0)."""

    member: str
    epoch: int = 0


class Routes:
    """The routes by full key; beyond ``most``, the oldest are forgotten. To keep a copy, set ``news``, which
    is called when there are changes, and read them with ``changed``."""

    def __init__(self, most: int = ROUTES_MAX) -> None:
        self._most = most
        self._routes: dict[str, GatewayRoute] = {}
        self._changed: dict[str, None] = {}
        self.news: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._routes)

    def __iter__(self) -> Iterator[tuple[str, GatewayRoute]]:
        return iter(list(self._routes.items()))

    def get(self, key: str) -> GatewayRoute | None:
        """Return the route of a key."""
        return self._routes.get(key)

    def claimed(self, claim: Claim) -> None:
        """Note a new or ended claim from the coordinator."""
        known = self._routes.get(claim.key)
        if not claim.member:
            self.forget(claim.key)
        elif known is None or known.member != claim.member:
            self._set(claim.key, GatewayRoute(claim.member))

    def answered(self, key: str, member: str, epoch: int) -> bool:
        """Take the owner that a node named, or the node itself. It is believed if its epoch is not below the
        known one; return True if so."""
        known = self._routes.get(key)
        if known is not None and epoch < known.epoch:
            return False
        if known != GatewayRoute(member, epoch):
            self._set(key, GatewayRoute(member, epoch))
        return True

    def forget(self, key: str, member: str = "") -> None:
        """Forget a wrong route; with ``member``, only if the route leads there."""
        known = self._routes.get(key)
        if known is not None and member in ("", known.member):
            del self._routes[key]
            self._note(key)

    def left(self, member: str) -> None:
        """Forget all routes to a membership that has ended."""
        for key in [key for key, route in self._routes.items() if route.member == member]:
            self.forget(key)

    def clear(self) -> None:
        """Forget all routes, because changes may have been missed."""
        for key in list(self._routes):
            self.forget(key)

    def changed(self) -> dict[str, GatewayRoute | None]:
        """Return the changes since the last call: routes by key, None for those that no longer exist."""
        changed, self._changed = self._changed, {}
        return {key: self._routes.get(key) for key in changed}

    def _set(self, key: str, route: GatewayRoute) -> None:
        self._routes.pop(key, None)
        self._routes[key] = route
        self._note(key)
        if len(self._routes) > self._most:
            self.forget(next(iter(self._routes)))

    def _note(self, key: str) -> None:
        if self.news is not None:
            self._changed[key] = None
            self.news()
