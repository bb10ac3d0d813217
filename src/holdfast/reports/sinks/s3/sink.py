"""A destination in a bucket of S3, or of a compatible service.

A file is put in parts while it is made, and appears once they are complete. A file of one part is put at
once. Each part's SHA-256 is signed, so the service compares it. A file's ETag is its version.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl

import msgspec

from holdfast.errors import ConfigError, InvalidMessage, LoginRefused, Unavailable
from holdfast.extend import Clock, Meter
from holdfast.extend.s3 import CONTENT_TYPE, KEY_BYTES_MAX, MultipartUpload, Spot, parse
from holdfast.reports.ports.sink import Data, RemoteFile, Upload
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import SinkBase
from holdfast.reports.sinks.s3.upload import S3Upload

if TYPE_CHECKING:
    from holdfast.extend.s3 import S3, AwsResponse, Keys

MIB = 1 << 20
PART_BYTES = 6 * MIB
PART_BYTES_MIN = 5 * MIB
MD5 = "Content-MD5"
EXAMPLE = "s3://customer-bucket/reports?encryption=aws:kms"


class S3SinkUrl(msgspec.Struct, frozen=True):
    """A bucket, a prefix in it, and the headers of new objects: ``s3://bucket[/prefix]`` with the options
    ``encryption`` (``AES256`` or ``aws:kms``), ``kms_key``, ``acl`` and ``region``."""

    place: Spot
    headers: dict[str, str]
    region: str | None

    @classmethod
    def parse(cls, url: str, *, region: str | None = None) -> Self:
        """Return the parts of a URL. ``region``: for a URL without one. Raises ConfigError for another
        URL."""
        base, _, query = url.partition("?")
        try:
            options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
            region = options.pop("region", region)
            headers = {HEADERS[name]: value for name, value in options.items()}
            place = parse(base)
            if not place.bucket or not all(value.isprintable() for value in headers.values()):
                raise ValueError
        except (ValueError, KeyError, ConfigError):
            raise ConfigError(
                f"destination must be the URL of a bucket such as {EXAMPLE!r}; its options are"
                f" {', '.join(HEADERS)} and region"
            ) from None
        return cls(place, headers, region)


HEADERS = {
    "encryption": "x-amz-server-side-encryption",
    "kms_key": "x-amz-server-side-encryption-aws-kms-key-id",
    "acl": "x-amz-acl",
}


class S3Sink(SinkBase):
    """A prefix in a bucket. The first call connects; the parts of a file share the connections.

    Args:
        meter: counts every request.
        endpoint: the service's URL; by default that of the AWS settings.
        keys: the credentials; by default the ones of AWS's own tools.
        part_bytes: the size of a part, at least 5 MiB. A file has up to 10,000 parts; up to four are in
            memory.
    """

    can_resume = True
    can_rename = False

    def __init__(
        self,
        url: S3SinkUrl,
        clock: Clock,
        meter: Meter | None = None,
        *,
        endpoint: str | None = None,
        keys: Keys | None = None,
        part_bytes: int = PART_BYTES,
        s3: S3 | None = None,
    ) -> None:
        if part_bytes < PART_BYTES_MIN:
            raise ConfigError(f"part_bytes is {part_bytes}: S3 takes parts of {PART_BYTES_MIN} at least")
        self._url = url
        self._clock = clock
        self._meter = meter
        self._endpoint = endpoint
        self._keys = keys
        self._part_bytes = part_bytes
        self._opened = s3
        self._wants_md5 = False
        self._closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        try:
            answer = await self.call("HeadObject", self.spot(name), "HEAD")
        except FileNotFoundError:
            return None
        return RemoteFile(name, int(answer.headers.get("Content-Length", 0)), answer.headers.get("ETag", ""))

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> Upload:
        spot = self.spot(name)
        if not replace:
            await self.check_absent(name)
        return S3Upload(self, name, spot, self._part_bytes, replace=replace)

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> Upload | None:
        spot = self.spot(name)
        if not token:
            return None
        try:
            parts = await MultipartUpload(self.call, spot, token).parts()
        except (FileNotFoundError, ConfigError):  # the service lists no parts, or this user may only put
            parts = []
        size = parts[0][1] if parts else 0
        tags = [tag for tag, each in parts if each == size]
        if size < PART_BYTES_MIN:
            await self.discard(name, token)
            return None
        return S3Upload(self, name, spot, size, replace=replace, token=token, tags=tags)

    async def discard(self, name: str, token: str) -> None:
        spot = self.spot(name)
        if token:
            # A user who may only put can't remove it; the bucket's lifecycle rule does.
            with contextlib.suppress(FileNotFoundError, ConfigError):
                await MultipartUpload(self.call, spot, token).abort()

    async def read(self, name: str) -> AsyncIterator[bytes]:
        spot, at = self.spot(name), 0
        found = await self.stat(name)
        if found is None:
            raise FileNotFoundError(name)
        while at < found.size:
            headers = {"Range": f"bytes={at}-{at + self._part_bytes - 1}", "If-Match": found.version}
            answer = await self.call("GetObject", spot, "GET", headers=headers)
            at += len(answer.body)
            yield answer.body

    async def close(self) -> None:
        self._closed = True
        if self._opened is not None:
            await self._opened.client.close()

    def spot(self, name: str) -> Spot:
        """Return the bucket and the key of a file. Raises InvalidMessage."""
        spot = Spot(self._url.place.bucket, self._url.place.key + check(name))
        if len(spot.key.encode()) > KEY_BYTES_MAX:
            raise InvalidMessage(f"the remote name {name!r} makes a key of over {KEY_BYTES_MAX} bytes")
        return spot

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": CONTENT_TYPE} | self._url.headers

    async def call(
        self,
        operation: str,
        spot: Spot,
        method: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: Data = b"",
    ) -> AwsResponse:
        """Call S3, and return its answer. Raises S3's errors, and LoginRefused for refused credentials."""
        from holdfast.extend.s3 import UNTRUSTED, AwsRefused  # noqa: PLC0415

        sent = dict(headers or ())
        if self._wants_md5 and body:
            sent[MD5] = await asyncio.to_thread(_md5, body)
        sha256 = await asyncio.to_thread(_sha256, body) if body else ""
        try:
            return await self._s3().call(
                operation, spot, method, query, headers=sent, body=body, body_sha256=sha256
            )
        except AwsRefused as error:
            if MD5 in str(error) and MD5 not in sent:  # a bucket with object lock
                self._wants_md5 = True
                return await self.call(operation, spot, method, query, headers=headers, body=body)
            if UNTRUSTED.search(error.code):
                raise LoginRefused(str(error)) from error
            raise

    def _s3(self) -> S3:
        if self._closed:
            raise Unavailable("the connection to S3 is closed")
        if self._opened is None:
            from holdfast.extend.s3 import S3, AwsClient  # noqa: PLC0415

            client = AwsClient(
                "s3",
                self._clock,
                self._meter,
                region=self._url.region,
                endpoint=self._endpoint,
                keys=self._keys,
            )
            self._opened = S3(client)
        return self._opened


def _sha256(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


def _md5(data: Data) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
