"""A destination that takes files by HTTP PUT.

That a file shows only when all of it has come is the server's part of the protocol: a request that breaks off
is no request. Nothing is left of one to go on with.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from urllib.parse import SplitResult, quote, urlsplit

import aiohttp
from yarl import URL

from holdfast.errors import (
    AlreadyThere,
    ConfigError,
    Damaged,
    HoldfastError,
    LoginRefused,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from holdfast.extend.tools import describe_http_error
from holdfast.extend.tracing import TRACEPARENT, current_traceparent
from holdfast.reports.ports.sink import UNTOLD, Data, RemoteFile
from holdfast.reports.rules.remote_name import check

EXAMPLE = "https://files.example.com/reports"
CONNECT_S = 30.0
SILENCE_S = 60.0
AT_ONCE_BYTES = 1 << 20
"""A file up to this size is sent with its length; a larger one in chunks, while it is made."""

AHEAD = 4
READ_BYTES = 1 << 20
MISSING = (404, 410)
PASSING = (408, 425, 429)
UNKNOWN_METHOD = (405, 501)


class HttpSink:
    """A folder of a web server. Redirects are not followed.

    Args:
        url: ``https://host/folder``.
        headers: go with each request, such as ``Authorization``.
        user, password: for basic authentication.
        tls: whom to trust; by default as this machine does.

    Raises ConfigError for another URL, or one that holds a password.
    """

    can_resume = False
    can_rename = False
    has_checksum = False
    keeps_first = False

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        setting: str = "destination",
    ) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = SplitResult("", "", "", "", "")
        if "@" in parts.netloc:
            raise ConfigError(f"{setting} holds a user or a password; name a credential in their place")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{setting} is no web server's folder: use a URL such as {EXAMPLE!r}")
        self._root = url.rstrip("/")
        self._headers = dict(headers or {})
        if user:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        self._tls = tls
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        tells, found = await self._head(name)
        if not tells:
            raise ConfigError(f"can't look for {name!r} at {self._root}: the server knows no HEAD")
        return found

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> HttpUpload:
        url = self.url(name)
        if not replace:
            await self.must_not_be_there(name)
        return HttpUpload(self, name, url, replace=replace)

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> None:
        check(name)

    async def discard(self, name: str, token: str) -> None:
        check(name)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        url, what = self.url(name), f"can't read {name!r}"
        with self.told(what):
            async with self.http().get(url, allow_redirects=False) as answer:
                if answer.status in MISSING:
                    raise FileNotFoundError(name)
                self.must_be_well(what, answer)
                async for chunk in answer.content.iter_chunked(READ_BYTES):
                    yield chunk

    async def close(self) -> None:
        self._closed = True
        if self._http is not None:
            await self._http.close()

    def url(self, name: str) -> URL:
        """Return the URL of the file of that name. Raises InvalidMessage."""
        return URL(f"{self._root}/{quote(check(name), safe='/')}", encoded=True)

    def http(self) -> aiohttp.ClientSession:
        """The connections, made at first use."""
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

    async def must_not_be_there(self, name: str) -> None:
        """Raises AlreadyThere if the server tells that a file of that name is."""
        _, found = await self._head(name)
        if found is not None:
            raise AlreadyThere(f"{name!r} is at {self._root} already, and is not to be replaced")

    async def _head(self, name: str) -> tuple[bool, RemoteFile | None]:
        """Return whether the server tells of files at all, and the one of that name."""
        url, what = self.url(name), f"can't look for {name!r}"
        with self.told(what):
            async with self.http().head(url, allow_redirects=False) as answer:
                if answer.status in (*MISSING, *UNKNOWN_METHOD):
                    return answer.status in MISSING, None
                self.must_be_well(what, answer)
                size = int(answer.headers.get("Content-Length", UNTOLD))
                return True, RemoteFile(name, size, answer.headers.get("ETag", ""))

    @contextlib.contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Errors of aiohttp in the words of the port, after ``what``."""
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

    def must_be_well(self, what: str, answer: aiohttp.ClientResponse) -> None:
        """Raises the port's error for an answer that is none of success."""
        status, said = answer.status, f"{what} at {self._root}: {answer.status} {answer.reason}"
        if status < 300:
            return
        if status == 401:
            raise LoginRefused(said)
        if status == 412:
            raise AlreadyThere(said)
        if status == 413:
            raise TooLarge(said)
        if status in PASSING or status >= 500:
            raise Unavailable(said)
        raise ConfigError(said)


class HttpUpload:
    """One file on its way."""

    token = ""
    held = 0
    grain = 1

    def __init__(self, sink: HttpSink, name: str, url: URL, *, replace: bool) -> None:
        self._sink = sink
        self._name = name
        self._url = url
        self._replace = replace
        self._at = 0
        self._first: list[bytes] = []
        self._rest: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        self._request: asyncio.Task[None] | None = None
        self._all_sent = False

    async def skip(self, size: int) -> None:
        raise AssertionError("there is nothing to go on with")

    async def write(self, data: Data) -> None:
        self._at += len(data)
        if self._request is None:
            self._first.append(bytes(data))
            if self._at > AT_ONCE_BYTES:
                self._request = asyncio.create_task(self._put(self._chunks()))
        else:
            await self._pass(bytes(data))

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        """As the port says; but what is Damaged is in its place, and to be replaced by the next try."""
        if not self._replace:
            await self._sink.must_not_be_there(self._name)
        if self._request is None:
            self._all_sent = True
            await self._put(b"".join(self._first))
        else:
            await self._pass(None)
            await self._request
        try:
            found = await self._sink.stat(self._name)
        except ConfigError:  # one who may only put: that the server took it must do
            found = None
        if found is not None and found.size not in (UNTOLD, self._at):
            raise Damaged(f"the server has {found.size} bytes of {self._name!r}, and {self._at} were sent")
        if read_back and await self._digest() != sha256:
            raise Damaged(f"what the server has of {self._name!r} is not what was sent")
        return RemoteFile(self._name, self._at, found.version if found is not None else "")

    async def abort(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                await request

    async def leave(self) -> None:
        await self.abort()

    async def _pass(self, data: bytes | None) -> None:
        """Hand bytes, or their end, to the request, as long as that is under way."""
        assert self._request is not None
        putting = asyncio.ensure_future(self._rest.put(data))
        try:
            await asyncio.wait((putting, self._request), return_when=asyncio.FIRST_COMPLETED)
        finally:
            passed = putting.done()
            putting.cancel()
        if self._request.done():
            await self._request
            if not passed or data is not None:
                raise Unavailable(f"the server answered before it had all of {self._name!r}")

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
        if not self._replace:
            headers["If-None-Match"] = "*"
        what = f"can't write {self._name!r}"
        try:
            with self._sink.told(what):
                async with self._sink.http().put(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as answer:
                    await answer.read()
                    self._sink.must_be_well(what, answer)
        except Unavailable as error:
            if self._all_sent and isinstance(error.__cause__, aiohttp.ClientError | OSError):
                raise OutcomeUnknown(f"{self._name!r} may be in its place: {error}") from error
            raise

    async def _digest(self) -> str:
        digest = hashlib.sha256()
        async for chunk in self._sink.read(self._name):
            digest.update(chunk)
        return digest.hexdigest()
