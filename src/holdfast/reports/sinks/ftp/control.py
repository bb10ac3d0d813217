"""One blocking FTP session: the standard library's, with additions.

Added are: implicit TLS; data connections that resume the TLS session of their control connection, as many
servers demand; an active mode that listens only at the address of the control connection and accepts only the
server; replies in any encoding; the errors of the sink port.
"""

from __future__ import annotations

import contextlib
import ftplib
import re
import socket
import ssl
import struct
from collections.abc import Iterator

from holdfast.errors import ConfigError, LoginRefused, NoRoom, Unavailable
from holdfast.reports.sinks.ftp.url import FtpUrl

KEEPALIVE_S = 30
UNKNOWN = ("500", "502", "504")
"""Replies to an unknown command."""

BUSY = ("421", "530 Sorry, the maximum", "530 Too many")
FULL = ("452", "552")
LOGGED_OUT = "530"
HEX = re.compile(r"\b[0-9a-fA-F]{64}\b")
SIZE = re.compile(r"(?:^|[;\s])size=(\d+)", re.IGNORECASE)
PATIENCE_BYTES_S = 10_000_000
"""Lowest speed, in bytes a second, at which a server reads a received file, for its checksum or a virus
scan."""

COMPLAINT_S = 5.0
"""Seconds to wait for a server's reason for an ended transfer. Some servers never give one."""

TLS_BYTES = 1 << 18
"""Bytes of one write over TLS. A write is sent whole within the timeout, or fails."""


