"""A file on an HTTP server, read by ranges."""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

from holdfast.extend.tracing import TRACEPARENT, current_traceparent
from holdfast.reports.faults import UnreadableSource

TIMEOUT_S = 60.0
REDIRECTS_MAX = 5
EXPIRED = (400, 401, 403, 404, 410)
"""Answers of an expired address. S3 answers 400 if the credentials that signed it expired."""

READ_AHEAD_BYTES = 1024 * 1024
"""Smallest request in bytes: readers of footers ask for a few bytes at a time."""


class HttpFile(io.RawIOBase):
    """One file. ``size`` in bytes; ``version`` is its entity tag or date, or empty.

    A file that changes while it is read is an error. Raises OSError, UnreadableSource for a server that
    doesn't answer ranges or redirects to a forbidden place, FileNotFoundError and PermissionError.

    Args:
        authorization: the header's value. Only the first server gets it.
        trusts: whether a URL of that server may get the header too.
        may_ask: whether a redirect may lead to a URL.
    """

    def __init__(
        self,
        url: str,
        authorization: str | None = None,
        version: str = "",
        *,
        trusts: Callable[[str], bool] = lambda _: True,
        may_ask: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._first = self._url = url
        self._authorization = authorization
        self._trusts = trusts
        self._may_ask = may_ask
        self._connection: http.client.HTTPConnection | None = None
        self._position = 0
        self._held = b""
        self._held_at = 0
        self.version = version
        self.size = 0
        try:
            self._held = self._fetch(0, READ_AHEAD_BYTES)
        except BaseException:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.size - self._position)
        size = left if size is None or size < 0 else min(size, left)
        start = self._position - self._held_at
        if not (start >= 0 and start + size <= len(self._held)):
            try:
                self._held = self._fetch(self._position, max(size, READ_AHEAD_BYTES)) if size else b""
            finally:
                if self.closed:  # meanwhile: Arrow's read-ahead thread asked once more
                    self._drop()
            self._held_at, start = self._position, 0
        self._position += size
        return self._held[start : start + size]

    def close(self) -> None:
        super().close()
        # The attribute stays: a thread that still reads drops this connection, and any later one.
        if (connection := self._connection) is not None:
            connection.close()

    def _fetch(self, start: int, size: int) -> bytes:
        if self.size:
            size = min(size, self.size - start)
        try:
            return self._ask(start, size)
        except (http.client.HTTPException, ConnectionError):
            # A server may close an idle connection at any time; a new one shows whether the server is up.
            self._drop()
        try:
            return self._ask(start, size)
        except http.client.HTTPException as error:
            raise ConnectionError(f"the connection broke: {error!r}") from error

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, start: int, size: int) -> bytes:
        redirected = self._url != self._first
        answer = self._answer(start, size)
        if redirected and answer.status in EXPIRED:
            # The target of an earlier redirect may have expired.
            self._drop()
            self._url = self._first
            answer = self._answer(start, size)
        return self._body(answer, start, size)

    def _answer(self, start: int, size: int) -> http.client.HTTPResponse:
        """Return the answer of the present address, after redirects."""
        headers = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
        if traceparent := current_traceparent():
            headers[TRACEPARENT] = traceparent
        for _ in range(1 + REDIRECTS_MAX):
            # For each request: later ones begin at the target of an earlier redirect.
            headers |= self._secret()
            parts = urlsplit(self._url)
            if self._connection is None:
                kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
                self._connection = kind(parts.netloc, timeout=TIMEOUT_S)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            self._connection.request("GET", path, headers=headers)
            answer = self._connection.getresponse()
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            self._redirect(answer)
            headers.pop("Authorization", None)
        raise OSError(f"more than {REDIRECTS_MAX} redirects")

    def _secret(self) -> dict[str, str]:
        """Return the authorization header, if the present address may get it."""
        if not self._authorization or urlsplit(self._first)[:2] != urlsplit(self._url)[:2]:
            return {}
        return {"Authorization": self._authorization} if self._trusts(self._url) else {}

    def _redirect(self, answer: http.client.HTTPResponse) -> None:
        self._url = urljoin(self._url, answer.headers.get("Location", ""))
        self._drop()
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https"):
            raise OSError("a redirect to a scheme other than HTTP")
        if not self._may_ask(self._url):
            raise UnreadableSource(
                f"the server redirects to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, which isn't"
                " below the roots; add it to roots if you trust it"
            )

    def _body(self, answer: http.client.HTTPResponse, start: int, size: int) -> bytes:
        status = answer.status
        if status == 416 and start == 0:  # an empty file
            answer.read()
            return b""
        if status != 206:
            self._drop()
            if status == 404:
                raise FileNotFoundError(self._url)
            if status in (401, 403):
                raise PermissionError(self._url)
            if status == 200:
                raise UnreadableSource("the server answers no ranges; copy the file to S3 or a disk")
            raise OSError(f"HTTP status {status}")
        self._check(answer.headers)
        body = answer.read()
        if len(body) != min(size, self.size - start):
            raise http.client.IncompleteRead(body, size - len(body))
        return body

    def _check(self, headers: http.client.HTTPMessage) -> None:
        total = headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdecimal():
            raise OSError("the server doesn't report the file's size")
        version = headers.get("ETag") or headers.get("Last-Modified") or ""
        if (self.size and int(total) != self.size) or (self.version and version != self.version):
            raise UnreadableSource("the file changed while it was read; order it again")
        self.size, self.version = int(total), version
