"""Routes: which member owns a key, as far as one gateway knows. They may be wrong; owners never are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.ports.coordinator import Claim

ROUTES_MAX = 1_000_000


class GatewayRoute(msgspec.Struct, frozen=True):
    """The member that owns a key, and its epoch where an owner has told it (else 0)."""

    member: str
    epoch: int = 0


class Routes:
    """Routes by full key, the oldest forgotten beyond ``most``. For who keeps a copy, ``changed`` gives the
    keys that were changed since somebody follows: ``news``, if set, is called when there are some."""

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
        """The route of a key."""
        return self._routes.get(key)

    def claimed(self, claim: Claim) -> None:
        """The coordinator tells of a claim, or of its end."""
        known = self._routes.get(claim.key)
        if not claim.member:
            self.forget(claim.key)
        elif known is None or known.member != claim.member:
            self._set(claim.key, GatewayRoute(claim.member))

    def answered(self, key: str, member: str, epoch: int) -> bool:
        """A node names the owner, or is it. Counts if its epoch is not below the known; True if it did."""
        known = self._routes.get(key)
        if known is not None and epoch < known.epoch:
            return False
        if known != GatewayRoute(member, epoch):
            self._set(key, GatewayRoute(member, epoch))
        return True

    def forget(self, key: str, member: str = "") -> None:
        """The route is wrong; or only if it leads to ``member``."""
        known = self._routes.get(key)
        if known is not None and member in ("", known.member):
            del self._routes[key]
            self._note(key)

    def left(self, member: str) -> None:
        """A membership ended."""
        for key in [key for key, route in self._routes.items() if route.member == member]:
            self.forget(key)

    def clear(self) -> None:
        """Changes may have gone by unseen."""
        for key in list(self._routes):
            self.forget(key)

    def changed(self) -> dict[str, GatewayRoute | None]:
        """What changed since this was last asked: routes by key, None for those that are no more."""
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