class Control(ftplib.FTP):
    """A session that is logged in, in binary mode, in the URL's folder. Use it from one thread at a time.

    ``timeout_s``: the longest silence of the server, in seconds. Raises LoginRefused, ConfigError,
    Unavailable.
    """

    def __init__(self, url: FtpUrl, user: str, password: str, timeout_s: float) -> None:
        super().__init__(timeout=timeout_s, encoding=url.encoding)
        self.passiveserver = not url.active
        self.features: dict[str, str] = {}
        plain = url.scheme == "ftp"
        self._context = None if plain else ssl.create_default_context(cafile=url.ca or None)
        try:
            with port_errors(f"can't log in at {url}", login=True):
                self._open(url)
                self.login(user, password)
                if self._context is not None:
                    self.voidcmd("PBSZ 0")
                    self.voidcmd("PROT P")
                self._read_features()
                self.voidcmd("TYPE I")  # sizes and restarts count in bytes
            if url.folder:
                with port_errors(f"can't go to the folder of {url}: make it, or let this user in"):
                    self.cwd(url.folder)
        except BaseException:
            self.close()
            raise

    def size_of(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if the file doesn't exist. Raises ConfigError if the server
        reports no sizes."""
        for command, read in (("SIZE", _plain_size), ("MLST", _listed_size)):
            try:
                return read(self.sendcmd(f"{command} {name}"))
            except ftplib.error_perm as error:
                if not str(error).startswith(UNKNOWN):
                    return None
        raise ConfigError(
            f"{self.host} knows neither SIZE nor MLST, so Holdfast can't check that a file arrived whole"
        )

    def checksum_of(self, name: str, size: int) -> str:
        """Return the SHA-256 (hex) that the server computes of a file; empty if it computes none."""
        if "XSHA256" in self.features:
            command = f"XSHA256 {name}"
        elif "SHA-256" in self.features.get("HASH", ""):
            self.voidcmd("OPTS HASH SHA-256")
            command = f"HASH {name}"
        else:
            return ""
        with self._patient(size):
            found = HEX.search(self.sendcmd(command))
        return found[0].lower() if found else ""

    def make_folders(self, name: str) -> None:
        segments = name.split("/")[:-1]
        for depth in range(1, len(segments) + 1):
            with contextlib.suppress(ftplib.error_perm):  # it exists, or the next command reports the reason
                self.mkd("/".join(segments[:depth]))

    def rename_over(self, source: str, target: str) -> None:
        """Rename and replace. If the server refuses to replace, ``target`` is deleted first: for a moment
        neither file is there."""
        try:
            self.rename(source, target)
        except ftplib.error_perm:
            if self.size_of(target) is None or self.size_of(source) is None:
                raise
            self.delete(target)
            self.rename(source, target)

    def transfercmd(self, cmd: str, rest: int | str | None = None) -> socket.socket:
        connection, _ = self.ntransfercmd(cmd, rest)
        if self._context is None:
            return connection
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            return self._context.wrap_socket(connection, server_hostname=self.host, session=self.sock.session)
        except BaseException:
            connection.close()
            raise

    def finish(self, connection: socket.socket, size: int = 0) -> None:
        """End a transfer of ``size`` bytes from this side, and wait for the server's confirmation. Raises its
        refusal."""
        try:
            if isinstance(connection, ssl.SSLSocket):
                with contextlib.suppress(OSError):  # some servers don't close TLS; the size is checked
                    connection.unwrap()
        finally:
            connection.close()
        with self._patient(size):
            self.voidresp()

    def complain(self) -> None:
        """Raise the server's reason for an ended transfer, if it gives one."""
        with self._waiting(min(COMPLAINT_S, self.timeout or COMPLAINT_S)):
            self.voidresp()

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        if self.passiveserver:
            return super().ntransfercmd(cmd, rest)
        assert self.sock is not None
        here, there = self.sock.getsockname()[0], self.sock.getpeername()[0]
        with socket.create_server((here, 0), family=self.af, backlog=1) as listener:
            listener.settimeout(self.timeout)
            port = listener.getsockname()[1]
            self.sendport(here, port) if self.af == socket.AF_INET else self.sendeprt(here, port)
            if rest is not None:
                self.sendcmd(f"REST {rest}")
            reply = self.sendcmd(cmd)
            if not reply.startswith("1"):
                raise ftplib.error_reply(reply)  # noqa: S321 (no call)
            while True:
                connection, caller = listener.accept()
                if caller[0] == there:
                    connection.settimeout(self.timeout)
                    return connection, None
                connection.close()

    def set_timeout(self, seconds: float) -> None:
        """Set, from any thread, the longest silence from the next wait on."""
        self.timeout = seconds
        if self.sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                self.sock.settimeout(seconds)

    def interrupt(self) -> None:
        """From any thread, have a blocked call on the control connection fail."""
        shut(self.sock)

    def _open(self, url: FtpUrl) -> None:
        self.host, self.port = url.host, url.port
        self.sock = socket.create_connection((url.host, url.port), self.timeout)
        self.af = self.sock.family
        keep_alive(self.sock)
        if url.scheme == "ftps":
            self._secure()
        self._read_replies()
        self.welcome = self.getresp()
        if url.scheme == "ftpes":
            self.voidcmd("AUTH TLS")
            self._secure()
            self._read_replies()

    def _secure(self) -> None:
        assert self._context is not None
        assert self.sock is not None
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def _read_replies(self) -> None:
        assert self.sock is not None
        self.file = self.sock.makefile("r", encoding=self.encoding, errors="replace")

    def _patient(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Wait longer while the server may be busy with a file of ``size`` bytes."""
        return self._waiting((self.timeout or 0) + size / PATIENCE_BYTES_S)

    @contextlib.contextmanager
    def _waiting(self, seconds: float) -> Iterator[None]:
        connection = self.sock
        assert connection is not None
        connection.settimeout(seconds)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # closed meanwhile
                connection.settimeout(self.timeout)

    def _read_features(self) -> None:
        try:
            lines = self.sendcmd("FEAT").splitlines()[1:-1]
        except ftplib.error_perm:
            lines = []
        for line in lines:
            name, _, rest = line.strip().partition(" ")
            self.features[name.upper()] = rest.upper()
        if "UTF8" in self.features and self.encoding == "utf-8":
            with contextlib.suppress(ftplib.error_perm):
                self.sendcmd("OPTS UTF8 ON")


@contextlib.contextmanager
def port_errors(what: str, *, login: bool = False) -> Iterator[None]:
    """Raise the port's errors for a session's errors; ``what`` begins their texts."""
    try:
        yield
    except ftplib.Error as error:
        reply, text = str(error), f"{what}: {error}"
        if reply.startswith(FULL):
            raise NoRoom(text) from error
        if reply.startswith(BUSY) or not isinstance(error, ftplib.error_perm):
            raise Unavailable(text) from error
        if login or reply.startswith(LOGGED_OUT):
            raise LoginRefused(text) from error
        raise ConfigError(text) from error
    except ssl.SSLCertVerificationError as error:
        raise LoginRefused(
            f"{what}: its certificate is not trusted ({error.verify_message}): name one to trust with ?ca="
        ) from error
    except socket.gaierror as error:
        kind = Unavailable if error.errno == socket.EAI_AGAIN else ConfigError
        raise kind(f"{what}: {error.strerror}") from error
    except (OSError, EOFError) as error:
        raise Unavailable(f"{what}: {str(error) or 'the connection was closed'}") from error


def send(connection: socket.socket, data: bytes | memoryview) -> None:
    """Send all bytes, however slowly. (``sendall`` would need to send all of them within the timeout.)"""
    rest = memoryview(data)
    most = TLS_BYTES if isinstance(connection, ssl.SSLSocket) else len(rest)
    while rest:
        rest = rest[connection.send(rest[:most]) :]


def keep_alive(connection: socket.socket) -> None:
    """Have the system probe an idle connection, so that no firewall on the way drops it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)


def shut(connection: socket.socket | None, *, unsent: bool = True) -> None:
    """End a connection that another thread may be blocked on. Without ``unsent``, buffered bytes are dropped:
    a slow server would be busy with them for long."""
    if connection is not None:
        with contextlib.suppress(OSError):  # closed already
            if not unsent:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _plain_size(reply: str) -> int:
    return int(reply[3:].strip())


def _listed_size(reply: str) -> int:
    found = SIZE.search(reply)
    if found is None:
        raise ftplib.error_reply(reply)  # noqa: S321 (no call)
    return int(found[1])
