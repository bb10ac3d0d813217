"""Objects on S3 and on compatible services."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.aws.s3_url import (
    ANY_BUCKET,
    CONTENT_TYPE,
    EXAMPLE,
    KEY_BYTES_MAX,
    Spot,
    check_name,
    locate,
    parse,
)

if TYPE_CHECKING:
    from holdfast.services.aws.s3 import S3
    from holdfast.services.aws.upload import MultipartUpload

MIB = 1 << 20
MAX_BYTES = 256 * MIB
PART_BYTES = 16 * MIB
PART_BYTES_MIN = 5 * MIB
PARTS_AT_ONCE = 4
ROUNDS_MAX = 10
CHANGED = frozenset({"PreconditionFailed", "InvalidRange"})


class S3Objects:
    """Objects in a bucket, below a prefix if the URL names one. Objects of any bucket can be read.

    An object's URL is ``s3://bucket/key``, the key percent-encoded. Region, endpoint, credentials and the
    number of tries are found as AWS's own tools find them. botocore is imported, and everything is resolved
    and opened, at the first call. All calls are made in one event loop.

    Args:
        url: ``s3://bucket[/prefix]``, where objects are put; ``s3://`` for a store that is only read.
        clock: time for signatures, pauses and their jitter.
        meter: counts every try that goes out.
        setting: the setting that holds the URL, for errors to name.
        endpoint, region: where to call, unless the AWS settings say.
        max_bytes: the largest object to read.
        part_bytes: a larger object is put in parts of this size, 5 MiB at least.

    Raises ConfigError for a URL that is none of these.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        meter: Meter | None = None,
        *,
        setting: str = "objects_url",
        endpoint: str | None = None,
        region: str | None = None,
        max_bytes: int = MAX_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        if part_bytes < PART_BYTES_MIN:
            raise ConfigError(f"part_bytes is {part_bytes}: S3 takes parts of {PART_BYTES_MIN} at least")
        self._setting = setting
        self._place = parse(url, setting)
        self._clock = clock
        self._meter = meter
        self._endpoint = endpoint
        self._region = region
        self._max_bytes = max_bytes
        self._part_bytes = part_bytes
        self._opened: S3 | None = None

    async def get(self, url: str) -> bytes:
        """See the port. Also raises TooLarge for an object over ``max_bytes``, ConfigError if S3 refuses it.

        A transfer that breaks goes on where it broke, as long as the object stays the same."""
        from holdfast.services.aws.client import AwsRefused  # noqa: PLC0415
        from holdfast.services.aws.download import Download  # noqa: PLC0415

        spot = locate(url)
        download = Download(url, self._max_bytes)
        for _ in range(ROUNDS_MAX):
            had = download.size
            try:
                await self._s3().call("GetObject", spot, "GET", reader=download)
                return download.body()
            except AwsRefused as error:
                if error.code not in CHANGED or not download.size:
                    raise
                download.forget()
            except Unavailable:
                if download.size <= had:
                    raise
        raise Unavailable(f"{url} can't be read: its transfer broke in every try")

    async def put(self, name: str, data: bytes) -> str:
        """See the port. Raises InvalidMessage for an invalid name, ConfigError if S3 won't take it,
        Unavailable, and OutcomeUnknown if it may be there: put it again."""
        check_name(name)
        spot = self._spot(name)
        if len(spot.key.encode()) > KEY_BYTES_MAX:
            raise InvalidMessage(f"object name {name!r} makes a key of over {KEY_BYTES_MAX} bytes")
        if len(data) > self._part_bytes:
            await self._put_in_parts(spot, data)
        else:
            checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
            headers = {"x-amz-checksum-crc32": checksum, "Content-Type": CONTENT_TYPE}
            await self._s3().call("PutObject", spot, "PUT", headers=headers, body=data)
        return str(spot)

    async def _put_in_parts(self, spot: Spot, data: bytes) -> None:
        """Put ``data`` as a multipart upload, which is aborted if that fails."""
        from holdfast.services.aws.upload import MultipartUpload  # noqa: PLC0415

        upload = MultipartUpload(self._s3().call, spot)
        await upload.begin({"Content-Type": CONTENT_TYPE})
        room = asyncio.Semaphore(PARTS_AT_ONCE)

        async def put(number: int) -> str:
            async with room:
                part = data[(number - 1) * self._part_bytes : number * self._part_bytes]
                digest = hashlib.md5(part, usedforsecurity=False).digest()
                headers = {"Content-MD5": base64.b64encode(digest).decode()}
                return await upload.put_part(number, part, headers)

        done = False
        try:
            async with asyncio.TaskGroup() as group:
                count = -(-len(data) // self._part_bytes)
                parts = [group.create_task(put(number)) for number in range(1, count + 1)]
            await upload.complete([part.result() for part in parts])
            done = True
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        except FileNotFoundError as error:
            raise OutcomeUnknown(f"the upload of {spot} was ended meanwhile; put it again") from error
        finally:
            if not done:
                await asyncio.shield(_abort(upload))

    def url(self, name: str) -> str:
        check_name(name)
        return str(self._spot(name))

    async def urls(self, under: str) -> AsyncIterator[str]:
        """See the port. Also raises ConfigError if S3 won't list the bucket."""
        from holdfast.services.aws.listing import keys  # noqa: PLC0415

        check_name(under)
        spot = self._spot(under)
        try:
            async for key in keys(self._s3(), spot.bucket, f"{spot.key}/"):
                yield str(Spot(spot.bucket, key))
        except FileNotFoundError as error:
            raise ConfigError(f"{error.strerror}: make it") from error

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.client.close()

    def _spot(self, name: str) -> Spot:
        if not self._place.bucket:
            raise ConfigError(
                f"{self._setting} is {ANY_BUCKET!r}, which names no bucket for {name!r}: use one such as"
                f" {EXAMPLE!r}"
            )
        return Spot(self._place.bucket, self._place.key + name)

    def _s3(self) -> S3:
        if self._opened is None:
            from holdfast.services.aws.client import AwsClient  # noqa: PLC0415
            from holdfast.services.aws.s3 import S3  # noqa: PLC0415

            client = AwsClient("s3", self._clock, self._meter, region=self._region, endpoint=self._endpoint)
            self._opened = S3(client)
        return self._opened


async def _abort(upload: MultipartUpload) -> None:
    with contextlib.suppress(HoldfastError, FileNotFoundError):  # a lifecycle rule removes what is left
        await upload.abort()
