"""Converts bodies to the types that handlers declare, and results to bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.common.exact_json import encoder
from holdfast.common.record import UNREADABLE
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, TooLarge

RESULT_BYTES_MAX = 64 << 20


def decoder(message: Any) -> Callable[[bytes], Any]:
    """Return the function that turns a body into the declared message type.

    The function raises InvalidMessage, which names the field that doesn't fit. This raises ConfigError for a
    type that can't be read from JSON.
    """
    if message is bytes:
        return bytes
    if hasattr(message, "__pydantic_validator__"):
        return _pydantic_decoder(message)
    try:
        decode = msgspec.json.Decoder(message).decode
    except (TypeError, NameError) as error:
        raise ConfigError(f"message type {_type_name(message)} can't be read from JSON: {error}") from error

    def read(body: bytes) -> Any:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise _misfit(message, str(error)) from error
        except UNREADABLE as error:
            raise InvalidMessage(f"the body is not JSON that can be read: {error}") from error

    return read


def encode_result(result: object, limit_bytes: int = RESULT_BYTES_MAX) -> bytes | None:
    """Encode a handler's result for the store: bytes unchanged, None for no result, anything else as JSON.

    Raises HandlerFailed for what JSON can't hold, TooLarge for more than ``limit_bytes``.
    """
    if result is None:
        return None
    if isinstance(result, bytes | bytearray | memoryview):
        encoded = bytes(result)
    else:
        try:
            encoded = _encode(result)
        except Exception as error:
            raise HandlerFailed(
                f"the result, of type {type(result).__name__}, can't be stored as JSON: {error};"
                " return what JSON can hold, bytes, or None"
            ) from error
    if len(encoded) > limit_bytes:
        raise TooLarge(f"the result has {len(encoded)} bytes; a result has {limit_bytes} at most")
    return encoded


def _misfit(message: Any, reason: str) -> InvalidMessage:
    where = re.search(r"`\$\.?([^`]*)`$", reason) or re.search(r"field `([^`]*)`", reason)
    field = where[1] if where else None
    advice = "; write bytes in standard base64, padded and in one line" if "base64" in reason else ""
    return InvalidMessage(f"the message is no {_type_name(message)}: {reason}{advice}", field)


def _pydantic_decoder(message: Any) -> Callable[[bytes], Any]:
    import pydantic  # noqa: PLC0415 - slow to import, and in use already where the type is one of its own

    validate = pydantic.TypeAdapter(message).validate_json

    def read(body: bytes) -> Any:
        try:
            return validate(body)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or None
            place = f" - at `{field}`" if field else ""
            raise InvalidMessage(
                f"the message is no {_type_name(message)}: {first['msg']}{place}", field
            ) from error

    return read


def _type_name(message: Any) -> str:
    return getattr(message, "__name__", str(message))


def _plain(value: Any) -> Any:
    """Return what JSON can hold for an array or number of NumPy, or a pydantic model."""
    for convert in ("tolist", "model_dump"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"it holds an object of type {type(value).__name__}")


_encode = encoder(_plain)
