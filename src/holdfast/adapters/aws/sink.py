"""A destination in a bucket of S3, or of a service that speaks as it does.

A file is put in parts while it is still being made, and appears when they are complete. What fits into one
part is put at once. Every part carries its checksum, which the service compares; where a file stands, its
ETag tells whether it is the same as before.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, quote

import msgspec

from holdfast.adapters.aws.s3_url import CONTENT_TYPE, KEY_BYTES_MAX, Spot, parse
from holdfast.core.remote_name import check
from holdfast.errors import (
    AlreadyThere,
    ConfigError,
    Damaged,
    HoldfastError,
    InvalidMessage,
    LoginRefused,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.sink import Data, RemoteFile

if TYPE_CHECKING:
    from holdfast.adapters.aws.client import Answer, Keys
    from holdfast.adapters.aws.s3 import S3

MIB = 1 << 20
PART_BYTES = 8 * MIB
PART_BYTES_MIN = 5 * MIB
PARTS_MAX = 10_000
AT_ONCE = 4
LEAVE_S = 5.0
EXAMPLE = "s3://customer-bucket/reports?encryption=aws:kms"
UPLOAD_ID = re.compile(b"<UploadId>([^<]+)</UploadId>")
PART = re.compile(b"<Part>(.*?)</Part>", re.DOTALL)
NEXT_MARKER = re.compile(b"<IsTruncated>true</IsTruncated>")


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
        part_bytes: the size of a part, 5 MiB at least; a file has 10,000 at most. Up to five are in memory.
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
    ) -> None:
        if part_bytes < PART_BYTES_MIN:
            raise ConfigError(f"part_bytes is {part_bytes}: S3 takes parts of {PART_BYTES_MIN} at least")
        self._url = url
        self._clock = clock
        self._meter = meter
        self._endpoint = endpoint
        self._keys = keys
        self._part_bytes = part_bytes
        self._opened: S3 | None = None
        self._closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        try:
            answer = await self.call("HeadObject", self.spot(name), "HEAD")
        except FileNotFoundError:
            return None
        return RemoteFile(name, int(answer.headers.get("Content-Length", 0)), answer.headers.get("ETag", ""))

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> S3Upload:
        spot = self.spot(name)
        if not replace:
            await self.must_not_be_there(name)
        return S3Upload(self, name, spot, self._part_bytes, replace=replace)

    async def resume(self, name: str, temporary: str, token: str, *, replace: bool = True) -> S3Upload | None:
        spot = self.spot(name)
        if not token:
            return None
        try:
            parts = await self._parts(spot, token)
        except FileNotFoundError:  # or a service that lists no parts
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
            with contextlib.suppress(FileNotFoundError):
                await self.call("AbortMultipartUpload", spot, "DELETE", _query(token))

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
        """Where the file of that name is. Raises InvalidMessage."""
        spot = Spot(self._url.place.bucket, self._url.place.key + check(name))
        if len(spot.key.encode()) > KEY_BYTES_MAX:
            raise InvalidMessage(f"the remote name {name!r} makes a key of over {KEY_BYTES_MAX} bytes")
        return spot

    async def must_not_be_there(self, name: str) -> None:
        """Raises AlreadyThere if a file of that name is."""
        if await self.stat(name) is not None:
            raise _there(name)

    @property
    def headers(self) -> dict[str, str]:
        """How a file is kept."""
        return {"Content-Type": CONTENT_TYPE} | self._url.headers

    async def call(
        self,
        operation: str,
        spot: Spot,
        method: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """One call to S3. Raises as that does; FileNotFoundError for an upload that is over, too."""
        from holdfast.adapters.aws.client import UNTRUSTED, Refused  # noqa: PLC0415

        try:
            return await self._s3().call(operation, spot, method, query, headers=headers, body=body)
        except Refused as error:
            if error.code == "NoSuchUpload":
                raise FileNotFoundError(str(spot)) from None
            if UNTRUSTED.search(error.code):
                raise LoginRefused(str(error)) from error
            raise

    async def _parts(self, spot: Spot, token: str) -> list[tuple[str, int]]:
        """ETag and size of the parts from the first on, as far as none lacks."""
        parts: list[tuple[str, int]] = []
        while True:
            query = f"part-number-marker={len(parts)}&{_query(token)}"
            answer = await self.call("ListParts", spot, "GET", query)
            for number, each in enumerate(PART.findall(answer.body), len(parts) + 1):
                if int(_element(b"PartNumber", each)) != number:
                    return parts
                parts.append((html.unescape(_element(b"ETag", each)), int(_element(b"Size", each))))
            if not NEXT_MARKER.search(answer.body):
                return parts

    def _s3(self) -> S3:
        if self._closed:
            raise Unavailable("the connection to S3 is closed")
        if self._opened is None:
            from holdfast.adapters.aws.client import AwsClient  # noqa: PLC0415
            from holdfast.adapters.aws.s3 import S3  # noqa: PLC0415

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


class S3Upload:
    """One file on its way."""

    def __init__(
        self,
        sink: S3Sink,
        name: str,
        spot: Spot,
        part_bytes: int,
        *,
        replace: bool,
        token: str = "",
        tags: Sequence[str] = (),
    ) -> None:
        self.token = token
        self.grain = part_bytes
        self.held = len(tags) * part_bytes
        self._sink = sink
        self._name = name
        self._spot = spot
        self._replace = replace
        self._tags = list(tags)
        self._at = 0
        self._waiting: list[Data] = []
        self._waiting_bytes = 0
        self._parts: list[asyncio.Task[str]] = []
        self._room = asyncio.Semaphore(AT_ONCE)
        self._over = False

    async def skip(self, size: int) -> None:
        self._at = size
        del self._tags[size // self.grain :]

    async def write(self, data: Data) -> None:
        rest = memoryview(data)
        while rest:
            piece = rest[: self.grain - self._waiting_bytes]
            rest = rest[len(piece) :]
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            self._at += len(piece)
            if self._waiting_bytes == self.grain:
                await self._send(self._take())

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        last = self._take()
        if not self.token:
            await self._put(last)
        else:
            if last:
                await self._send(last)
            await self._complete(self._tags + list(await asyncio.gather(*self._parts)))
        self._over = True
        return await self._checked()

    async def abort(self) -> None:
        if not self._over:
            await self._stop(0.0)
            with contextlib.suppress(HoldfastError):  # a rule of the bucket's lifecycle removes what stays
                await self._sink.discard(self._name, self.token)

    async def leave(self) -> None:
        if not self._over:
            await self._stop(LEAVE_S)

    def _take(self) -> bytes:
        """What waits, as the next part."""
        part = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return part

    async def _send(self, part: bytes) -> None:
        """Begin to put the next part, once fewer than AT_ONCE are under way."""
        if not self.token:
            self.token = await self._begin()
        number = len(self._tags) + len(self._parts) + 1
        if number > PARTS_MAX:
            raise TooLarge(
                f"{self._name!r} takes over {PARTS_MAX} parts of {self.grain}: set larger ones (part_bytes)"
            )
        await self._room.acquire()
        for task in self._parts:
            if task.done():
                task.result()  # one that failed ends it
        task = asyncio.create_task(self._put_part(number, part))
        task.add_done_callback(lambda _: self._room.release())
        self._parts.append(task)

    async def _begin(self) -> str:
        answer = await self._sink.call(
            "CreateMultipartUpload", self._spot, "POST", "uploads=", headers=self._sink.headers
        )
        found = UPLOAD_ID.search(answer.body)
        if found is None:
            raise Unavailable(f"s3:CreateMultipartUpload on {self._spot}: the answer makes no sense")
        return html.unescape(found[1].decode())

    async def _put_part(self, number: int, part: bytes) -> str:
        md5 = await asyncio.to_thread(_md5, part)
        try:
            answer = await self._sink.call(
                "UploadPart",
                self._spot,
                "PUT",
                f"partNumber={number}&{_query(self.token)}",
                headers={"Content-MD5": md5},
                body=part,
            )
        except OutcomeUnknown as error:  # a part may be put again
            raise Unavailable(str(error)) from error
        except FileNotFoundError:
            raise self._gone() from None
        return answer.headers["ETag"]

    async def _put(self, body: bytes) -> None:
        headers = self._sink.headers | self._condition() | {"Content-MD5": _md5(body)}
        await self._place("PutObject", "PUT", "", headers, body)

    async def _complete(self, tags: Sequence[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        try:
            answer = await self._place(
                "CompleteMultipartUpload", "POST", _query(self.token), self._condition(), body
            )
        except FileNotFoundError:  # perhaps completed by a try whose answer was lost
            found = await self._sink.stat(self._name)
            if found is None or found.version.strip('"') != _tag_of(tags):
                raise self._gone() from None
            return
        if b"<Error>" in answer.body:  # S3 begins to answer 200 before it knows
            raise OutcomeUnknown(f"{self._spot} may be in its place")

    async def _place(
        self, operation: str, method: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        from holdfast.adapters.aws.client import Refused  # noqa: PLC0415

        if not self._replace:
            await self._sink.must_not_be_there(self._name)  # for services that don't know the condition
        try:
            return await self._sink.call(operation, self._spot, method, query, headers=headers, body=body)
        except Refused as error:
            if error.code == "PreconditionFailed":
                raise _there(self._name) from None
            if error.code in ("ConditionalRequestConflict", "InvalidPart"):
                raise Unavailable(str(error)) from error
            raise

    async def _checked(self) -> RemoteFile:
        try:
            found = await self._sink.stat(self._name)
        except ConfigError:  # one who may only put: the checksums of the parts must do
            return RemoteFile(self._name, self._at)
        if found is None or found.size != self._at:
            has = "nothing" if found is None else f"{found.size} bytes"
            raise Damaged(f"the bucket has {has} of {self._name!r}, and {self._at} bytes were sent")
        return found

    async def _stop(self, patience_s: float) -> None:
        self._over = True
        if self._parts:
            _, late = await asyncio.wait(self._parts, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._parts, return_exceptions=True)

    def _condition(self) -> dict[str, str]:
        return {} if self._replace else {"If-None-Match": "*"}

    def _gone(self) -> Damaged:
        return Damaged(f"what was sent of {self._name!r} is gone: another finished it or gave it up")


def _query(token: str) -> str:
    return f"uploadId={quote(token, safe='')}"


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _tag_of(tags: Sequence[str]) -> str:
    """The ETag of an object of these parts, where nothing but MD5 made theirs."""
    try:
        digests = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
    except ValueError:
        return ""
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(tags)}"


def _element(name: bytes, xml: bytes) -> str:
    found: Any = re.search(b"<%b>([^<]*)</%b>" % (name, name), xml)
    return found[1].decode() if found else "0"


def _there(name: str) -> AlreadyThere:
    return AlreadyThere(f"{name!r} is at its destination already, and is not to be replaced")
