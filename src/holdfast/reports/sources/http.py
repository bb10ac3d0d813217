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
"""Answers of an address that no longer holds. S3 answers 400 where the credentials that signed it ended."""

READ_AHEAD_BYTES = 1024 * 1024
"""Least asked for at once: readers of footers ask for a few bytes at a time."""


class HttpFile(io.RawIOBase):
    """One file. ``size`` in bytes; ``version`` is its entity tag or date, and empty if the server tells none.

    A file that changes while it is read is an error. Raises OSError, UnreadableSource for a server that
    doesn't answer ranges or sends elsewhere, FileNotFoundError and PermissionError.

    Args:
        authorization: the header's value. It goes to the first server only.
        trusts: whether a URL of that server may get it too.
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
        """True if it holds a connection to the server."""
        return self._connection is not None

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, fewer only at the end of the file."""
        left = max(0, self.size - self._position)
        size = left if size is None or size < 0 else min(size, left)
        start = self._position - self._held_at
        if not (start >= 0 and start + size <= len(self._held)):
            try:
                self._held = self._fetch(self._position, max(size, READ_AHEAD_BYTES)) if size else b""
            finally:
                if self.closed:  # by now: Arrow reads ahead in a thread, and asks once more
                    self._drop()
            self._held_at, start = self._position, 0
        self._position += size
        return self._held[start : start + size]

    def close(self) -> None:
        """Close the connection."""
        super().close()
        # It stays named: whoever reads in another thread by now drops it, and any that came after it.
        if (connection := self._connection) is not None:
            connection.close()

    def _fetch(self, start: int, size: int) -> bytes:
        if self.size:
            size = min(size, self.size - start)
        try:
            return self._ask(start, size)
        except (http.client.HTTPException, ConnectionError):
            # A server may close an idle connection at any time; a fresh one tells whether it is well.
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
        led = self._url != self._first
        answer = self._answer(start, size)
        if led and answer.status in EXPIRED:
            # Where an earlier request was redirected to may hold for a while only.
            self._drop()
            self._url = self._first
            answer = self._answer(start, size)
        return self._body(answer, start, size)

    def _answer(self, start: int, size: int) -> http.client.HTTPResponse:
        """The answer of where the file is by now, redirects followed."""
        headers = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
        if traceparent := current_traceparent():
            headers[TRACEPARENT] = traceparent
        for _ in range(1 + REDIRECTS_MAX):
            # Asked for each request: later ones begin where an earlier one was redirected to.
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
        """The header for where the file is by now, if that may get it."""
        if not self._authorization or urlsplit(self._first)[:2] != urlsplit(self._url)[:2]:
            return {}
        return {"Authorization": self._authorization} if self._trusts(self._url) else {}

    def _redirect(self, answer: http.client.HTTPResponse) -> None:
        self._url = urljoin(self._url, answer.headers.get("Location", ""))
        self._drop()
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https"):
            raise OSError("a redirect to something that isn't HTTP")
        if not self._may_ask(self._url):
            raise UnreadableSource(
                f"the server sends to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, which isn't below"
                " what may be read; name it in roots if it is to be trusted"
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
            raise OSError("the server doesn't tell the file's size")
        version = headers.get("ETag") or headers.get("Last-Modified") or ""
        if (self.size and int(total) != self.size) or (self.version and version != self.version):
            raise UnreadableSource("the file changed while it was read; order it again")
        self.size, self.version = int(total), version
