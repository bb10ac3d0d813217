"""The API of S3 over a client: buckets to URLs and regions, refusals to errors."""

from __future__ import annotations

import errno
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import quote

from yarl import URL

from holdfast.errors import ConfigError, InvalidMessage
from holdfast.services.aws.client import READING, AwsClient, AwsRefused, AwsResponse, Reader, ResolvedEndpoint
from holdfast.services.aws.s3_url import Spot

ANSWER_S = 60.0
AMAZON = re.compile(r"(?:^|\.)(?:amazonaws\.com(?:\.cn)?|api\.aws)$")
HOST_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
MISSING = frozenset({"NoSuchKey", "NotFound", "NoSuchBucket"})
NO_UPLOAD = "NoSuchUpload"
NO_NAMES = frozenset({"InvalidBucketName", "KeyTooLongError", "InvalidURI"})
REGION = "x-amz-bucket-region"


class S3:
    """Calls to S3."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client
        self._regions: dict[str, str] = {}  # of buckets that are elsewhere

    async def call(
        self,
        operation: str,
        spot: Spot,
        method: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        body_sha256: str = "",
        reader: Reader | None = None,
    ) -> AwsResponse:
        """Make one call; ``query`` is encoded and sorted.

        Raises FileNotFoundError for a missing object that is read and for a missing upload, InvalidMessage
        for a name that S3 refuses, else as ``AwsClient.request`` does."""
        place = await self.client.place()
        for again in (True, False):
            region = self._regions.get(spot.bucket, place.region)
            try:
                return await self.client.request(
                    operation,
                    resource=str(spot),
                    method=method,
                    url=address(place, spot, query, region),
                    headers=headers,
                    body=body,
                    body_sha256=body_sha256,
                    sign_body=False,  # over plain HTTP it is signed all the same
                    region=region,
                    reader=reader,
                    timeout_s=ANSWER_S,
                )
            except AwsRefused as error:
                elsewhere = error.answer.headers.get(REGION, region)
                if again and elsewhere != region:
                    self._regions[spot.bucket] = elsewhere
                    continue
                named = _named(error, spot, reading=method in READING)
                raise named from (None if named is error else error)
        raise AssertionError("unreachable")


def address(place: ResolvedEndpoint, spot: Spot, query: str, region: str) -> URL:
    """Return the URL of an object. The bucket is part of the host's name at Amazon, and of the path
    elsewhere, unless the AWS settings say otherwise (``addressing_style``)."""
    endpoint = place.endpoint
    host = endpoint.raw_host or ""
    amazon = AMAZON.search(host) is not None
    if amazon and region != place.region:
        host = host.replace(place.region, region)
    style = (getattr(place.config, "s3", None) or {}).get("addressing_style")
    dotless = HOST_NAME.fullmatch(spot.bucket) is not None
    path = quote(spot.key, safe="/~")
    if style != "path" and dotless and (amazon or style == "virtual") and not _is_address(host):
        host = f"{spot.bucket}.{host}"
    else:
        path = f"{spot.bucket}/{path}"
    port = "" if endpoint.is_default_port() else f":{endpoint.port}"
    base = f"{endpoint.scheme}://{f'[{host}]' if ':' in host else host}{port}{endpoint.raw_path.rstrip('/')}"
    return URL(f"{base}/{path}{f'?{query}' if query else ''}", encoded=True)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _named(error: AwsRefused, spot: Spot, *, reading: bool) -> Exception:
    """Return the error that the port names for a refusal."""
    if error.code == NO_UPLOAD:
        return FileNotFoundError(errno.ENOENT, "no such upload", str(spot))
    if error.code == "NoSuchBucket":
        text = f"there is no bucket {spot.bucket!r}"
        return (
            FileNotFoundError(errno.ENOENT, text, str(spot)) if reading else ConfigError(f"{text}: make it")
        )
    if error.code in MISSING and reading:
        return FileNotFoundError(errno.ENOENT, "no such object", str(spot))
    if error.code in NO_NAMES:
        return InvalidMessage(f"{spot} isn't a name that S3 takes: {error}")
    if error.code == "AccessDenied" and reading:
        return ConfigError(f"{error}; without s3:ListBucket a missing object looks the same")
    return error
