"""The doorbell: wakes waiting calls in all processes of the host, without polling.

Every event loop that waits has a FIFO in a directory beside the database. A process that has committed
something writes the hashes of the changed topics to all FIFOs. A ring may be lost (a full FIFO, a killed
process), so waiters also check every ``SAFETY_S`` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path

from holdfast.system.files import OWNER, Access, restrict
from holdfast.system.log import get_logger

log = get_logger(__name__)

SAFETY_S = 1.0
"""Seconds between a waiter's own checks."""

HASH_BYTES = 8
WRITE_BYTES = 512
"""Maximum bytes that POSIX writes to a FIFO in one piece."""

READ_BYTES = 65_536
FLOOD_BYTES = 4_096
"""Unread bytes from which on the FIFO may have been full. Every topic then counts as rung."""

SETTLED_S = 1.0
"""Seconds after a directory's change within which another one may leave its time stamp as it is."""


class Doorbell:
    """The doorbell of the processes that share ``directory``. ``name`` is unique to this process."""

    def __init__(self, directory: Path, name: str, access: Access = OWNER) -> None:
        self.directory = directory
        self._access = access
        self._name = name
        self._mutex = threading.Lock()
        self._listeners: dict[asyncio.AbstractEventLoop, _LoopListener] = {}
        self._numbers = itertools.count(1)
        self.ringing = threading.Lock()
        self._others: dict[str, int] = {}
        self._listed_at_ns = -1
        restrict(directory, access.folder)
        directory.mkdir(access.folder, exist_ok=True)

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever ``topic`` is rung. Clear it, check, then wait for it."""
        listener, hashed = self._listener(), _hash(topic)
        event = asyncio.Event()
        events = listener.events.setdefault(hashed, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events and listener.events.get(hashed) is events:
                del listener.events[hashed]

    @property
    def is_awaited(self) -> bool:
        """True if something of this process waits for a topic."""
        with self._mutex:
            return any(listener.events for listener in self._listeners.values())

    def ring(self, topics: Collection[str]) -> None:
        """Wake all waiters for any of ``topics``. Any thread may call it."""
        self.ring_here(topics)
        hashes = [_hash(topic) for topic in topics]
        with self.ringing:
            for name in self._list_others():
                self._write(name, hashes)

    def ring_here(self, topics: Collection[str]) -> None:
        """Wake waiters for any of ``topics`` in this process."""
        hashes = [_hash(topic) for topic in topics]
        with self._mutex:
            listeners = list(self._listeners.values())
        for listener in listeners:
            if not listener.events.keys().isdisjoint(hashes):
                call_soon(listener.loop, listener.hear, hashes)

    def close(self) -> None:
        """Remove all waiters and FIFOs of this process."""
        with self._mutex:
            listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.close()
        with self.ringing:
            for fd in self._others.values():
                os.close(fd)
            self._others.clear()

    # --- this process

    def _listener(self) -> _LoopListener:
        loop = asyncio.get_running_loop()
        with self._mutex:
            for other in [loop for loop in self._listeners if loop.is_closed()]:
                self._listeners.pop(other).close()
            if loop not in self._listeners:
                self._listeners[loop] = _LoopListener(
                    self.directory / f"{self._name}.{next(self._numbers)}", loop, self._access.file
                )
            return self._listeners[loop]

    # --- other processes

    def _list_others(self) -> list[str]:
        """Return the names of the FIFOs of other processes."""
        try:
            changed_at_ns = self.directory.stat().st_mtime_ns
            unchanged = changed_at_ns == self._listed_at_ns
            names = set() if unchanged else {path.name for path in self.directory.iterdir()}
        except FileNotFoundError:  # the directory was deleted: there is no other process to wake
            return []
        except OSError:  # such as no file descriptor left: wake the known ones
            return list(self._others)
        if not unchanged:
            names = {name for name in names if not name.startswith((f"{self._name}.", "."))}
            for gone in self._others.keys() - names:
                os.close(self._others.pop(gone))
            opened = [self._open(name) for name in names - self._others.keys()]
            settled = time.time_ns() - changed_at_ns > SETTLED_S * 1e9
            self._listed_at_ns = changed_at_ns if settled and all(opened) else -1
        return list(self._others)

    def _open(self, name: str) -> bool:
        """Open a FIFO; return False if that is to be tried again."""
        try:
            self._others[name] = os.open(self.directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                return False
            (self.directory / name).unlink(missing_ok=True)  # it has no reader, so its process has ended
        return True

    def _write(self, name: str, hashes: list[bytes]) -> None:
        data = b"".join(hashes)
        try:
            for begin in range(0, len(data), WRITE_BYTES):
                os.write(self._others[name], data[begin : begin + WRITE_BYTES])
        except BlockingIOError:
            pass  # it is full, so its process wakes anyway
        except OSError:
            os.close(self._others.pop(name))
            (self.directory / name).unlink(missing_ok=True)


class _LoopListener:
    """The FIFO of one event loop, and the waiters in that loop."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, mode: int) -> None:
        self.path = path
        self.loop = loop
        self.events: dict[bytes, set[asyncio.Event]] = {}
        self._fds: list[int] = []
        hidden = path.with_name(f".{path.name}")
        try:
            hidden.unlink(missing_ok=True)
            os.mkfifo(hidden, mode)
            self._fds.append(os.open(hidden, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            # Keep a writer open here, so that the FIFO isn't at its end when no other process has one open.
            self._fds.append(os.open(hidden, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            hidden.rename(path)  # others may write only now: they remove a FIFO without a reader
        except OSError as error:
            log.warning("cannot create doorbell", path=str(path), error=str(error))
            return
        loop.add_reader(self._fds[0], self._read)

    def hear(self, hashes: list[bytes]) -> None:
        """Wake the waiters for these topics."""
        for hashed in hashes:
            for event in self.events.get(hashed, ()):
                event.set()

    def close(self) -> None:
        """Stop listening, without waiting."""
        self.path.unlink(missing_ok=True)
        if not self._fds or self.loop.is_closed():
            self._close_fds()
        elif asyncio._get_running_loop() is self.loop:
            self._hang_up()
        else:
            call_soon(self.loop, self._hang_up)

    def _hang_up(self) -> None:
        self.loop.remove_reader(self._fds[0])
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._fds[0], READ_BYTES)
        except BlockingIOError:
            return
        if len(data) >= FLOOD_BYTES:
            self.hear(list(self.events))
        else:
            self.hear([data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)])


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    """Run ``callback`` in the loop, unless it is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


@lru_cache(maxsize=4096)
def _hash(topic: str) -> bytes:
    return hashlib.blake2b(topic.encode(), digest_size=HASH_BYTES).digest()
