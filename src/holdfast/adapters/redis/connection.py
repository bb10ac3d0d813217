"""The way to Redis: a single server, the master that Sentinels name, or the nodes of a Cluster.

The same calls for all three. Each names a key, which tells the server in a Cluster, and every call is one
round trip, shared with the calls made at the same time. Nothing is sent twice behind the caller's back,
unless the first was refused without effect (a script the server doesn't know yet, a key that has moved).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import RedisError

from holdfast.adapters.redis.address import RedisAddress, join, parse
from holdfast.adapters.redis.lane import Lane, Word, discard
from holdfast.adapters.redis.refusals import Parser, Refused
from holdfast.adapters.redis.script import Script
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.ports.meter import Meter

__all__ = ["RedisAddress", "RedisConnection", "Script", "Subscription", "parse"]

TIMEOUT_S = 2.0
REDIRECTS_MAX = 4
QUIET_S = 5.0
"""A subscription that hears nothing for so long asks whether the server is still there."""

Host = tuple[str, int]
T = TypeVar("T")


class RedisConnection:
    """Calls to Redis. ``timeout_s`` bounds each step of a call: connecting, and the answer.

    Calls raise Unavailable if they had no effect and may be made again, OutcomeUnknown if they may have had
    one, ConfigError if the server lets this user in not at all, and OperationRefused for any other refusal.
    """

    def __init__(self, address: RedisAddress, meter: Meter, *, timeout_s: float = TIMEOUT_S) -> None:
        _check_files(address)
        self.address = address
        self._meter = meter
        self._timeout_s = timeout_s
        self._lanes: dict[Host | None, Lane] = {}
        self._slots: list[Host | None] = []
        self._finding = asyncio.Lock()
        self._subscriptions: set[Subscription] = set()
        self._closed = False

    def apart(self, timeout_s: float) -> RedisConnection:
        """Another connection to the same, for calls that may block the server's answers for long: they hold
        up no others there. To be closed by itself."""
        return RedisConnection(self.address, self._meter, timeout_s=timeout_s)

    # --- calls

    async def script(self, script: Script, keys: Sequence[str], *arguments: Word) -> Any:
        """Run a script; its keys are on one server. The reply is of bytes, numbers, lists and None."""
        words = (script.sha, len(keys), *keys, *arguments)
        try:
            return await self._call(script.name, keys[0], "EVALSHA", *words)
        except Refused as refused:
            if refused.code != "NOSCRIPT":
                raise self._explained(script.name, refused) from refused
        # The server is new or has restarted. The text goes where the digest went, and is kept there.
        try:
            return await self._call(script.name, keys[0], "EVAL", script.text, *words[1:])
        except Refused as refused:
            raise self._explained(script.name, refused) from refused

    async def command(self, key: str, *words: Word) -> Any:
        """Run one command at the server that has ``key``."""
        name = str(words[0])
        try:
            return await self._call(name, key, *words)
        except Refused as refused:
            raise self._explained(name, refused) from refused

    async def together(self, key: str, *commands: Sequence[Word]) -> list[Any]:
        """Run commands one after the other, over one connection, at the server that has ``key``."""
        for words in commands:
            self._meter.count("redis", str(words[0]))
        host = await self._host(key)
        try:
            replies: list[Any] = await self._lane(host).together(*commands)
        except HoldfastError:
            self._forget(host)
            raise
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Refused):
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
            self._meter.count("redis", name)
            try:
                replies.append((join(*host) if host else "", await self._lane(host).call(*words)))
            except Refused as refused:
                raise self._explained(name, refused) from refused
        return replies

    async def subscribe(self, key: str, *channels: str) -> Subscription:
        """Listen to channels at the server that has ``key``, which is where its scripts publish. What is
        published from the return on is heard, until the subscription is lost."""
        host = await self._host(key)
        self._meter.count("redis", "SUBSCRIBE")
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._way(host)()
                subscription = Subscription(self, connection, self._timeout_s)
                try:
                    await subscription.begin(channels)
                    self._check_open()
                except BaseException:
                    await discard(connection)
                    raise
        except Refused as refused:
            raise self._explained("SUBSCRIBE", refused) from refused
        except (TimeoutError, RedisError, OSError) as error:
            self._forget(host)
            raise Unavailable(f"{self.address}: can't subscribe: {_told(error)}") from error
        except Unavailable:
            self._forget(host)
            raise
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        """Disconnect. What is under way fails, and so does what comes."""
        self._closed = True
        await asyncio.gather(
            *(lane.close() for lane in self._lanes.values()),
            *(subscription.close() for subscription in list(self._subscriptions)),
        )

    async def _call(self, name: str, key: str, *words: Word) -> Any:
        host, asking, redirects = await self._host(key), False, 0
        while True:
            self._meter.count("redis", name)
            lane = self._lane(host)
            try:
                return await lane.call(*words, asking=asking)
            except Refused as refused:
                if refused.code == "READONLY":
                    lane.leave()  # a master no more: the Sentinels are asked for the new one
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

    def _explained(self, name: str, refused: Refused) -> HoldfastError:
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
        lane = self._lanes.get(host)
        if lane is None:
            name = join(*host) if host else str(self.address)
            lane = self._lanes[host] = Lane(name, self._way(host), self._timeout_s)
        return lane

    def _way(self, host: Host | None) -> Callable[[], Awaitable[Connection]]:
        if host is not None:
            return lambda: self._open(host)
        if self.address.kind == "sentinel":
            return self._open_master
        return lambda: self._open(self.address.hosts[0])

    def _forget(self, host: Host | None) -> None:
        """Ask again who has which slot: ``host`` could not serve what it should have."""
        if host is not None:
            self._slots = []

    def _redirected(self, refused: Refused, host: Host) -> Host:
        """Where MOVED and ASK point; a reply without a host means the one that gave it."""
        slot, _, target = refused.text.partition(" ")
        name, _, port = target.rpartition(":")
        new = (name.strip("[]") or host[0], int(port))
        if refused.code == "MOVED" and self._slots:
            self._slots[int(slot)] = new
        return new

    async def _find_slots(self) -> None:
        async with self._finding:
            if self._slots:
                return  # another call has found them
            known = {host for host in self._lanes if host is not None} | set(self.address.hosts)
            self._meter.count("redis", "CLUSTER SLOTS")
            self._slots = await self._first([self._slots_by(host) for host in sorted(known)])

    async def _slots_by(self, host: Host) -> list[Host | None]:
        ranges = await self._ask(host, "CLUSTER", "SLOTS")
        slots: list[Host | None] = [None] * 16384
        for first, last, master, *_ in ranges:
            name, port = (master[0] or b"").decode(), master[1]
            slots[first : last + 1] = [(name or host[0], port)] * (last - first + 1)
        return slots

    async def _open_master(self) -> Connection:
        """A connection to the master that the Sentinels name."""
        self._meter.count("redis", "SENTINEL")
        return await self._open(await self._first([self._master_by(host) for host in self.address.hosts]))

    async def _master_by(self, sentinel: Host) -> Host:
        """The master that one Sentinel names, if it is one: news of a fail-over reaches some late."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)
        try:
            found = await self._ask_bare(sentinel, *words, credentials=False)
        except Refused as refused:
            if refused.code != "NOAUTH":
                raise refused.explain(join(*sentinel)) from refused
            found = await self._ask(sentinel, *words)
        if found is None:
            raise ConfigError(
                f"{join(*sentinel)}: this Sentinel watches no master named {self.address.service!r};"
                " write the name that its configuration has after 'sentinel monitor'"
            )
        host = found[0].decode(), int(found[1])
        if (await self._ask(host, "ROLE"))[0] != b"master":
            raise Unavailable(f"{join(*host)}: a Sentinel names it master, but it is none")
        return host

    async def _ask(self, host: Host, *words: str) -> Any:
        """The answer to one question, over a connection made for it."""
        try:
            return await self._ask_bare(host, *words, credentials=True)
        except Refused as refused:
            raise refused.explain(f"{words[0]} at {join(*host)}") from refused

    async def _ask_bare(self, host: Host, *words: str, credentials: bool) -> Any:
        connection = await self._open(host, db=0, credentials=credentials)
        try:
            await connection.send_command(*words, check_health=False)
            return await connection.read_response()
        except Refused:
            raise
        except (RedisError, OSError) as error:
            raise Unavailable(f"{join(*host)}: {error}") from error
        finally:
            await discard(connection)

    async def _first(self, attempts: Sequence[Awaitable[T]]) -> T:
        """The first success of attempts made at the same time, so that a dead server costs no time."""
        tasks = [asyncio.ensure_future(attempt) for attempt in attempts]
        errors: list[HoldfastError] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                for done in asyncio.as_completed(tasks):
                    try:
                        return await done
                    except HoldfastError as error:
                        errors.append(error)
        except TimeoutError:
            errors.append(Unavailable(f"no answer within {self._timeout_s:g} s"))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        wrong = [error for error in errors if isinstance(error, ConfigError)]
        if len(wrong) == len(attempts):
            raise wrong[0]
        raise Unavailable("; ".join(dict.fromkeys(str(error) for error in errors)))

    async def _open(self, host: Host, *, db: int | None = None, credentials: bool = True) -> Connection:
        """A new connection, let in and ready. Raises Unavailable or ConfigError."""
        self._check_open()
        address = self.address
        options: dict[str, Any] = {
            "host": host[0],
            "port": host[1],
            "db": address.db if db is None else db,
            "username": (credentials and address.username) or None,
            "password": (credentials and address.password) or None,
            "protocol": 2,
            "parser_class": Parser,
            # The caller bounds the time; the library's own timers would be set and cleared for every reply.
            "socket_timeout": None,
            "socket_connect_timeout": None,
        }
        if address.tls:
            options |= {
                "ssl_ca_certs": address.ca or None,
                "ssl_certfile": address.cert or None,
                "ssl_keyfile": address.key or None,
            }
        connection = SSLConnection(**options) if address.tls else Connection(**options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except Refused as refused:
            raise refused.explain(join(*host)) from refused
        except (RedisError, OSError) as error:
            raise _unreachable(join(*host), error) from error
        except BaseException:
            await discard(connection)
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.address}: this connection is closed")

    def _ended(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)


