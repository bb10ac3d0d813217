"""Assigns HAProxy's servers to nodes. The servers are configured in advance, and get addresses when nodes
join."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SERVERS_MIN = 16


class BackendServers:
    """The servers by member. A free server is reused as late as possible, so that no old route leads to
    it."""

    def __init__(self, count: int = SERVERS_MIN) -> None:
        self._free = deque(_name(number) for number in range(1, count + 1))
        self._taken: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self.count = count

    def get(self, member: str) -> str | None:
        """Return the server of a member."""
        return self._taken.get(member)

    def address(self, name: str) -> str | None:
        """Return the address of a member's server."""
        return self._addresses.get(name)

    def take(self, member: str, address: str) -> str:
        """Assign a server to a member with the address ``ip:port``. If none is free, their number doubles;
        HAProxy learns the new ones only from a new configuration."""
        if not self._free:
            self._free.extend(map(_name, range(self.count + 1, 2 * self.count + 1)))
            self.count *= 2
        name = self._taken[member] = self._free.popleft()
        self._addresses[name] = address
        return name

    def left(self, living: Iterable[str]) -> list[str]:
        """Free the servers of members that are no longer ``living``, and return them."""
        alive = set(living)
        gone = [self._taken.pop(member) for member in list(self._taken) if member not in alive]
        for name in gone:
            del self._addresses[name]
        self._free.extend(gone)
        return gone

    def addresses(self) -> dict[str, str | None]:
        """Return all servers with their addresses, in order."""
        names = [_name(number) for number in range(1, self.count + 1)]
        return {name: self._addresses.get(name) for name in names}


def _name(number: int) -> str:
    return f"s{number}"
