"""Decides which member gets a request at a gateway: the known owner of the key, or a member that is chosen.

A route may be wrong: the owner checks it at every use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from holdfast.errors import Unavailable
from holdfast.rules.cluster.placement import Member, Placed, choose, readers, shortage

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

    def claimed(self, key: str, member: str) -> None:
        """Note a new claim of the coordinator, or with "" that a claim has ended."""
        known = self._routes.get(key)
        if not member:
            self.forget(key)
        elif known is None or known.member != member:
            self._set(key, GatewayRoute(member))

    def answered(self, key: str, member: str, epoch: int) -> bool:
        """Note the owner that a node named. Return False, and ignore it, if its epoch is below the known
        one."""
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
        """Return the changes since the last call: routes by key, None for routes that no longer exist."""
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


class GatewayPlacing:
    """Chooses members for requests. ``members`` are the living ones by id, which the caller keeps up to date.
    ``foreign``: members of other programs may get requests too."""

    def __init__(self, routes: Routes, members: Mapping[str, Member], *, foreign: bool = False) -> None:
        self._routes = routes
        self._members = members
        self._foreign = foreign
        self._placed = Placed()

    def owner(self, key: str) -> Member | None:
        """Return the living member to which a route leads; None without one. Raises as ``checked``."""
        route = self._routes.get(key)
        member = self._members.get(route.member) if route is not None else None
        return None if member is None else self.checked(key, member)

    def checked(self, key: str, member: Member) -> Member:
        """Return the owner of a key. Raises Unavailable for a foreign one that gets no requests."""
        if member.foreign and not self._foreign:
            raise Unavailable(
                f"{key} is owned by another program, {member.name}, and foreign_streams is 'refuse'"
            )
        if member.foreign and not member.address:
            raise Unavailable(
                f"{key} is owned by another program, {member.name}, which gives no host and port"
            )
        return member

    def choose(self, key: str) -> Member | None:
        """Choose the member that should get a new key; None if no member has room. The key is counted at
        once: many keys are placed before the first answer comes."""
        return self._placed.place(key, self._members.values())

    def shortage(self, key: str) -> Unavailable:
        """Return the error for a key that no member has room for."""
        return Unavailable(f"{key}: {shortage(key, self._members.values())}")

    def given(self, chosen: Member, owner: str) -> None:
        """Note the coordinator's answer: another gateway may have given the key to another member first."""
        if owner != chosen.id:
            self._placed.not_taken(chosen, self._members.get(owner))

    def claimed(self, key: str, member: str, *, here: bool) -> None:
        """Note a new or ended claim of the coordinator. A key that is being placed ``here`` was counted when
        its member was chosen; others are counted now."""
        known = self._routes.get(key)
        self._routes.claimed(key, member)
        owner = self._members.get(member)
        if owner is not None and not here and (known is None or known.member != member):
            self._placed.add(owner)

    def another(self, key: str, member: str) -> Member | None:
        """Return another living member than ``member``, if there is one."""
        return choose(key, [other for other in self._members.values() if other.id != member])

    def reader(self, key: str, failures: int) -> Member:
        """Return a member that can answer a query of ``key``: the owner first, and after each failure the
        next one. Raises Unavailable without one."""
        route = self._routes.get(key)
        able = readers(key, self._members.values(), route.member if route is not None else "")
        if not able:
            raise Unavailable(f"{key}: no node runs this stream; start one that declares it")
        return able[failures % len(able)]
