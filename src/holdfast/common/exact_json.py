"""JSON that says what a value says. What JSON can't hold is an error: elsewhere NaN becomes null in silence,
and what nests deeply is written by one program and can't be read by the next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec

from holdfast.common.record import UNREADABLE

NEST_MAX = 500
"""Deeper than this is neither written nor shown: how deep a program can read depends on where it is."""

TOO_DEEP = f"it nests deeper than {NEST_MAX}"

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [1 if byte in b"[{" else -1 for byte in range(256)]


def encoder(hook: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """What writes values as JSON. ``hook`` makes something that JSON has of types that msgspec doesn't know.
    It raises TypeError or ValueError for what JSON can't hold."""
    write = msgspec.json.Encoder(enc_hook=hook).encode

    def plain(value: Any) -> Any:
        """What isn't JSON by itself, and was written: it is JSON as it stands, or the hook knows it."""
        return None if hook is None or isinstance(value, msgspec.Raw) else hook(value)

    def encode(value: Any) -> bytes:
        try:
            data = write(value)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        if nests_deeply(data):
            raise ValueError(TOO_DEEP)
        if b"null" in data:  # which msgspec writes for NaN and infinities, too
            _check_numbers(msgspec.to_builtins(value, str_keys=True, enc_hook=plain))
        return data

    return encode


def _of_model(value: Any) -> Any:
    """What JSON has for a pydantic model, as the model reads it again."""
    if hasattr(value, "__pydantic_serializer__"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


encode = encoder(_of_model)
"""Writes a value as JSON: what msgspec knows, and pydantic models."""


def decode_plain(data: bytes) -> Any:
    """The value that JSON says. Raises ValueError for what is no JSON, or nests too deeply."""
    if nests_deeply(data):
        raise ValueError(TOO_DEEP)
    try:
        return msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"it is no JSON: {error}") from None


def nests_deeply(data: bytes) -> bool:
    """True for JSON that nests deeper than ``NEST_MAX``."""
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
