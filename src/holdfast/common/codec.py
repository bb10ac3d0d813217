"""Converts bodies to the types that handlers declare, and values to JSON that holds exactly the value.

A value that JSON can't hold is an error: other encoders turn NaN into null, or write deeply nested values
that other programs can't read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.common.user_code import run_user_code
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, TooLarge

RESULT_BYTES_MAX = 64 << 20

NEST_MAX = 500
"""Maximum nesting that is written or shown: other programs read it without filling their stack."""

TOO_DEEP = f"it nests deeper than {NEST_MAX}"

PASSED_ON = (InvalidMessage, MemoryError)
"""Errors of a declared type's code that stay unchanged: an explained fault of the body, and a lack of memory,
which is not the body's fault."""

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [1 if byte in b"[{" else -1 for byte in range(256)]


def decoder(message: Any) -> Callable[[bytes], Any]:
    """Return the function that turns a body into the declared message type.

    It raises InvalidMessage with the wrong field, also for errors of the type's own code, such as a
    validator. A type that can't be read from JSON raises ConfigError here.
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
            return run_user_code(decode, body)
        except msgspec.ValidationError as error:
            raise _misfit(message, str(error)) from error
        except UNREADABLE as error:
            raise InvalidMessage(f"the body is not JSON that can be read: {error}") from error
        except PASSED_ON:
            raise
        except Exception as error:
            raise _refused(message, error) from error

    return read


def encode_result(
    result: object, limit_bytes: int = RESULT_BYTES_MAX, *, takes_bytes: bool = True
) -> bytes | None:
    """Encode a handler's result for the store: bytes unchanged, None for no result, anything else as JSON.
    Without ``takes_bytes``, bytes are refused.

    Raises HandlerFailed for a value that JSON can't hold, TooLarge for more than ``limit_bytes``.
    """
    advice = f"return a JSON value, {'bytes' if takes_bytes else 'text'}, or None"
    if result is None:
        return None
    if isinstance(result, bytes | bytearray | memoryview):
        if not takes_bytes:
            raise HandlerFailed(
                f"the result is bytes, which the outcome of a task can't hold; {advice}", permanent=True
            )
        encoded = bytes(result)
    else:
        try:
            encoded = _encode(result)
        except Exception as error:
            raise HandlerFailed(
                f"the result, of type {type(result).__name__}, can't be stored as JSON: {error}; {advice}"
            ) from error
    if len(encoded) > limit_bytes:
        raise TooLarge(f"the result has {len(encoded)} bytes; a result has {limit_bytes} at most")
    return encoded


def encoder(hook: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """Return the function that writes values as JSON. ``hook`` converts types that msgspec doesn't know. The
    function raises TypeError or ValueError for a value that JSON can't hold."""
    write = msgspec.json.Encoder(enc_hook=hook).encode

    def plain(value: Any) -> Any:
        """Convert a value that msgspec doesn't know, with the hook."""
        return None if hook is None or isinstance(value, msgspec.Raw) else hook(value)

    def encode(value: Any) -> bytes:
        try:
            data = run_user_code(write, value)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        if nests_deeply(data):
            raise ValueError(TOO_DEEP)
        if b"null" in data:  # msgspec writes null for NaN and infinities too
            _check_numbers(msgspec.to_builtins(value, str_keys=True, enc_hook=plain))
        return data

    return encode


def _of_model(value: Any) -> Any:
    """Return the JSON value of a pydantic model, which the model can read again, or of a kind of text."""
    if isinstance(value, str):
        return str(value)
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
        raise ValueError(f"it isn't JSON: {error}") from None


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


def _misfit(message: Any, reason: str) -> InvalidMessage:
    where = re.search(r"`\$\.?([^`]*)`$", reason) or re.search(r"field `([^`]*)`", reason)
    field = where[1] if where else None
    advice = "; write bytes in standard base64, padded and in one line" if "base64" in reason else ""
    return InvalidMessage(f"the message isn't of type {_type_name(message)}: {reason}{advice}", field)


def _pydantic_decoder(message: Any) -> Callable[[bytes], Any]:
    import pydantic  # noqa: PLC0415 - slow to import, and in use already where the type is one of its own

    validate = pydantic.TypeAdapter(message).validate_json

    def read(body: bytes) -> Any:
        try:
            return run_user_code(validate, body)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or None
            place = f" - at `{field}`" if field else ""
            raise InvalidMessage(
                f"the message isn't of type {_type_name(message)}: {first['msg']}{place}", field
            ) from error
        except PASSED_ON:
            raise
        except Exception as error:
            raise _refused(message, error) from error

    return read


def _refused(message: Any, error: Exception) -> InvalidMessage:
    """Return the error for a body at which the declared type's own code raised ``error``."""
    return InvalidMessage(f"the message isn't of type {_type_name(message)}: it raised {error!r}")


def _type_name(message: Any) -> str:
    return getattr(message, "__name__", str(message))


def _plain(value: Any) -> Any:
    """Return the JSON value of an array or number of NumPy, of a pydantic model, or of a kind of text."""
    if isinstance(value, str):
        return str(value)
    for convert in ("tolist", "model_dump"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"it holds an object of type {type(value).__name__}")


_encode = encoder(_plain)