class Subscription:
    """What is published on some channels, in order, until the connection is lost. For one reader."""

    def __init__(self, owner: RedisConnection, connection: Connection, timeout_s: float) -> None:
        self._owner = owner
        self._connection = connection
        self._timeout_s = timeout_s

    async def begin(self, channels: Sequence[str]) -> None:
        """Subscribe, and wait until the server has."""
        await self._connection.send_command("SUBSCRIBE", *channels, check_health=False)
        for _ in channels:
            await self._connection.read_response()

    async def next(self) -> tuple[str, bytes]:
        """The next message and its channel. Raises Unavailable when the subscription is lost; what is
        published then is missed."""
        try:
            while True:
                kind, *rest = await self._heard()
                if kind == b"message":
                    return rest[0].decode(), rest[1]
        except (TimeoutError, RedisError, OSError) as error:
            await self.close()
            raise Unavailable(f"the subscription is lost: {_told(error)}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect."""
        self._owner._ended(self)
        await discard(self._connection)

    async def _heard(self) -> Any:
        """The next reply. Silence may be that of a server which is gone, so it is asked."""
        heard = await self._connection.read_response(timeout=QUIET_S)
        if heard is not None:
            return heard
        async with asyncio.timeout(self._timeout_s):
            await self._connection.send_command("PING", check_health=False)
            return await self._connection.read_response()


def _told(error: BaseException) -> str:
    return str(error) or "no answer"


def _unreachable(name: str, error: BaseException) -> HoldfastError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"{name}: its certificate is not trusted ({cause.verify_message}); name the authority's file"
                " with ?ca=PATH, and the host as the certificate does"
            )
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"{name}: {error}")


def _check_files(address: RedisAddress) -> None:
    """Read the files for TLS now, while somebody is there to be told."""
    if not address.tls:
        return
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except OSError as error:
        raise ConfigError(
            f"{address}: can't load the files for TLS ({error}); ca, cert and key are paths of PEM files"
        ) from error
