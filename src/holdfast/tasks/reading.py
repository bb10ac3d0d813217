"""Converts the body of a task to the type that its handler declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format, struct_pb2, wrappers_pb2
from google.protobuf.message import DecodeError, Message

from holdfast.common.codec import decoder
from holdfast.errors import InvalidMessage

Read = Callable[[bytes, str], Any]

JSON = {
    kind.DESCRIPTOR.full_name: kind for kind in (struct_pb2.Struct, struct_pb2.Value, struct_pb2.ListValue)
}
"""Well-known protobuf types with the same content as JSON."""

BYTES = wrappers_pb2.BytesValue.DESCRIPTOR.full_name


def reader(body: Any) -> Read:
    """Return the function that makes a handler's body from (data, name of its protobuf type), as in
    :class:`Body`.

    A protobuf class is read from its own type or from JSON, ``str`` from any text, ``bytes`` from any body, a
    class with a static method ``read_body`` by that method, and all other types from JSON. The function
    raises InvalidMessage. This raises ConfigError for a type that can't be read.
    """
    if inspect.isclass(body) and issubclass(body, Message):
        return _protobuf_reader(body)
    if body is bytes:
        return _bytes
    if (own := getattr(body, "read_body", None)) is not None:
        read_own: Read = own
        return read_own
    read = _text if body is str else decoder(body)

    def read_json(data: bytes, name: str) -> Any:
        if not name:
            return read(data)
        if name not in JSON:
            raise InvalidMessage(
                f"the body is a protobuf message of type {name}, which the handler can't read; declare its"
                " class as body="
            )
        return read(_as_json(_parsed(JSON[name], data)))

    return read_json


def _protobuf_reader(kind: type[Message]) -> Read:
    own = kind.DESCRIPTOR.full_name

    def read(data: bytes, name: str) -> Any:
        if name == own:
            return _parsed(kind, data)
        if name:
            raise InvalidMessage(f"the body is a protobuf message of type {name}; the handler takes {own}")
        try:
            return json_format.Parse(data, kind())
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise InvalidMessage(f"the body isn't {own} in JSON: {error}") from error

    return read


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidMessage(f"the body isn't of type {kind.DESCRIPTOR.full_name}: {error}") from error


def _as_json(message: Message) -> bytes:
    try:
        return json_format.MessageToJson(message).encode()
    except ValueError as error:  # it holds NaN or an infinity, which JSON doesn't have
        raise InvalidMessage(f"the body can't be read as JSON: {error}") from error


def _bytes(data: bytes, name: str) -> bytes:
    return _parsed(wrappers_pb2.BytesValue, data).value if name == BYTES else data  # type: ignore[attr-defined]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"the body isn't text in UTF-8: {error}") from error
