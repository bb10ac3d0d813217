"""URLs of S3: ``s3://bucket[/prefix]`` for a store, ``s3://bucket/key`` for an object, percent-encoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, InvalidMessage

EXAMPLE = "s3://my-bucket/frames"
ANY_BUCKET = "s3://"
KEY_BYTES_MAX = 1024
CONTENT_TYPE = "application/octet-stream"
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of an object: its bucket and key."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{quote(self.key)}"


def parse(url: str, setting: str = "objects_url") -> Spot:
    """Bucket and prefix of the URL that ``setting`` holds; the prefix is empty or ends in ``/``, and both are
    empty of ``s3://``, which names no bucket to put into. Raises ConfigError."""
    if url == ANY_BUCKET:
        return Spot("", "")
    try:
        parts = urlsplit(url)
        prefix = unquote(parts.path, errors="strict").strip("/")
        if parts.scheme != "s3" or "?" in url or "#" in url or not BUCKET.fullmatch(parts.netloc):
            raise ValueError
        if prefix:
            check_name(prefix)
    except (ValueError, InvalidMessage):
        raise ConfigError(f"{setting} is {redact_url(url)!r}: use one such as {EXAMPLE!r}") from None
    return Spot(parts.netloc, f"{prefix}/" if prefix else "")


def locate(url: str) -> Spot:
    """Return the place that an object's URL names. Raises InvalidMessage if it names none."""
    bucket, _, path = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not BUCKET.fullmatch(bucket) or not path:
        raise InvalidMessage(f"{url!r} is not an object's URL here; they are like s3://bucket/key")
    if "?" in path or "#" in path:
        raise InvalidMessage(f"{url!r} has a query or a fragment; an object's URL has none (%3F, %23)")
    try:
        key = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidMessage(f"{url!r} holds bytes that are not UTF-8") from None
    # A proxy may resolve these, and so read or sign another object.
    if "\0" in key or not {".", ".."}.isdisjoint(key.split("/")):
        raise InvalidMessage(f"{url!r} has a segment '.' or '..', or a NUL")
    return Spot(bucket, key)


def check_name(name: str) -> None:
    """Raise InvalidMessage for a name under which nothing can be put."""
    if any(segment in ("", ".", "..") or "\0" in segment for segment in name.split("/")):
        raise InvalidMessage(f"object name {name!r} has an empty segment, '.', '..' or a NUL")
