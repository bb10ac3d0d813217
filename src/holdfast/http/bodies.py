"""Bodies of requests: read and decompressed within limits of time and memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

from aiohttp import web

from holdfast.errors import InvalidMessage, TooLarge
from holdfast.http.problem import RequestRefused
from holdfast.http.serving import BODY_PAUSE_S

ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Encodings of compressed bodies, with their parameter for zlib."""

UNPACKED_MAX = 1032
"""The most bytes that one compressed byte can become."""

UNPACK_HERE_BYTES = 4 * 1024 * 1024
"""The most bytes that are decompressed here; larger bodies are decompressed in a thread."""


async def read_body(request: web.Request, limit: int) -> bytes:
    """Read the body as it was sent. Raises TooLarge as soon as possible, and TimeoutError after a long
    pause."""
    if (request.content_length or 0) > limit:
        raise TooLarge(
            f"the body has {request.content_length} bytes; the limit (max_message_bytes) is {limit}"
        )
    body = bytearray()
    while True:
        async with asyncio.timeout(BODY_PAUSE_S):
            chunk = await request.content.readany()
        if not chunk:
            return bytes(body)
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"the body is over the limit (max_message_bytes) of {limit} bytes")


async def unpacked(body: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """Like :func:`decoded`, without blocking other requests for a large body."""
    if "Content-Encoding" in headers and min(limit, len(body) * UNPACKED_MAX) > UNPACK_HERE_BYTES:
        return await asyncio.to_thread(decoded, body, headers, limit)
    return decoded(body, headers, limit)


def decoded(body: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """Return the body without its ``Content-Encoding``. Never more than ``limit`` bytes are held.

    Raises RequestRefused, InvalidMessage, TooLarge."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        text = f"Content-Encoding is {encoding!r}; send the body as it is, or by one of {known}"
        raise RequestRefused(415, "type", "Unknown content encoding", text)
    unzip = zlib.decompressobj(ENCODINGS[encoding])
    try:
        plain = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidMessage(f"the body is not {encoding}, as Content-Encoding says: {error}") from None
    if len(plain) > limit:
        raise TooLarge(f"the body, unpacked, is over the limit (max_message_bytes) of {limit} bytes")
    if not unzip.eof or unzip.unused_data:
        raise InvalidMessage(f"the body is not one whole piece of {encoding}, as Content-Encoding says")
    return plain


def slow_body() -> RequestRefused:
    """Return the error for a body that came too slowly."""
    return RequestRefused(408, "slow", "The body came too slowly", "the body did not arrive in time")
