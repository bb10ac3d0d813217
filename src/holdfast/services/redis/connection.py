"""The connection to Redis: a single server, the master that Sentinels name, or the nodes of a Cluster.

The calls are the same for all three. Each names a key, which decides the server in a Cluster. Every call is
one round trip, shared with other calls at the same time. Nothing is sent twice, unless the first try was
refused without effect (a script that the server doesn't know yet, a key that has moved).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from holdfast.common.service_urls import Host, join
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.redis.address import RedisAddress, parse
from holdfast.services.redis.lane import Lane, Word
from holdfast.services.redis.refusals import RedisRefused
from holdfast.services.redis.script import Script
from holdfast.services.redis.servers import RedisServers
from holdfast.services.redis.subscription import Subscription

__all__ = ["RedisAddress", "RedisConnection", "Script", "Subscription", "parse"]

TIMEOUT_S = 2.0
REDIRECTS_MAX = 4


class RedisConnection:
    """Calls to Redis. ``timeout_s`` bounds each step of a call: connecting, and the answer.

    Calls raise Unavailable if they had no effect and may be made again, OutcomeUnknown if they may have had
    one, ConfigError if the server refuses this user, and OperationRefused for any other refusal.
    """

    def __init__(self, address: RedisAddress, meter: Meter, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.meter = meter
        self._timeout_s = timeout_s
        self.lanes: dict[Host | None, Lane] = {}
        self._servers = RedisServers(address, meter, timeout_s, self._leave_master)
        self._slots: list[Host | None] = []
        self._finding = asyncio.Lock()
        self._subscriptions: list[Subscription] = []
        self._masters_left = 0

    def apart(self, timeout_s: float) -> RedisConnection:
        """Return another connection to the same address, for calls that may block for long, so that others
        don't wait for them. The caller closes it."""
        return RedisConnection(self.address, self.meter, timeout_s=timeout_s)

    # --- calls

    async def script(self, script: Script, keys: Sequence[str], *arguments: Word) -> Any:
        """Run a script; its keys are on one server. The reply is of bytes, numbers, lists and None."""
        words = (script.sha, len(keys), *keys, *arguments)
        try:
            return await self._call(script.name, keys[0], "EVALSHA", *words)
        except RedisRefused as refused:
            if refused.code != "NOSCRIPT":
                raise self._explained(script.name, refused) from refused
        # The server is new or has restarted: the text goes to the same server, which keeps it.
        try:
            return await self._call(script.name, keys[0], "EVAL", script.text, *words[1:])
        except RedisRefused as refused:
            raise self._explained(script.name, refused) from refused

    async def command(self, key: str, *words: Word) -> Any:
        """Run one command at the server that has ``key``."""
        name = str(words[0])
        try:
            return await self._call(name, key, *words)
        except RedisRefused as refused:
            raise self._explained(name, refused) from refused

    async def together(self, key: str, *commands: Sequence[Word]) -> list[Any]:
        """Run commands one after the other, over one connection, at the server that has ``key``."""
        for words in commands:
            self.meter.count("redis", str(words[0]))
        host = await self._host(key)
        try:
            replies: list[Any] = await self._lane(host).together(*commands)
        except HoldfastError:
            self._forget(host)
            raise
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, RedisRefused):
                if reply.code == "READONLY":
                    self._lane(host).leave()
                elif reply.code in ("MOVED", "CLUSTERDOWN"):
                    self._forget(host)
                raise self._explained(str(words[0]), reply)
        return replies

    async def everywhere(self, *words: Word) -> list[tuple[str, Any]]:
        """Run one command at every master; ``host:port`` and reply of each. ``host:port`` is "" for the one
        server that there is without a Cluster."""
        hosts: list[Host | None] = [None]
        if self.address.kind == "cluster":
            if not self._slots:
                await self._find_slots()
            hosts = [*sorted({host for host in self._slots if host is not None})]
        name = str(words[0])
        replies = []
        for host in hosts:
            self.meter.count("redis", name)
            try:
                replies.append((join(*host) if host else "", await self._lane(host).call(*words)))
            except RedisRefused as refused:
                raise self._explained(name, refused) from refused
        return replies

    async def subscribe(self, key: str, *channels: str) -> Subscription:
        """Subscribe to channels at the server that has ``key``, where its scripts publish. Later messages are
        received, until the subscription is lost."""
        host, left = await self._host(key), self._masters_left
        self.meter.count("redis", "SUBSCRIBE")
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._servers.open(host)
            subscription = await Subscription.begin(connection, self._timeout_s, channels)
        except RedisRefused as refused:
            raise self._explained("SUBSCRIBE", refused) from refused
        except (TimeoutError, RedisError, OSError) as error:
            self._forget(host)
            raise Unavailable(f"{self.address}: can't subscribe: {str(error) or 'no answer'}") from error
        except Unavailable:
            self._forget(host)
            raise
        self._subscriptions = [s for s in self._subscriptions if not s.closed] + [subscription]
        if self._servers.closed:
            await subscription.close()
            raise Unavailable(f"{self.address}: this connection is closed")
        if left != self._masters_left:
            await subscription.close()
            raise Unavailable(f"{self.address}: another server has become the master meanwhile")
        return subscription

    async def close(self) -> None:
        """Disconnect. Calls under way and later calls fail."""
        await self._servers.close()
        await asyncio.gather(
            *(lane.close() for lane in self.lanes.values()),
            *(subscription.close() for subscription in self._subscriptions),
        )

    async def _call(self, name: str, key: str, *words: Word) -> Any:
        host, asking, redirects = await self._host(key), False, 0
        while True:
            self.meter.count("redis", name)
            lane = self._lane(host)
            try:
                return await lane.call(*words, asking=asking)
            except RedisRefused as refused:
                if refused.code == "READONLY":
                    lane.leave()  # not the master any longer: the Sentinels name the new one
                elif refused.code == "CLUSTERDOWN":
                    self._forget(host)
                redirects += 1
                if host is None or refused.code not in ("MOVED", "ASK") or redirects > REDIRECTS_MAX:
                    raise
                host = self._redirected(refused, host)
                asking = refused.code == "ASK"
            except HoldfastError:
                self._forget(host)
                raise

    def _explained(self, name: str, refused: RedisRefused) -> HoldfastError:
        if refused.code in ("MOVED", "ASK") and self.address.kind != "cluster":
            return ConfigError(f"{self.address} is a node of a Cluster: write redis+cluster://HOST,HOST")
        return refused.explain(f"{name} at {self.address}")

    # --- which server: None stands for the only one, unless there is a Cluster

    async def _host(self, key: str) -> Host | None:
        if self.address.kind != "cluster":
            return None
        if not self._slots:
            await self._find_slots()
        host = self._slots[key_slot(key.encode())]
        if host is None:
            self._slots = []
            raise Unavailable(f"{self.address}: the slot of {key} has no master in the Cluster")
        return host

    def _lane(self, host: Host | None) -> Lane:
        lane = self.lanes.get(host)
        if lane is None:
            name = join(*host) if host else str(self.address)
            lane = self.lanes[host] = Lane(name, lambda: self._servers.open(host), self._timeout_s)
        return lane

    async def _find_slots(self) -> None:
        async with self._finding:
            if not self._slots:  # no other call has found them meanwhile
                self._slots = await self._servers.slots({host for host in self.lanes if host is not None})

    def _forget(self, host: Host | None) -> None:
        """Read the map of slots again, because ``host`` could not serve a slot that it should have."""
        if host is not None:
            self._slots = []

    def _redirected(self, refused: RedisRefused, host: Host) -> Host:
        """Return the server to which MOVED or ASK points; a reply without a host means the one that gave it.
        MOVED is noted in the map of slots."""
        slot, _, target = refused.text.partition(" ")
        name, _, port = target.rpartition(":")
        new = (name.strip("[]") or host[0], int(port))
        if refused.code == "MOVED" and self._slots:
            self._slots[int(slot)] = new
        return new

    async def _leave_master(self) -> None:
        self._masters_left += 1
        for lane in self.lanes.values():
            lane.leave()
        for subscription in self._subscriptions:
            await subscription.close()
