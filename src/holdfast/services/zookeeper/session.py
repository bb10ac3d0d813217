"""One ZooKeeper session for asyncio. Nothing blocks the loop: kazoo's threads post their events into it one
at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Watch, int_struct, write_string
from kazoo.protocol.states import EVENT_TYPE_MAP, EventType, KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from holdfast.errors import ConfigError, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.zookeeper.address import ZooKeeperAddress
from holdfast.services.zookeeper.layout import DIRECTORIES

SERVICE = "zookeeper"
CONNECT_S = 5.0
CALL_S = 5.0
RETRY_S = 0.5
PAST_S = 2.0
"""Seconds in which only servers are accepted that have everything this client has seen."""

RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}
ATTEMPT_S = 2.0
"""Seconds for one server. kazoo would try it until the session has expired."""


REFUSALS = (NoNodeError, NodeExistsError, BadVersionError)
"""Errors of a server for an operation that doesn't fit the present tree."""

_log = logging.getLogger("holdfast.zookeeper")


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """One operation of a transaction, and the error to raise if this one doesn't fit."""

    operation: str
    arguments: dict[str, Any]
    otherwise: Exception


def create(path: str, data: bytes, otherwise: Exception, *, sequence: bool = False) -> TransactionStep:
    """Make a znode. A numbered one (``sequence``) is persistent, any other ends with the session."""
    arguments = {"path": path, "value": data, "sequence": sequence, "ephemeral": not sequence}
    return TransactionStep("create", arguments, otherwise)


def delete(path: str, otherwise: Exception) -> TransactionStep:
    """Delete a znode that exists."""
    return TransactionStep("delete", {"path": path}, otherwise)


def check(path: str, otherwise: Exception) -> TransactionStep:
    """Go on only if the znode exists."""
    return TransactionStep("check", {"path": path, "version": -1}, otherwise)


def write(path: str, data: bytes, otherwise: Exception, *, version: int = -1) -> TransactionStep:
    """Write a znode that exists, at its version if one is given."""
    return TransactionStep("set_data", {"path": path, "value": data, "version": version}, otherwise)


class _AddWatch(NamedTuple):
    """The request for a watch on a znode and all below it, until the connection ends. Servers support it from
    3.6 on; kazoo doesn't."""

    path: str
    type: int = 106

    def serialize(self) -> bytearray:
        """Return the path and the mode (recursive)."""
        return bytearray(write_string(self.path) + int_struct.pack(1))

    def deserialize(self, data: bytes, offset: int) -> None:
        """Read nothing: the answer is empty."""


def check_files(address: ZooKeeperAddress) -> None:
    """Read the files for TLS before a session does so in the background. Raises ConfigError."""
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


