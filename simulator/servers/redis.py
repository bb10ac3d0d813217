"""Redis: a single server, one with Sentinels, and a Cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import Unavailable
from simulator.servers import certificate, programs
from simulator.servers.loopback import HOST, free_port
from simulator.servers.server import ASK_TIMEOUT_S, START_TIMEOUT_S, Group, Server, until

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.driver_info import DriverInfo

SLOTS = 16384
BUS_ABOVE = 10000
DOWN_AFTER_MS = 1500
"""Longer than the second that a Sentinel may let pass before it connects to a server again."""

NODE_TIMEOUT_MS = 1500
REPLICATION = {"repl-diskless-sync-delay": "0", "repl-timeout": "5"}


class RedisServer(Server):
    """A redis-server, by default with nothing kept on disk.

    Args:
        password: What the default user must give.
        users: More users, as lines of an ACL file: ``user ann on >secret ~* &* +@all``.
        appendonly: Keep an append-only file, so that ``restart`` loses nothing.
        tls: Speak TLS only, with a certificate of its own making (``ca``).
        settings: More lines of redis.conf, such as ``{"maxmemory": "8mb"}``.
    """

    name: ClassVar[str] = "redis-server"

    def __init__(
        self,
        *,
        password: str = "",
        users: Sequence[str] = (),
        appendonly: bool = False,
        tls: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.password = password
        self._users = users
        self._appendonly = appendonly
        self._tls = tls
        self._settings = dict(settings or {})

    @property
    def ca(self) -> Path:
        """The certificate to trust, where it speaks TLS."""
        return self.folder / "certificate.pem"

    @property
    def url(self) -> str:
        """For the default user."""
        return self.url_as("", self.password)

    def url_as(self, user: str, password: str) -> str:
        """For a user of the ACL file."""
        who = f"{user}:{password}@" if password else ""
        return f"rediss://{who}{self.address}?ca={self.ca}" if self._tls else f"redis://{who}{self.address}"

    def client(self) -> Redis:
        """A client as the default user that tries nothing twice, to be closed: ``async with
        server.client() as redis``."""
        from redis.asyncio import Redis  # noqa: PLC0415 (an extra)
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        return Redis(
            host=HOST,
            port=self.port,
            password=self.password or None,
            decode_responses=True,
            socket_timeout=ASK_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            ssl=self._tls,
            ssl_ca_certs=str(self.ca) if self._tls else None,
            driver_info=_driver_info(),
        )

    def follow(self, master: RedisServer | None) -> None:
        """Be a replica of ``master``, or of none, from the next start on."""
        self._settings.pop("replicaof", None)
        if master:
            self._settings["replicaof"] = f"{HOST} {master.port}"

    async def reset(self) -> None:
        """Make it run and empty."""
        await self.heal()
        async with self.client() as redis:
            await redis.flushall()

    def command(self) -> Sequence[str | Path]:
        lines = {
            "bind": HOST,
            "port": "0" if self._tls else str(self.port),
            "dir": str(self.data),
            "save": '""',
            "appendonly": "yes" if self._appendonly else "no",
            "daemonize": "no",
        }
        if self._tls:
            signed, key = (self.ca, self.folder / "key.pem")
            if not signed.exists():
                certificate.make(self.folder)
            lines |= {
                "tls-port": str(self.port),
                "tls-cert-file": str(signed),
                "tls-key-file": str(key),
                "tls-ca-cert-file": str(signed),
                "tls-auth-clients": "no",
            }
        if self._users or self.password:
            default = f"user default on {f'>{self.password}' if self.password else 'nopass'} ~* &* +@all"
            users = self.folder / "users.acl"
            users.write_text("\n".join([default, *self._users, ""]))
            users.chmod(0o600)
            lines["aclfile"] = str(users)
        settings = self.folder / "redis.conf"
        settings.write_text("".join(f"{key} {value}\n" for key, value in (lines | self._settings).items()))
        return [programs.find("redis-server"), settings]

    async def answers(self) -> bool:
        tls = ssl.create_default_context(cafile=self.ca) if self._tls else None
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(HOST, self.port, ssl=tls)
                try:
                    writer.write(b"PING\r\n")
                    return (await reader.readline()).startswith((b"+PONG", b"-NOAUTH"))
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False


class Sentinel(RedisServer):
    """One Sentinel, of which a service has several."""

    name: ClassVar[str] = "redis-sentinel"

    def __init__(self, service: str, master: RedisServer, quorum: int) -> None:
        super().__init__()
        self._service = service
        self._master = master
        self._quorum = quorum

    def command(self) -> Sequence[str | Path]:
        settings = self.folder / "sentinel.conf"
        if not settings.exists():  # Sentinels write what they learn into it
            watched = f"{self._service} {HOST} {self._master.port} {self._quorum}"
            lines = [
                f"bind {HOST}",
                f"port {self.port}",
                f"dir {self.data}",
                f"sentinel monitor {watched}",
                f"sentinel down-after-milliseconds {self._service} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {self._service} {DOWN_AFTER_MS * 6}",
                f"sentinel parallel-syncs {self._service} 8",
            ]
            settings.write_text("\n".join([*lines, ""]))
        return [programs.find("redis-server"), settings, "--sentinel"]


class RedisSentinel(Group):
    """A master with replicas, watched by Sentinels, which take ``DOWN_AFTER_MS`` to miss a master."""

    def __init__(self, *, replicas: int = 2, sentinels: int = 3, service: str = "holdfast") -> None:
        self.service = service
        first = RedisServer(settings=REPLICATION)
        self.redis = [first, *(RedisServer(settings=REPLICATION) for _ in range(replicas))]
        for replica in self.redis[1:]:
            replica.follow(first)
        self.sentinels = [Sentinel(service, first, sentinels // 2 + 1) for _ in range(sentinels)]

    @property
    def servers(self) -> Sequence[RedisServer]:
        return [*self.redis, *self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}"

    async def master(self) -> RedisServer:
        """The server that a majority of the Sentinels that answer take for the master."""
        told = [address for address in await asyncio.gather(*map(self._told, self.sentinels)) if address]
        address = max(set(told), key=told.count, default="")
        if told.count(address) * 2 <= len(self.sentinels):
            raise Unavailable("the Sentinels don't agree on a master")
        return next(server for server in self.redis if server.address == address)

    async def start(self) -> None:
        await asyncio.gather(*(server.start() for server in self.redis))
        await until(self._linked, "all replicas follow the master")
        await asyncio.gather(*(sentinel.start() for sentinel in self.sentinels))
        await self._settled()

    async def heal(self) -> None:
        with suppress(Unavailable):
            master = await self.master()
            for server in self.redis:
                server.follow(None if server is master else master)
        await super().heal()
        await self._settled()

    async def reset(self) -> None:
        """Make it whole and empty; who is the master stays as it is."""
        await self.heal()
        async with (await self.master()).client() as redis:
            await redis.flushall()
            await redis.wait(len(self.redis) - 1, int(START_TIMEOUT_S * 1000))

    async def failed_over(self, dead: RedisServer) -> RedisServer:
        """Wait until the Sentinels have made another server the master; returns it."""
        found: list[RedisServer] = []

        async def another() -> bool:
            try:
                master = await self.master()
            except Unavailable:
                return False
            found[:] = [master]
            return master is not dead and not any(await asyncio.gather(*map(self._busy, self.sentinels)))

        await until(another, "another master")
        return found[0]

    async def _settled(self) -> None:
        await until(self._whole, "the Sentinels agree on a master, its replicas and each other")

    async def _whole(self) -> bool:
        try:
            await self.master()
        except Unavailable:
            return False
        return await self._linked() and all(
            await asyncio.gather(*(self._knows_all(sentinel) for sentinel in self.sentinels))
        )

    async def _linked(self) -> bool:
        """One master, and all others follow it."""
        told = await asyncio.gather(*(_info(server, "replication") for server in self.redis))
        return sorted(info.get("role", "") for info in told) == [
            "master",
            *["slave"] * (len(told) - 1),
        ] and all(info["role"] == "master" or info.get("master_link_status") == "up" for info in told)

    async def _knows_all(self, sentinel: Sentinel) -> bool:
        told = await self._view(sentinel)
        return (
            told.get("status") == "ok"
            and told["slaves"] == len(self.redis) - 1
            and told["sentinels"] == len(self.sentinels)
        )

    async def _busy(self, sentinel: Sentinel) -> bool:
        """Whether it leads a fail-over, or still takes for the master what no longer is."""
        told = await _ask(sentinel, "SENTINEL", "MASTER", self.service)
        return any(flag in told for flag in ("failover_in_progress", "s_down"))

    async def _told(self, sentinel: Sentinel) -> str:
        return str((await self._view(sentinel)).get("address", ""))

    async def _view(self, sentinel: Sentinel) -> dict[str, Any]:
        view: dict[str, Any] = (await _info(sentinel, "sentinel")).get("master0", {})
        return view


class RedisCluster(Group):
    """Masters that share the hash slots evenly, each with ``replicas``."""

    def __init__(self, *, masters: int = 3, replicas: int = 0) -> None:
        self.nodes = [ClusterNode() for _ in range(masters * (1 + replicas))]
        self._masters = masters

    @property
    def servers(self) -> Sequence[RedisServer]:
        return self.nodes

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(node.address for node in self.nodes)

    async def masters(self) -> list[RedisServer]:
        """The nodes that own slots now."""
        told = await asyncio.gather(*(_info(node, "replication") for node in self.nodes))
        return [node for node, info in zip(self.nodes, told, strict=True) if info.get("role") == "master"]

    async def start(self) -> None:
        await super().start()
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for at, master in enumerate(masters):
            first, last = (SLOTS * edge // self._masters for edge in (at, at + 1))
            await _ask(master, "CLUSTER", "SET-CONFIG-EPOCH", str(at + 1))
            await _ask(master, "CLUSTER", "ADDSLOTS", *map(str, range(first, last)))
        for node in self.nodes[1:]:
            await _ask(node, "CLUSTER", "MEET", HOST, str(self.nodes[0].port))
        await until(self._met, "the nodes of the cluster know each other")
        for at, replica in enumerate(replicas):
            await _ask(
                replica,
                "CLUSTER",
                "REPLICATE",
                str(await _ask(masters[at % len(masters)], "CLUSTER", "MYID")),
            )
        await until(self._whole, "the cluster is whole")

    async def heal(self) -> None:
        await super().heal()
        await until(self._whole, "the cluster is whole")

    async def reset(self) -> None:
        """Make it whole and empty."""
        await self.heal()
        for master in await self.masters():
            await _ask(master, "FLUSHALL")

    async def _met(self) -> bool:
        told = await asyncio.gather(*(_ask(node, "CLUSTER", "NODES") for node in self.nodes))
        return all(text.count("\n") == len(self.nodes) and "handshake" not in text for text in told)

    async def _whole(self) -> bool:
        told = await asyncio.gather(*(_ask(node, "CLUSTER", "INFO") for node in self.nodes))
        if not all("cluster_state:ok" in text for text in told):
            return False
        links = await asyncio.gather(*(_info(node, "replication") for node in self.nodes))
        follow = [info for info in links if info.get("role") == "slave"]
        return len(follow) == len(self.nodes) - self._masters and all(
            info.get("master_link_status") == "up" for info in follow
        )


class ClusterNode(RedisServer):
    """One node of a Cluster."""

    name: ClassVar[str] = "redis-cluster-node"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port(above=BUS_ABOVE)
        self._settings = {
            "cluster-enabled": "yes",
            "cluster-config-file": str(self.folder / "nodes.conf"),
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        } | REPLICATION


@cache
def _driver_info() -> DriverInfo:
    """What clients say of their library; to find out takes longer than most of what they ask."""
    from redis.driver_info import DriverInfo  # noqa: PLC0415 (an extra)

    return DriverInfo()


async def _ask(server: RedisServer, *command: str) -> str:
    """A command's answer as text; empty if there is none."""
    async with server.client() as redis:
        with _may_be_gone():
            return str(await redis.execute_command(*command))  # type: ignore[no-untyped-call]
    return ""


async def _info(server: RedisServer, section: str) -> dict[str, Any]:
    async with server.client() as redis:
        with _may_be_gone():
            return await redis.info(section)
    return {}


def _may_be_gone() -> AbstractContextManager[object, bool]:
    from redis.exceptions import ConnectionError, TimeoutError  # noqa: A004, PLC0415 (an extra)

    return suppress(ConnectionError, TimeoutError)
