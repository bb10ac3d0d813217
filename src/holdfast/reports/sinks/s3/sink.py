"""A destination in a bucket of S3, or of a service that speaks as it does.

A file is put in parts while it is still being made, and appears when they are complete. What fits into one
part is put at once. Every part's SHA-256 is signed, so the service compares it; where a file stands, its ETag
tells whether it is the same as before.
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
from holdfast.reports.sinks.s3.upload import S3Upload, there

if TYPE_CHECKING:
    from holdfast.extend.s3 import S3, AwsResponse, Keys

MIB = 1 << 20
PART_BYTES = 6 * MIB
PART_BYTES_MIN = 5 * MIB
MD5 = "Content-MD5"
EXAMPLE = "s3://customer-bucket/reports?encryption=aws:kms"


class S3SinkUrl(msgspec.Struct, frozen=True):
    """A bucket, a prefix in it, and headers for what is put there: ``s3://bucket[/prefix]`` with the options
    ``encryption`` (``AES256`` or ``aws:kms``), ``kms_key``, ``acl`` and ``region``."""

    place: Spot
    headers: dict[str, str]
    region: str | None

    @classmethod
    def parse(cls, url: str, setting: str = "destination", *, region: str | None = None) -> Self:
        """``region`` is for a URL that names none. Raises ConfigError for a URL that is none of these."""
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
                f"{setting} is no bucket's URL: use one such as {EXAMPLE!r}; its options are"
                f" {', '.join(HEADERS)} and region"
            ) from None
        return cls(place, headers, region)


HEADERS = {
    "encryption": "x-amz-server-side-encryption",
    "kms_key": "x-amz-server-side-encryption-aws-kms-key-id",
    "acl": "x-amz-acl",
}


class S3Sink:
    """A prefix in a bucket. Connections are made at first use, and shared by the parts of a file.

    Args:
        url: where, and how it is kept there.
        clock: time for signatures, pauses and their jitter.
        meter: counts every try that goes out.
        endpoint: where to call, unless the AWS settings say.
        keys: the credentials; by default those that AWS's own tools find.
        part_bytes: the size of a part, 5 MiB at least; a file has 10,000 at most. Four are in memory at most.
    """

    can_resume = True
    can_rename = False
    has_checksum = True
    keeps_first = True

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
            await self.must_not_be_there(name)
        return S3Upload(self, name, spot, self._part_bytes, replace=replace)

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> Upload | None:
        spot = self.spot(name)
        if not token:
            return None
        try:
            parts = await MultipartUpload(self.call, spot, token).parts()
        except (FileNotFoundError, ConfigError):  # a service that lists no parts, or one who may only put
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
            # What one who may only put can't remove, a rule of the bucket's lifecycle does.
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
        """Return the bucket and the key of the file of that name. Raises InvalidMessage."""
        spot = Spot(self._url.place.bucket, self._url.place.key + check(name))
        if len(spot.key.encode()) > KEY_BYTES_MAX:
            raise InvalidMessage(f"the remote name {name!r} makes a key of over {KEY_BYTES_MAX} bytes")
        return spot

    async def must_not_be_there(self, name: str) -> None:
        """Raises AlreadyThere if a file of that name is."""
        if await self.stat(name) is not None:
            raise there(name)

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which a file is put."""
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
        """Make one call to S3. Raises as that does, and LoginRefused for credentials that aren't accepted."""
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