class ZooKeeperSession:
    """A session, with the connection that carries it from server to server.

    ``id`` is the ``ephemeralOwner`` of its znodes, and ``connections`` counts how often it was connected.
    ``changed`` is called in the loop whenever the connection comes or goes; ``lost``, in kazoo's thread, when
    the session is over at the servers. What follows then is a new session of the same client.

    Calls raise Unavailable if nothing happened, OutcomeUnknown if a write may have, ConfigError if the
    servers don't let us in, and kazoo's NoNodeError, NodeExistsError and BadVersionError as they are."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        timeout_s: float,
        meter: Meter,
        *,
        changed: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = 0
        self._address = address
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._lost = lost
        self._negotiated_ms = 0
        self.connections = 0
        self._watched: dict[str, Callable[[str, EventType], None]] = {}
        self._closed = False
        self._stopping = threading.Lock()
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        credentials = f"{address.username}:{address.password}"
        self._trouble = _LastWarning()
        self._attempt_s = min(ATTEMPT_S, timeout_s / 3)
        self._client = KazooClient(
            handler=_Handler(self._attempt_s),
            hosts=address.servers,
            timeout=timeout_s,
            auth_data=[("digest", credentials)] if address.username else None,
            default_acl=CREATOR_ALL_ACL if address.username else OPEN_ACL_UNSAFE,
            connection_retry=RETRY,
            logger=self._trouble.logger,
            use_ssl=address.tls,
            ca=address.ca or None,
            certfile=address.cert or None,
            keyfile=address.key or None,
            check_hostname=address.tls,
        )
        self._client.add_listener(self._state_changed)
        self._listen_to_handshake()
        self._listen_to_events()

    async def open(self) -> None:
        """Connect, and make the directories that are missing. Raises Unavailable and ConfigError."""
        try:
            self._client.start_async()
            await self.until_connected(CONNECT_S)
            for path in DIRECTORIES:
                await self._read("create", self._ready().ensure_path_async(self._address.chroot + path))
            self._client.chroot = self._address.chroot  # from here on: it had to be made first
        except BaseException:
            self._loop.run_in_executor(None, self.stop)
            raise

    async def close(self) -> None:
        """End the session. Its ephemeral znodes disappear at once, if a server can be reached."""
        self._closed = True
        self._connected.set()  # ends all waits for it
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self.stop)

    def stop(self) -> None:
        """Like :meth:`close`, in a thread that may block."""
        with self._stopping, contextlib.suppress(WriterNotClosedException, OSError):
            self._client.stop()
            self._client.close()

    @property
    def client_id(self) -> tuple[int, bytes]:
        """The id and the password with which a client goes on with this session."""
        found: tuple[int, bytes] = self._client.client_id
        return found

    @property
    def connected(self) -> bool:
        """True unless the connection is known to be interrupted."""
        return self._connected.is_set() and self._client.connected  # which is the first to know

    @property
    def timeout_s(self) -> float:
        """The timeout of the session that the servers granted."""
        return self._negotiated_ms / 1000

    async def until_connected(self, timeout_s: float) -> None:
        """Wait for the connection. Raises Unavailable after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise Unavailable(f"no server of {self._address} lets us in{self._trouble.suffix}") from None

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background until the session is closed. The work must raise nothing."""
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- reads

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> tuple[bytes, Any]:
        """Return data and stat. ``watch`` is called in the loop at the next change, and when the connection
        goes. Give the same function at each call: it is kept once."""
        call = self._ready().get_async(path, self._watcher(watch))
        answer: tuple[bytes, Any] = await self._read("get", call)
        return answer

    async def get_or_none(self, path: str) -> tuple[bytes, Any] | None:
        """Return data and stat, or None where there is nothing."""
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Any:
        """Return the stat, or None."""
        return await self._read("exists", self._ready().exists_async(path, self._watcher(watch)))

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names in a directory; none if it is missing, and then ``watch`` isn't called."""
        call = self._ready().get_children_async(path, self._watcher(watch))
        try:
            names: list[str] = await self._read("getChildren", call)
        except NoNodeError:
            return []
        return names

    async def get_all(self, paths: Iterable[str]) -> list[tuple[bytes, Any] | None]:
        """Return data and stat of each, or None where there is nothing; sent together."""
        return await asyncio.gather(*(self.get_or_none(path) for path in paths))

    async def watch_below(self, directory: str, heard: Callable[[str, EventType], None]) -> bool:
        """Have ``heard`` called in the loop, with the znode's path and what happened to it, at each change
        below ``directory``, for as long as this connection lasts; and always before the change can be read.
        False if the servers can't do that: they are older than 3.6."""
        self._watched[directory] = heard
        client = self._ready()
        call = client.handler.async_result()
        client._call(_AddWatch(self._address.chroot + directory), call)
        try:
            await self._read("addWatch", call)
        except Unavailable as error:
            if isinstance(error.__cause__, UnimplementedError):
                return False
            raise
        return True

    async def sync(self) -> None:
        """Make later reads see all earlier writes."""
        await self._read("sync", self._ready().sync_async("/"))

    # --- writes

    async def create(self, path: str, data: bytes, *, sequence: bool = False) -> str:
        """Make an ephemeral znode; returns its path. Raises Unavailable if the directory is missing."""
        call = self._ready().create_async(path, data, ephemeral=True, sequence=sequence)
        try:
            return str(await self._write("create", call))
        except NoNodeError as error:
            raise self._translated(error, wrote=False) from error

    async def set(self, path: str, data: bytes, version: int = -1) -> Any:
        """Write a znode; returns its stat."""
        return await self._write("set", self._ready().set_async(path, data, version))

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode."""
        await self._write("delete", self._ready().delete_async(path, version))

    async def commit(self, steps: Sequence[TransactionStep]) -> list[Any]:
        """Take all steps at once, or none: then raises what the step that didn't fit stands for."""
        transaction = self._ready().transaction()
        for step in steps:
            getattr(transaction, step.operation)(**step.arguments)
        results: list[Any] = await self._write("multi", transaction.commit_async())
        for step, result in zip(steps, results, strict=True):
            if isinstance(result, KazooException) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise step.otherwise if _refuses(step, result) else self._translated(result, wrote=False)
        return results

    def discard(self, path: str, data: bytes | None = None) -> None:
        """Delete a znode in the background, with retries; if ``data`` is given, only if the
        znode holds it. Ends when the znode or the session is gone."""
        self.spawn(self._discard(path, data, self.id))

    async def _discard(self, path: str, data: bytes | None, session: int) -> None:
        while self.id == session:
            try:
                if data is None or (await self.get(path))[0] == data:
                    await self.delete(path)
                return
            except NoNodeError:
                return
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(RETRY_S)
            except HoldfastError:
                return

    # --- how it is done

    async def _read(self, operation: str, call: Any) -> Any:
        return await self._answer(operation, call, wrote=False)

    async def _write(self, operation: str, call: Any) -> Any:
        return await self._answer(operation, call, wrote=True)

    async def _answer(self, operation: str, call: Any, *, wrote: bool) -> Any:
        self._meter.count(SERVICE, operation)
        future: asyncio.Future[Any] = self._loop.create_future()
        call.rawlink(lambda result: self.post(_settle, future, result))
        try:
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            error = OutcomeUnknown if wrote else Unavailable
            raise error(f"{self._address}: no answer within {CALL_S:g} s") from None
        except REFUSALS:
            raise
        except KazooException as error:
            raise self._translated(error, wrote=wrote) from error

    def _translated(self, error: KazooException, *, wrote: bool) -> HoldfastError:
        text = f"{self._address}: {type(error).__name__} {error}".rstrip()
        if isinstance(error, NoAuthError | AuthFailedError | InvalidACLError):
            return ConfigError(f"{text}: these znodes belong to others; give the user that made them")
        return OutcomeUnknown(text) if wrote else Unavailable(text)

    def _ready(self) -> KazooClient:
        """Return the client if it is connected: while interrupted it would keep calls, and send them late."""
        if not self.connected:
            raise Unavailable(f"{self._address}: the connection is interrupted{self._trouble.suffix}")
        return self._client

    def _watcher(self, watch: Callable[[], None] | None) -> Callable[[Any], None] | None:
        return None if watch is None else _Watcher(self.post, watch)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.id = self._client.client_id[0]
        elif state == KazooState.LOST:
            self._lost()
        self.post(self._note_state, state)

    def _note_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
            self.connections += 1
        else:
            self._connected.clear()
            self._loop.call_later(PAST_S, self._accept_any_past, self.connections)
        self._changed()

    def _accept_any_past(self, connections: int) -> None:
        """Forget the last zxid: servers that lost their data reject a client that has seen more than they
        have. Without it they report that the session is lost."""
        if self.connections == connections:
            self._client.last_zxid = 0

    def _listen_to_handshake(self) -> None:
        """Keep the timeout that was agreed upon, which kazoo drops, and limit the wait to that of any
        attempt."""
        connection = self._client._connection
        invoke = connection._invoke

        def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout, request, xid)
            answer = invoke(min(timeout, self._attempt_s), request, xid)
            self._negotiated_ms = answer[0].time_out
            return answer

        connection._invoke = listening

    def _listen_to_events(self) -> None:
        """Report events below watched directories, which kazoo ignores."""
        connection = self._client._connection
        read = connection._read_watch_event

        def listening(buffer: bytes, offset: int) -> None:
            event, _ = Watch.deserialize(buffer, offset)
            path = event.path.removeprefix(self._address.chroot)
            heard = self._watched.get(path.rpartition("/")[0])
            if heard is not None and event.type in EVENT_TYPE_MAP:
                self.post(heard, path, EVENT_TYPE_MAP[event.type])
            read(buffer, offset)

        connection._read_watch_event = listening


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with a limit of ``attempt_s`` for each connection to a server."""

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self._attempt_s = attempt_s

    def create_connection(self, *arguments: Any, timeout: float, **named: Any) -> Any:
        return super().create_connection(*arguments, timeout=min(timeout, self._attempt_s), **named)


class _LastWarning(logging.Handler):
    """Keeps kazoo's last warning, to add it to the errors that follow from it; logs only worse ones. At DEBUG
    kazoo writes whole requests, credentials and all: no setting may ask for that."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.logger = logging.Logger(_log.name, logging.WARNING)  # noqa: LOG001 (a session's own)
        self.logger.addHandler(self)
        self._last = ""

    @property
    def suffix(self) -> str:
        """The last warning in parentheses, to end an error text."""
        return f" ({self._last})" if self._last else ""

    def emit(self, record: logging.LogRecord) -> None:
        self._last = record.getMessage()
        if record.levelno > logging.WARNING:
            _log.handle(record)


@dataclass(frozen=True, slots=True)
class _Watcher:
    """A watch, equal to any other of the same function, so that kazoo keeps one."""

    post: Callable[..., None]
    function: Callable[[], None]

    def __call__(self, event: Any) -> None:
        self.post(self.function)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is None:
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)


def _refuses(step: TransactionStep, error: KazooException) -> bool:
    """True if the step didn't fit; False if something else is wrong, such as a directory that is gone."""
    expected = NodeExistsError if step.operation == "create" else (NoNodeError, BadVersionError)
    return isinstance(error, expected)
