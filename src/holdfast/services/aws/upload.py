"""Puts an object in parts. It appears when all parts are complete, or not at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import re
from collections.abc import Sequence
from urllib.parse import quote

from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.services.aws.client import AwsRefused
from holdfast.services.aws.s3 import S3
from holdfast.services.aws.s3_url import CONTENT_TYPE, Spot

AT_ONCE = 4
UPLOAD_ID = re.compile(b"<UploadId>([^<]+)</UploadId>")


async def upload(s3: S3, spot: Spot, data: bytes, part_bytes: int) -> None:
    """Put ``data`` in parts of ``part_bytes``. If that fails, the parts are removed."""
    kind = {"Content-Type": CONTENT_TYPE}
    answer = await s3.call("CreateMultipartUpload", spot, "POST", "uploads=", headers=kind)
    found = UPLOAD_ID.search(answer.body)
    if found is None:
        raise OutcomeUnknown(f"s3:CreateMultipartUpload on {spot}: the answer makes no sense")
    upload_id = f"uploadId={quote(html.unescape(found[1].decode()), safe='')}"
    room = asyncio.Semaphore(AT_ONCE)

    async def put(number: int) -> str:
        async with room:
            part = data[(number - 1) * part_bytes : number * part_bytes]
            digest = hashlib.md5(part, usedforsecurity=False).digest()
            said = await s3.call(
                "UploadPart",
                spot,
                "PUT",
                f"partNumber={number}&{upload_id}",
                headers={"Content-MD5": base64.b64encode(digest).decode()},
                body=part,
            )
            return said.headers["ETag"]

    done = False
    try:
        async with asyncio.TaskGroup() as group:
            count = -(-len(data) // part_bytes)
            parts = [group.create_task(put(number)) for number in range(1, count + 1)]
        await _complete(s3, spot, upload_id, [part.result() for part in parts])
        done = True
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        if not done:
            await asyncio.shield(_abort(s3, spot, upload_id))


async def _complete(s3: S3, spot: Spot, upload_id: str, tags: Sequence[str]) -> None:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    try:
        answer = await s3.call("CompleteMultipartUpload", spot, "POST", upload_id, body=body)
        done = b"<Error>" not in answer.body  # S3 begins to answer 200 before it knows
    except AwsRefused as error:
        if error.code != "NoSuchUpload":
            raise
        done = await _is_there(s3, spot, tags)  # perhaps by a try whose answer was lost
    if not done:
        raise OutcomeUnknown(f"{spot} may have been put; put it again")


async def _is_there(s3: S3, spot: Spot, tags: Sequence[str]) -> bool:
    """Return True if the object consists of these very parts."""
    try:
        digests = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
        answer = await s3.call("HeadObject", spot, "HEAD")
    except (ValueError, FileNotFoundError):
        return False
    whole = hashlib.md5(digests, usedforsecurity=False).hexdigest()
    return answer.headers.get("ETag", "").strip('"') == f"{whole}-{len(tags)}"


async def _abort(s3: S3, spot: Spot, upload_id: str) -> None:
    with contextlib.suppress(HoldfastError):  # a rule of the bucket's lifecycle removes what stays
        await s3.call("AbortMultipartUpload", spot, "DELETE", upload_id)
