"""Records in services: whatever bytes stand there, reading them gives a record or an error of ours."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator

import msgspec

from holdfast.errors import Damaged

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoders raise for bytes that aren't what they should be: not UTF-8, out of range or nested too deeply
among them."""

MISSHAPEN = (*UNREADABLE, LookupError, TypeError)
"""The same, and what is raised for records of another shape."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise Damaged, which names ``what``, if the record read in here is not one."""
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
    """What base64 says, as any program writes it: in lines, URL-safe, or without padding. Raises ValueError
    for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        plain = text.translate(_TO_STANDARD, _SPACE).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
