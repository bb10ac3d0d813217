"""The download of one object, over several tries."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Mapping

import aiohttp

from holdfast.errors import TooLarge

CHUNK_BYTES = 1 << 18
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")

CHECKSUMS: dict[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
}
"""The checksums of S3 that are quick to compute here."""


class Download:
    """Reads answers to GetObject. A further try asks for the missing part of the same object; if the server
    can't confirm that it is the same, everything is read again."""

    def __init__(self, url: str, max_bytes: int) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self.forget()

    @property
    def size(self) -> int:
        """The bytes received so far."""
        return self._data.tell()

    def forget(self) -> None:
        """Begin again."""
        self._data = io.BytesIO()
        self._tag = ""
        self._total: int | None = None
        self._checksums: dict[str, str] = {}

    def body(self) -> bytes:
        """Return the object, once a try has ended well."""
        return self._data.getvalue()

    def headers(self) -> Mapping[str, str]:
        if self.size and self._tag.startswith('"'):
            return {"Range": f"bytes={self.size}-", "If-Match": self._tag}
        self.forget()
        return {"x-amz-checksum-mode": "ENABLED"}

    async def read(self, response: aiohttp.ClientResponse) -> None:
        """Read an answer. Raises TooLarge, and OSError if another try may succeed."""
        if response.status == 206:
            self._check_continues(response)
        else:
            self.forget()
            self._begin(response)
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            self._data.write(chunk)
            self._check_size(self.size)
        if self._total is not None and self.size != self._total:
            raise OSError(f"{self.size} of {self._total} bytes came")
        self._check_content()

    def _begin(self, response: aiohttp.ClientResponse) -> None:
        self._tag = response.headers.get("ETag", "")
        self._total = response.content_length
        self._checksums = {
            name: response.headers[name] for name in CHECKSUMS if "-" not in response.headers.get(name, "-")
        }
        self._check_size(self._total or 0)

    def _check_continues(self, response: aiohttp.ClientResponse) -> None:
        found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        same = response.headers.get("ETag", self._tag) == self._tag
        if not (same and found and int(found[1]) == self.size and int(found[2]) == self._total):
            self.forget()
            raise OSError("the object changed meanwhile")

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLarge(f"{self._url} has {size} bytes or more, over the limit of {self._max_bytes}")

    def _check_content(self) -> None:
        for name, value in self._checksums.items():
            if base64.b64encode(CHECKSUMS[name](self.body())).decode() != value:
                self.forget()
                raise OSError(f"what came doesn't match its {name}")
