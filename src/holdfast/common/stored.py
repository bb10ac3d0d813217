"""The reference to a stored value: a message has it instead of a value that is too large."""

from __future__ import annotations

import msgspec


class StoredValue(msgspec.Struct, frozen=True):
    """A value in an object store: the object's ``url``, its ``size`` in bytes, and its SHA-256 in
    hexadecimal."""

    url: str
    size: int
    sha256: str
