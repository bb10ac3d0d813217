"""Which of HAProxy's servers stands for which node. They are made beforehand, and given addresses as nodes
come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SERVERS_MIN = 16


class BackendServers:
    """Servers by member. One that a member left is given to another as late as possible, when the routes to
    it are long gone."""

    def __init__(self, count: int = SERVERS_MIN) -> None:
        self._free = deque(_name(number) for number in range(1, count + 1))
        self._taken: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self.count = count

    def get(self, member: str) -> str | None:
        """The server of a member."""
        return self._taken.get(member)

    def address(self, name: str) -> str | None:
        """The address of a server that a member has."""
        return self._addresses.get(name)

    def take(self, member: str, address: str) -> str:
        """Give a member, reached at ``ip:port``, a server. If none is free there are twice as many
        afterwards; HAProxy takes those only from its configuration."""
        if not self._free:
            self._free.extend(map(_name, range(self.count + 1, 2 * self.count + 1)))
            self.count *= 2
        name = self._taken[member] = self._free.popleft()
        self._addresses[name] = address
        return name

    def left(self, living: Iterable[str]) -> list[str]:
        """The servers of members that aren't among the ``living`` any more, which are free now."""
        alive = set(living)
        gone = [self._taken.pop(member) for member in list(self._taken) if member not in alive]
        for name in gone:
            del self._addresses[name]
        self._free.extend(gone)
        return gone

    def addresses(self) -> dict[str, str | None]:
        """All servers with their addresses, in order."""
        names = [_name(number) for number in range(1, self.count + 1)]
        return {name: self._addresses.get(name) for name in names}


def _name(number: int) -> str:
    return f"s{number}"
