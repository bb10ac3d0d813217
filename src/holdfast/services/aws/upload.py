"""Multipart uploads: an object that is put in parts appears when all of them are complete, or not at all."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from holdfast.errors import OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from holdfast.services.aws.client import AwsResponse
    from holdfast.services.aws.s3_url import Spot

UPLOAD_ID = re.compile(b"<UploadId>([^<]+)</UploadId>")
PART = re.compile(b"<Part>(.*?)</Part>", re.DOTALL)
TRUNCATED = b"<IsTruncated>true</IsTruncated>"


class S3Call(Protocol):
    """Makes one call, as :meth:`holdfast.services.aws.s3.S3.call` does."""

    async def __call__(
        self,
        operation: str,
        spot: Spot,
        method: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> AwsResponse: ...


class MultipartUpload:
    """One multipart upload of the object at ``spot``.

    ``token`` is the id that S3 gave the upload; empty before :meth:`begin`. Each method raises as ``call``
    does, and FileNotFoundError if the upload doesn't exist any more."""

    def __init__(self, call: S3Call, spot: Spot, token: str = "") -> None:
        self.token = token
        self._call = call
        self._spot = spot

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Begin the upload. ``headers`` belong to the object."""
        answer = await self._call("CreateMultipartUpload", self._spot, "POST", "uploads=", headers=headers)
        found = UPLOAD_ID.search(answer.body)
        if found is None:
            raise Unavailable(f"s3:CreateMultipartUpload on {self._spot}: the answer holds no upload id")
        self.token = html.unescape(found[1].decode())

    async def put_part(
        self, number: int, body: bytes | memoryview, headers: Mapping[str, str] | None = None
    ) -> str:
        """Put one part, which replaces an earlier one of the same number; returns its ETag."""
        query = f"partNumber={number}&{self._query}"
        answer = await self._call("UploadPart", self._spot, "PUT", query, headers=headers, body=body)
        return answer.headers["ETag"]

    async def parts(self) -> list[tuple[str, int]]:
        """Return ETag and size of each part, from the first one up to a gap."""
        parts: list[tuple[str, int]] = []
        while True:
            query = f"part-number-marker={len(parts)}&{self._query}"
            answer = await self._call("ListParts", self._spot, "GET", query)
            for number, each in enumerate(PART.findall(answer.body), len(parts) + 1):
                if int(_element(b"PartNumber", each)) != number:
                    return parts
                parts.append((html.unescape(_element(b"ETag", each)), int(_element(b"Size", each))))
            if TRUNCATED not in answer.body:
                return parts

    async def complete(self, tags: Sequence[str], headers: Mapping[str, str] | None = None) -> None:
        """Make the parts with these ETags the object. Succeeds if an earlier try did so and its answer was
        lost. Raises OutcomeUnknown."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        try:
            answer = await self._call(
                "CompleteMultipartUpload", self._spot, "POST", self._query, headers=headers, body=body
            )
        except FileNotFoundError:
            found = await self._call("HeadObject", self._spot, "HEAD")
            if found.headers.get("ETag", "").strip('"') != _tag_of(tags):
                raise
            return
        if b"<Error>" in answer.body:  # S3 answers with 200 before it knows the outcome
            raise OutcomeUnknown(f"{self._spot} may have been put; put it again")

    async def abort(self) -> None:
        """Remove the upload and its parts."""
        await self._call("AbortMultipartUpload", self._spot, "DELETE", self._query)

    @property
    def _query(self) -> str:
        return f"uploadId={quote(self.token, safe='')}"


def _element(name: bytes, xml: bytes) -> str:
    found: Any = re.search(b"<%b>([^<]*)</%b>" % (name, name), xml)
    return found[1].decode() if found else "0"


def _tag_of(tags: Sequence[str]) -> str | None:
    """Return the ETag of an object of these parts; None unless the ETags of all parts are MD5 digests."""
    try:
        digests = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
    except ValueError:
        return None
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(tags)}"
