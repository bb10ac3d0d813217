"""A destination that takes files by HTTP PUT.

The server shows a file once it has all of it: HTTP ignores a request that breaks off. So an upload can't be
resumed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from urllib.parse import SplitResult, quote, urlsplit

import aiohttp
from yarl import URL

from holdfast.errors import (
    AlreadyThere,
    ConfigError,
    HoldfastError,
    LoginRefused,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from holdfast.extend.tools import describe_http_error
from holdfast.extend.tracing import TRACEPARENT, current_traceparent
from holdfast.reports.ports.sink import UNKNOWN_SIZE, Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import SinkBase, UploadBase, already_there, refuse_login, sha256_of

EXAMPLE = "https://files.example.com/reports"
CONNECT_S = 30.0
SILENCE_S = 60.0
AT_ONCE_BYTES = 1 << 20
"""Largest file that is sent with its length. A larger one is sent in chunks while it is made."""

AHEAD = 4
READ_BYTES = 1 << 20
MISSING = (404, 410)
TEMPORARY = (408, 425, 429)
UNKNOWN_METHOD = (405, 501)


class HttpSink(SinkBase):
    """A folder of a web server. Redirects are not followed.

    Args:
        url: ``https://host/folder``.
        headers: sent with each request, such as ``Authorization``.
        user, password: for basic authentication.
        tls: the trusted certificates; by default the machine's.

    Raises ConfigError for another URL, or one that holds a password.
    """

    can_resume = False
    can_rename = False

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = SplitResult("", "", "", "", "")
        refuse_login(parts)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"destination must be the URL of a web server's folder, such as {EXAMPLE!r}")
        self._root = url.rstrip("/")
        self._headers = dict(headers or {})
        if user:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        self._tls = tls
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        has_head, found = await self._head(name)
        if not has_head:
            raise ConfigError(f"can't look for {name!r} at {self._root}: the server doesn't support HEAD")
        return found

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> HttpUpload:
        url = self.url(name)
        if not replace:
            await self.check_absent(name)
        return HttpUpload(self, name, url, replace=replace)

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> None:
        check(name)

    async def discard(self, name: str, token: str) -> None:
        check(name)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        url, what = self.url(name), f"can't read {name!r}"
        with self.port_errors(what):
            async with self.http().get(url, allow_redirects=False) as answer:
                if answer.status in MISSING:
                    raise FileNotFoundError(name)
                self.check_status(what, answer)
                async for chunk in answer.content.iter_chunked(READ_BYTES):
                    yield chunk

    async def close(self) -> None:
        self._closed = True
        if self._http is not None:
            await self._http.close()

    def url(self, name: str) -> URL:
        return URL(f"{self._root}/{quote(check(name), safe='/')}", encoded=True)

    def http(self) -> aiohttp.ClientSession:
        """Return the client session, which the first call makes."""
        if self._closed:
            raise Unavailable(f"the connection to {self._root} is closed")
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._http

    async def check_absent(self, name: str) -> None:
        _, found = await self._head(name)
        if found is not None:
            raise already_there(name)

    async def _head(self, name: str) -> tuple[bool, RemoteFile | None]:
        """Return whether the server supports HEAD, and the file."""
        url, what = self.url(name), f"can't look for {name!r}"
        with self.port_errors(what):
            async with self.http().head(url, allow_redirects=False) as answer:
                if answer.status in (*MISSING, *UNKNOWN_METHOD):
                    return answer.status in MISSING, None
                self.check_status(what, answer)
                size = int(answer.headers.get("Content-Length", UNKNOWN_SIZE))
                return True, RemoteFile(name, size, answer.headers.get("ETag", ""))

    @contextlib.contextmanager
    def port_errors(self, what: str) -> Iterator[None]:
        """Raise the port's errors for aiohttp's errors; ``what`` begins their texts."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise LoginRefused(
                f"{what} at {self._root}: its certificate is not trusted: {describe_http_error(error)}"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise Unavailable(f"{what} at {self._root}: {describe_http_error(error)}") from error

    def check_status(self, what: str, answer: aiohttp.ClientResponse) -> None:
        """Raise the port's error unless the request succeeded."""
        status, text = answer.status, f"{what} at {self._root}: {answer.status} {answer.reason}"
        if status < 300:
            return
        if status == 401:
            raise LoginRefused(text)
        if status == 412:
            raise AlreadyThere(text)
        if status == 413:
            raise TooLarge(text)
        if status in TEMPORARY or status >= 500:
            raise Unavailable(text)
        raise ConfigError(text)


class HttpUpload(UploadBase):
    """The upload of one file."""

    def __init__(self, sink: HttpSink, name: str, url: URL, *, replace: bool) -> None:
        super().__init__(name, "", replace=replace)
        self._sink = sink
        self._url = url
        self._first: list[bytes] = []
        self._rest: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        self._request: asyncio.Task[None] | None = None
        self._all_sent = False

    async def write(self, data: Data) -> None:
        self.sent_bytes += len(data)
        if self._request is None:
            self._first.append(bytes(data))
            if self.sent_bytes > AT_ONCE_BYTES:
                self._request = asyncio.create_task(self._put(self._chunks()))
        else:
            await self._hand_over(bytes(data))

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        """Unlike other sinks, this leaves a damaged file in its place; the next try replaces it."""
        if not self.replace:
            await self._sink.check_absent(self.name)
        if self._request is None:
            self._all_sent = True
            await self._put(b"".join(self._first))
        else:
            await self._hand_over(None)
            await self._request
        try:
            found = await self._sink.stat(self.name)
        except ConfigError:  # this user may only put; the server accepted the file
            found = None
        if found is not None and found.size != UNKNOWN_SIZE:
            self.check_size(found.size)
        if read_back:
            self.check_content(await sha256_of(self._sink.read(self.name)), sha256)
        return RemoteFile(self.name, self.sent_bytes, found.version if found is not None else "")

    async def abort(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                await request

    async def leave(self) -> None:
        await self.abort()

    async def _hand_over(self, data: bytes | None) -> None:
        """Give the next bytes, or the end (None), to the running request. Raises its error."""
        assert self._request is not None
        putting = asyncio.ensure_future(self._rest.put(data))
        try:
            await asyncio.wait((putting, self._request), return_when=asyncio.FIRST_COMPLETED)
        finally:
            accepted = putting.done()
            putting.cancel()
        if self._request.done():
            await self._request
            if not accepted or data is not None:
                raise Unavailable(f"the server answered before it had all of {self.name!r}")

    async def _chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._first:
            yield chunk
        self._first.clear()
        while (chunk := await self._rest.get()) is not None:  # type: ignore[assignment]
            yield chunk
        self._all_sent = True

    async def _put(self, body: bytes | AsyncIterator[bytes]) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if traceparent := current_traceparent():
            headers[TRACEPARENT] = traceparent
        if not self.replace:
            headers["If-None-Match"] = "*"
        what = f"can't write {self.name!r}"
        try:
            with self._sink.port_errors(what):
                async with self._sink.http().put(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as answer:
                    await answer.read()
                    self._sink.check_status(what, answer)
        except Unavailable as error:
            if self._all_sent and isinstance(error.__cause__, aiohttp.ClientError | OSError):
                raise OutcomeUnknown(f"{self.name!r} may be in its place: {error}") from error
            raise
