"""A destination on an FTP server.

Each connection has a thread: the protocol is one blocking exchange after the other, and large writes to a
socket cost a thread next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ftplib
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.errors import ConfigError, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import NO_RENAMING, SinkBase, UploadBase
from holdfast.reports.sinks.ftp.control import Control, port_errors, send, shut
from holdfast.reports.sinks.ftp.url import FtpUrl

T = TypeVar("T")

TIMEOUT_S = 60.0
ABORT_S = 5.0
CUT_S = 0.2
"""Seconds for the server to report that a transfer was cut short."""

CHUNK_BYTES = 1 << 18


class FtpSink(SinkBase):
    """A folder on an FTP server. The first call connects, and the first after a broken connection.

    An upload is written with STOR, and resumed with REST. REST names a place in the file, so a former owner
    that still writes the same bytes does no harm. With APPE it would.

    ``timeout_s``: the longest silence of the server, in seconds.
    """

    can_resume = True
    can_rename = True

    def __init__(
        self, url: FtpUrl, user: str = "anonymous", password: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.url = url
        self._user = user
        self._password = password
        self._timeout_s = timeout_s
        self._control: Control | None = None
        self._thread = ThreadPoolExecutor(1, "ftp")
        self._closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        check(name)
        size = await self.run(f"can't look for {name!r}", lambda control: control.size_of(name))
        return None if size is None else RemoteFile(name, size)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> FtpUpload:
        check(name), check(temporary)
        if not replace:
            await self.check_absent(name)
        return FtpUpload(self, name, temporary, replace=replace)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> FtpUpload | None:
        check(name), check(temporary), check(token)

        def take_over(control: Control) -> int | None:
            if "STREAM" not in control.features.get("REST", "") or control.size_of(token) is None:
                _delete(control, token)
                return None
            try:
                control.rename(token, temporary)
            except ftplib.error_perm:  # another process was quicker
                return None
            return control.size_of(temporary)

        held = await self.run(f"can't go on with {name!r}", take_over)
        return None if held is None else FtpUpload(self, name, temporary, replace=replace, held=held)

    async def discard(self, name: str, token: str) -> None:
        check(token)
        await self.run(f"can't remove {token!r}", lambda control: _delete(control, token))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        what = f"can't read {check(name)!r}"
        if await self.stat(name) is None:
            raise FileNotFoundError(name)
        connection = await self.run(what, lambda control: control.transfercmd(f"RETR {name}"))
        try:
            while chunk := await self.run(what, lambda _: connection.recv(CHUNK_BYTES)):
                yield chunk
        except BaseException:
            self._lose(connection)
            raise
        await self.run(what, lambda control: control.finish(connection))

    async def close(self) -> None:
        self._closed = True
        control, self._control = self._control, None
        if control is not None:
            control.interrupt()
            control.close()
        self._thread.shutdown(wait=False)

    async def run(self, what: str, call: Callable[[Control], T]) -> T:
        """Call a function in the session's thread. Raises the port's errors; ``what`` begins their texts."""
        if self._closed:
            raise Unavailable(f"{what}: the connection is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, what, call)

    def interrupt(self) -> None:
        """Have the running call fail."""
        if self._control is not None:
            self._control.interrupt()

    def set_timeout(self, seconds: float | None = None) -> None:
        """Set the longest silence of the server from now on; None: the first value."""
        if self._control is not None:
            self._control.set_timeout(self._timeout_s if seconds is None else seconds)

    def _do(self, what: str, call: Callable[[Control], T]) -> T:
        control = self._control
        if control is None:
            control = self._control = Control(self.url, self._user, self._password, self._timeout_s)
            if self._closed:  # meanwhile
                self._drop(control)
                raise Unavailable(f"{what}: the connection is closed")
        with port_errors(f"{what} at {self.url}"):
            try:
                return call(control)
            except (ftplib.error_reply, ftplib.error_proto, OSError, EOFError):
                self._drop(control)  # its next answer may belong to this call
                raise

    def _drop(self, control: Control) -> None:
        if self._control is control:
            self._control = None
        control.interrupt()
        control.close()

    def _lose(self, connection: socket.socket) -> None:
        """Give up a transfer, and the session with it."""
        shut(connection)
        connection.close()
        if self._control is not None:
            self._drop(self._control)


class FtpUpload(UploadBase):
    """The upload of one file."""

    def __init__(self, sink: FtpSink, name: str, temporary: str, *, replace: bool, held: int = 0) -> None:
        super().__init__(name, temporary, replace=replace, held=held)
        self._sink = sink
        self._connection: socket.socket | None = None
        self._sending = False
        self._over = False

    async def write(self, data: Data) -> None:
        await self._run(lambda control: self._send(control, data))
        self.sent_bytes += len(data)

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        await self._run(self._finish)
        await self._run(lambda control: self._compare(control, sha256, read_back=read_back))
        if self.token != self.name:
            if not self.replace:
                await self._sink.check_absent(self.name)
            await self._run(self._rename)
        self._over = True
        return RemoteFile(self.name, self.sent_bytes)

    async def abort(self) -> None:
        self._sink.set_timeout(CUT_S)  # a slow line is still busy with sent bytes: then the session ends
        shut(self._connection, unsent=False)  # the running write fails now
        await self._end(lambda control: _delete(control, self.token))
        self._sink.set_timeout()

    async def leave(self) -> None:
        if self._sending:
            shut(self._connection)  # a cancelled write still runs
        await self._end()

    async def _run(self, call: Callable[[Control], T]) -> T:
        return await self._sink.run(f"can't write {self.name!r}", call)

    async def _end(self, last: Callable[[Control], None] | None = None) -> None:
        if self._over:
            return
        self._over = True

        def end(control: Control) -> None:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(ftplib.Error):
                    control.finish(connection)

        try:
            async with asyncio.timeout(ABORT_S):
                for step in (end, last) if last is not None else (end,):
                    with contextlib.suppress(HoldfastError):
                        await self._run(step)
        except TimeoutError:
            self._sink.interrupt()

    def _begin(self, control: Control) -> socket.socket:
        command, rest = f"STOR {self.token}", self.sent_bytes or None
        try:
            connection = control.transfercmd(command, rest)
        except ftplib.error_perm:
            if "/" not in self.token:
                raise
            control.make_folders(self.token)
            connection = control.transfercmd(command, rest)
        self._connection = connection
        return connection

    def _send(self, control: Control, data: Data) -> None:
        connection = self._connection or self._begin(control)
        self._sending = True
        try:
            send(connection, data)
        except OSError:
            self._connection = None
            connection.close()
            control.complain()
            raise
        finally:
            self._sending = False

    def _finish(self, control: Control) -> None:
        connection, self._connection = self._connection or self._begin(control), None
        control.finish(connection, self.sent_bytes)

    def _compare(self, control: Control, sha256: str, *, read_back: bool) -> None:
        size = control.size_of(self.token)
        if size is None:
            raise self.taken_over()
        self.check_size(size)
        checksum = control.checksum_of(self.token, size)
        if not checksum and read_back:
            checksum = _digest(control, self.token)
        if checksum:
            self.check_content(checksum, sha256)

    def _rename(self, control: Control) -> None:
        try:
            control.rename_over(self.token, self.name)
        except (OSError, EOFError) as error:
            raise OutcomeUnknown(
                f"{self.name!r} may be in its place: the connection broke ({error})"
            ) from error
        except ftplib.error_perm as error:
            if control.size_of(self.token) is None:
                raise self.taken_over() from None
            raise ConfigError(
                f"can't put {self.name!r} in its place at {self._sink.url}: {error}: {NO_RENAMING}"
            ) from error


def _delete(control: Control, name: str) -> None:
    with contextlib.suppress(ftplib.error_perm):  # it isn't there
        control.delete(name)


def _digest(control: Control, name: str) -> str:
    digest = hashlib.sha256()
    connection = control.transfercmd(f"RETR {name}")
    with connection:
        while chunk := connection.recv(CHUNK_BYTES):
            digest.update(chunk)
    control.voidresp()
    return digest.hexdigest()
