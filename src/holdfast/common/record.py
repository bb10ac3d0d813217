"""Reading of records in services: any bytes give a record or one of Holdfast's errors."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator

import msgspec

from holdfast.errors import Damaged

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of decoders for wrong bytes: not UTF-8, out of range, or nested too deeply."""

MISSHAPEN = (*UNREADABLE, LookupError, TypeError)
"""The same, and errors for records of a wrong shape."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise Damaged if the code inside can't read the record. ``what`` names the record in the error."""
    try:
        yield
    except MISSHAPEN as error:
        raise Damaged(
            f"{what} can't be read ({error}); another program wrote it, or a part of it is lost: restore"
            " it, or delete it"
        ) from error


_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_SPACE = b" \t\r\n"


def from_base64(text: bytes) -> bytes:
    """Decode base64 in lines, URL-safe, or without padding too. Raises ValueError for other texts."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        plain = text.translate(_TO_STANDARD, _SPACE).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
