"""Lists the keys of a bucket, page by page."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote_plus

from holdfast.errors import Unavailable
from holdfast.services.aws.s3 import S3
from holdfast.services.aws.s3_url import Spot

KEYS_MAX = 1000
"""Keys in a page, which is the most that S3 gives."""

KEY = re.compile(b"<Key>([^<]*)</Key>")
NEXT = re.compile(b"<NextContinuationToken>([^<]+)</NextContinuationToken>")
TRUNCATED = b"<IsTruncated>true</IsTruncated>"
ENCODED = b"<EncodingType>url</EncodingType>"
"""Says that keys are percent-encoded: XML can't hold every character that a key may have."""


async def keys(s3: S3, bucket: str, prefix: str) -> AsyncIterator[str]:
    """Yield the keys of all objects in a bucket that begin with ``prefix``. Raises what a call of S3
    raises."""
    spot, token = Spot(bucket, ""), ""
    query = f"encoding-type=url&list-type=2&max-keys={KEYS_MAX}&prefix={_quoted(prefix)}"
    while True:
        page = (await s3.call("ListObjectsV2", spot, "GET", f"{token}{query}")).body
        for found in KEY.findall(page):
            key = html.unescape(found.decode())
            yield unquote_plus(key, errors="strict") if ENCODED in page else key
        if TRUNCATED not in page:
            return
        following = NEXT.search(page)
        if following is None:
            raise Unavailable(
                f"s3:ListObjectsV2 on {spot}: the answer says that there is more, and not where"
            )
        token = f"continuation-token={_quoted(html.unescape(following[1].decode()))}&"


def _quoted(text: str) -> str:
    return quote(text, safe="~")
