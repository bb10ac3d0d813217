"""The reference to a stored value, which travels in place of a value that is too large to."""

from __future__ import annotations

import msgspec


class StoredValue(msgspec.Struct, frozen=True):
    """A value in an object store: the object's ``url``, the ``size`` of the value in bytes, and the SHA-256
    of these, in hexadecimal."""

    url: str
    size: int
    sha256: str
