"""Finds the servers of an address, and opens connections to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import RedisError

from holdfast.common.service_urls import Host, join
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.redis.address import RedisAddress
from holdfast.services.redis.lane import discard
from holdfast.services.redis.refusals import Parser, RedisRefused
from holdfast.services.redis.subscription import Subscription

FOLLOW_AGAIN_S = 1.0
"""Seconds after a Sentinel was lost, before another is asked to report new masters."""

NEWS_S = 10.0
"""Seconds for which one Sentinel's report of a new master outweighs the answers of the others, which may
still name the old one."""

SLOTS = 16384

DRIVER: dict[str, Any] = {}
"""The name and version of the library, sent by connections. Made once: redis-py would read its package's
metadata for each connection, which takes longer than to connect."""

with contextlib.suppress(ImportError):  # older ones know no such setting
    from redis.driver_info import DriverInfo

    DRIVER["driver_info"] = DriverInfo()

T = TypeVar("T")


class RedisServers:
    """The servers of an address. ``on_new_master`` is called when the Sentinels have made another server the
    master, while the old one may still live.

    Methods raise Unavailable, or ConfigError if the address is not of such a server, or refuses this user.
    """

    def __init__(
        self,
        address: RedisAddress,
        meter: Meter,
        timeout_s: float,
        on_new_master: Callable[[], Awaitable[None]],
    ) -> None:
        _check_files(address)
        self._address = address
        self._meter = meter
        self._timeout_s = timeout_s
        self._on_new_master = on_new_master
        self._master: Host | None = None
        self._news_until = 0.0
        self._following: asyncio.Task[None] | None = None
        self._sentinels_want_password = False
        self.closed = False

    async def open(self, host: Host | None) -> Connection:
        """Return a new connection, let in and ready; to a node of the Cluster, or else (None) to the one
        server that counts."""
        if host is not None:
            return await self._open(host)
        if self._address.kind == "sentinel":
            return await self._open_master()
        return await self._open(self._address.hosts[0])

    async def slots(self, nodes: set[Host]) -> list[Host | None]:
        """Return the master of each slot of the Cluster, from the first node that answers."""
        self._meter.count("redis", "CLUSTER SLOTS")
        return await self._first([self._slots_by(node) for node in sorted(nodes | {*self._address.hosts})])

    async def close(self) -> None:
        """Refuse further connections."""
        self.closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _slots_by(self, node: Host) -> list[Host | None]:
        slots: list[Host | None] = [None] * SLOTS
        for first, last, master, *_ in await self._ask(node, "CLUSTER", "SLOTS"):
            name, port = (master[0] or b"").decode(), master[1]
            slots[first : last + 1] = [(name or node[0], port)] * (last - first + 1)
        return slots

    # --- the master by Sentinels

    async def _open_master(self) -> Connection:
        if self._master is not None and asyncio.get_running_loop().time() < self._news_until:
            return await self._open(self._master)
        self._meter.count("redis", "SENTINEL")
        self._master = await self._first([self._master_by(host) for host in self._address.hosts])
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        return await self._open(self._master)

    async def _master_by(self, sentinel: Host) -> Host:
        """Return the master that one Sentinel names. Raises Unavailable if that server isn't a master: some
        Sentinels learn of a fail-over late."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
        found = await self._ask(sentinel, *words, credentials=self._sentinels_want_password)
        if found is None:
            raise ConfigError(
                f"{join(*sentinel)}: this Sentinel watches no master named {self._address.service!r};"
                " write the name that its configuration has after 'sentinel monitor'"
            )
        host = found[0].decode(), int(found[1])
        if (await self._ask(host, "ROLE"))[0] != b"master":
            raise Unavailable(f"{join(*host)}: a Sentinel names it as master, but it isn't one")
        return host

    async def _follow(self) -> None:
        """Subscribe to a Sentinel's reports of a new master. An old master that is still alive learns of it
        late, and loses what it was sent in those seconds."""
        for sentinel in itertools.cycle(self._address.hosts):
            with contextlib.suppress(HoldfastError, RedisError, OSError):
                await self._follow_by(sentinel)
            await asyncio.sleep(FOLLOW_AGAIN_S)

    async def _follow_by(self, sentinel: Host) -> None:
        async with asyncio.timeout(self._timeout_s):
            connection = await self._open(sentinel, db=0, credentials=self._sentinels_want_password)
        subscription = await Subscription.begin(connection, self._timeout_s, ["+switch-master"])
        try:
            while True:
                async with asyncio.timeout(self._timeout_s):
                    master = await self._master_by(sentinel)
                if master != self._master:
                    self._master = master
                    self._news_until = asyncio.get_running_loop().time() + NEWS_S
                    await self._on_new_master()
                await subscription.next()
        finally:
            await subscription.close()

    # --- connections

    async def _ask(self, host: Host, *words: str, credentials: bool = True) -> Any:
        """Return the answer to one question, over a connection made for it."""
        connection = await self._open(host, db=0, credentials=credentials)
        try:
            await connection.send_command(*words, check_health=False)
            return await connection.read_response()
        except RedisRefused as refused:
            if refused.code == "NOAUTH" and not credentials and self._address.password:
                self._sentinels_want_password = True  # from now on; most want none, and refuse one
                return await self._ask(host, *words)
            raise refused.explain(f"{words[0]} at {join(*host)}") from refused
        except (RedisError, OSError) as error:
            raise Unavailable(f"{join(*host)}: {error}") from error
        finally:
            await discard(connection)

    async def _first(self, attempts: Sequence[Awaitable[T]]) -> T:
        """Return the first success of attempts made at the same time, so that a dead server costs no time."""
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
            await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [error for error in errors if isinstance(error, ConfigError)]
        if len(wrong) == len(attempts):
            raise wrong[0]
        raise Unavailable("; ".join(dict.fromkeys(str(error) for error in errors)))

    async def _open(self, host: Host, *, db: int | None = None, credentials: bool = True) -> Connection:
        if self.closed:
            raise Unavailable(f"{self._address}: this connection is closed")
        address = self._address
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
            **DRIVER,
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
        except BaseException as error:
            await discard(connection)
            if isinstance(error, RedisRefused):
                raise error.explain(join(*host)) from error
            if isinstance(error, RedisError | OSError):
                raise _unreachable(join(*host), error) from error
            raise
        return connection


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
    """Read the files for TLS now, so that the caller gets the error."""
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
