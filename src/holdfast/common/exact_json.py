"""JSON that holds exactly the value. A value that JSON can't hold is an error: other encoders turn NaN into
null, or write deeply nested values that other programs can't read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec

from holdfast.common.record import UNREADABLE

NEST_MAX = 500
"""The deepest nesting that is written or shown. How deep a program can read depends on the depth of its own
stack."""

TOO_DEEP = f"it nests deeper than {NEST_MAX}"

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [1 if byte in b"[{" else -1 for byte in range(256)]


def encoder(hook: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """Return the function that writes values as JSON. ``hook`` converts types that msgspec doesn't know. The
    function raises TypeError or ValueError for a value that JSON can't hold."""
    write = msgspec.json.Encoder(enc_hook=hook).encode

    def plain(value: Any) -> Any:
        """Convert a value that msgspec doesn't know, with the hook."""
        return None if hook is None or isinstance(value, msgspec.Raw) else hook(value)

    def encode(value: Any) -> bytes:
        try:
            data = write(value)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        if nests_deeply(data):
            raise ValueError(TOO_DEEP)
        if b"null" in data:  # msgspec writes null for NaN and infinities too
            _check_numbers(msgspec.to_builtins(value, str_keys=True, enc_hook=plain))
        return data

    return encode


def _of_model(value: Any) -> Any:
    """Return the JSON value of a pydantic model, which the model can read again."""
    if hasattr(value, "__pydantic_serializer__"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


encode = encoder(_of_model)
"""Writes a value as JSON: types that msgspec knows, and pydantic models."""


def decode_plain(data: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for a text that isn't JSON, or nests too deeply."""
    if nests_deeply(data):
        raise ValueError(TOO_DEEP)
    try:
        return msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"it is no JSON: {error}") from None


def nests_deeply(data: bytes) -> bool:
    """Return True for JSON that nests deeper than ``NEST_MAX``."""
    if data.count(b"[") + data.count(b"{") <= NEST_MAX:
        return False
    brackets = _TEXTS.sub(b"", data).translate(None, _ALL_BUT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > NEST_MAX


def _check_numbers(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError(
            "it holds NaN or an infinity, which JSON doesn't have; give None or a text"
        ) from None
