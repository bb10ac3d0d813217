"""ZooKeeper: a single server, and an ensemble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from holdfast.errors import Unavailable
from simulator.servers import programs
from simulator.servers.loopback import HOST, free_port
from simulator.servers.server import Group, Server, exchange, until

TICK_MS = 200
SESSION_MIN_MS = 400
SESSION_MAX_MS = 60_000


class ZooKeeperServer(Server):
    """A ZooKeeper server that grants sessions from ``SESSION_MIN_MS`` on.

    ``mode`` is ``standalone``, or as a member of an ensemble ``leader`` or ``follower``.
    """

    name: ClassVar[str] = "zookeeper"

    def __init__(self) -> None:
        super().__init__()
        self.peer_port, self.election_port = free_port(), free_port()
        self._members: Sequence[ZooKeeperServer] = ()

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}/holdfast"

    def join(self, members: Sequence[ZooKeeperServer]) -> None:
        """Be one of ``members``, from the next start on."""
        self._members = members

    async def mode(self) -> str:
        """What it is now; empty if it doesn't serve."""
        for line in (await exchange(self.port, b"srvr")).splitlines():
            if line.startswith(b"Mode: "):
                return line.removeprefix(b"Mode: ").decode()
        return ""

    def command(self) -> Sequence[str | Path]:
        lines = [
            f"tickTime={TICK_MS}",
            f"minSessionTimeout={SESSION_MIN_MS}",
            f"maxSessionTimeout={SESSION_MAX_MS}",
            "initLimit=150",  # on a busy machine a server that lives may be silent for seconds
            "syncLimit=100",
            f"dataDir={self.data}",
            f"clientPortAddress={HOST}",
            f"clientPort={self.port}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,mntr,cons,ruok",
            "forceSync=no",  # a test's power doesn't fail
            "preAllocSize=512",
        ]
        for number, member in enumerate(self._members, start=1):
            lines.append(f"server.{number}={HOST}:{member.peer_port}:{member.election_port}")
            if member is self:
                (self.data / "myid").write_text(f"{number}\n")
        settings = self.folder / "zoo.cfg"
        settings.write_text("\n".join([*lines, ""]))
        return [programs.find("zookeeper"), settings]

    async def answers(self) -> bool:
        return bool(await self.mode())


class ZooKeeperEnsemble(Group):
    """Servers of which a majority must live."""

    def __init__(self, *, members: int = 3) -> None:
        self.members = [ZooKeeperServer() for _ in range(members)]
        for member in self.members:
            member.join(self.members)

    @property
    def servers(self) -> Sequence[ZooKeeperServer]:
        return self.members

    @property
    def url(self) -> str:
        return f"zookeeper://{','.join(member.address for member in self.members)}/holdfast"

    async def leader(self) -> ZooKeeperServer:
        """The member that leads now. Raises Unavailable if none does."""
        modes = await asyncio.gather(*(member.mode() for member in self.members))
        for member, mode in zip(self.members, modes, strict=True):
            if mode == "leader":
                return member
        raise Unavailable("no member of the ensemble leads")

    async def led(self) -> ZooKeeperServer:
        """Wait until one leads; returns it."""

        async def one() -> bool:
            modes = await asyncio.gather(*(member.mode() for member in self.members))
            return "leader" in modes

        await until(one, "a member of the ensemble leads")
        return await self.leader()
