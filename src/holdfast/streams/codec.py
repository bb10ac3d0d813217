"""From bodies to places and messages, and from results to bytes.

The node only *addresses* a message: it reads key, run and seq and runs no user code. The declared
message type is built in the slot.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.message import RUN_DIGITS, SEQ_DIGITS, Place, check_key, check_number
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, TooLarge
from holdfast.streams.spec import StreamSpec

QUEUE_NUMBER = "queue"
"""As ``seq`` of a stream: the queue's own number for the message."""

ID_CHARS_MAX = 256
RESULT_BYTES_MAX = 64 << 20

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Read = Callable[[bytes, Mapping[str, str]], Sequence[Any]]


def address(
    spec: StreamSpec, body: bytes, attributes: Mapping[str, str], delivery_id: str, number: int | None
) -> tuple[str, Place]:
    """The key and place of a message, from its fields (or attributes, where bodies are raw bytes).

    Where the stream has no seq, ``delivery_id`` tells messages apart, or the attribute ``id`` if given.
    Raises InvalidMessage naming the field and what it should be.
    """
    key, run, seq = _reader(spec)(body, attributes)
    key = check_key(key, spec.key)
    run = 0 if spec.run is None else check_number(run, spec.run, RUN_DIGITS)
    if spec.seq_kind == "absent":
        return key, Place(run, 0, _check_id(attributes.get("id", delivery_id)))
    if spec.seq != QUEUE_NUMBER:
        return key, Place(run, check_number(seq, spec.seq or "", SEQ_DIGITS))
    if number is None:
        raise InvalidMessage(
            f"stream {spec.name!r} takes its seq from the queue, but this queue does not number messages;"
            " declare seq= as the field that holds it"
        )
    return key, Place(run, check_number(number, "the queue's number", SEQ_DIGITS))


def decoder(message: Any) -> Callable[[bytes], Any]:
    """What turns a body into the declared message type.

    The decoder raises InvalidMessage naming the field that doesn't fit. Raises ConfigError for a type
    that can't be read from JSON.
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
    """A handler's result as it is stored: bytes as they are, None for none, anything else as JSON.

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


@functools.cache
def _reader(spec: StreamSpec) -> Read:
    """What reads (key, run, seq) of a stream's messages; a field that it doesn't have repeats the key."""
    seq = None if spec.seq_kind == "absent" or spec.seq == QUEUE_NUMBER else spec.seq
    fields = [spec.key, spec.run or spec.key, seq or spec.key]
    if spec.message is bytes:
        return _attribute_reader(spec.name, fields)
    decode, get = _head(spec.name, fields)

    def read(body: bytes, attributes: Mapping[str, str]) -> Sequence[Any]:
        try:
            return get(decode(body))
        except UNREADABLE as error:
            raise _explain(spec.name, fields, body, error) from None

    return read


def _attribute_reader(stream: str, names: list[str]) -> Read:
    def read(body: bytes, attributes: Mapping[str, str]) -> Sequence[Any]:
        try:
            return [attributes[name] for name in names]
        except KeyError as error:
            name = str(error.args[0])
            raise InvalidMessage(
                f"attribute {name!r} is missing; raw messages of stream {stream!r} must carry it", name
            ) from None

    return read


Tree = dict[str, "Tree"]


def _head(stream: str, fields: list[str]) -> tuple[Callable[[bytes], Any], Callable[[Any], Sequence[Any]]]:
    """A decoder of only these fields (dots reach into objects), and what then reads them in order.

    Decoding into a struct skips all else unbuilt, which is several times faster than decoding it.
    """
    tree: Tree = {}
    for field in fields:
        node = tree
        for name in field.split("."):
            node = node.setdefault(name, {})
    paths = []
    for field in fields:
        node, steps = tree, []
        for name in field.split("."):
            steps.append(f"f{list(node).index(name)}")
            node = node[name]
        if node:
            raise ConfigError(
                f"stream {stream!r}: field {field!r} can't also hold {'.'.join([field, *node])!r}"
            )
        paths.append(".".join(steps))
    return msgspec.json.Decoder(_struct(tree)).decode, operator.attrgetter(*paths)


def _struct(tree: Tree) -> type[msgspec.Struct]:
    names = {f"f{i}": name for i, name in enumerate(tree)}
    fields = [(field, _struct(tree[name]) if tree[name] else int | str) for field, name in names.items()]
    return msgspec.defstruct("Head", fields, rename=names, gc=False)


def _explain(stream: str, fields: list[str], body: bytes, error: Exception) -> InvalidMessage:
    """Why a body can't be addressed, in the words of its stream's fields."""
    try:
        whole = msgspec.json.decode(body)
    except UNREADABLE as malformed:
        return InvalidMessage(f"the body is not JSON that can be read: {malformed}")
    if not isinstance(whole, dict):
        return InvalidMessage(f"the body must be a JSON object, not {_json_name(whole)}")
    for field in fields:
        node: Any = whole
        for name in field.split("."):
            if not isinstance(node, dict) or name not in node:
                return InvalidMessage(
                    f"field {field!r} is missing; every message of {stream!r} has it", field
                )
            node = node[name]
        if isinstance(node, bool) or not isinstance(node, int | str):
            return InvalidMessage(
                f"field {field!r} must be a text or an integer, not {_json_name(node)}", field
            )
    return InvalidMessage(f"the body can't be read: {error}")


def _json_name(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", float: "a fraction", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _check_id(text: str) -> str:
    if not text or len(text) > ID_CHARS_MAX or not text.isprintable():
        raise InvalidMessage(
            f"attribute 'id' must be a printable text of 1 to {ID_CHARS_MAX} characters", "id"
        )
    return text


def _misfit(message: Any, reason: str) -> InvalidMessage:
    where = re.search(r"`\$\.?([^`]*)`$", reason) or re.search(r"field `([^`]*)`", reason)
    field = where[1] if where else None
    return InvalidMessage(f"the message is no {_type_name(message)}: {reason}", field)


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
    """What JSON can hold in place of an array, a number of NumPy, or a pydantic model."""
    for convert in ("tolist", "model_dump"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"it holds an object of type {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
