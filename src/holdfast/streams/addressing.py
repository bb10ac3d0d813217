"""From bodies to keys and places, and back.

The node only *addresses* a message: it reads key, run and seq and runs no user code. The declared
message type is built in the slot.
"""

from __future__ import annotations

import base64
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.common.message import (
    NO_RUN,
    RUN_DIGITS,
    SEQ_DIGITS,
    Place,
    check_key,
    check_number,
    unprintable,
)
from holdfast.common.record import UNREADABLE, from_base64
from holdfast.common.stored import StoredValue
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.streams.spec import QUEUE_NUMBER, StreamSpec, names_of

PREFIX_ENDS = "-_:# "
"""The characters that may stand between a seq's prefix and its digits."""

ID_CHARS_MAX = 256

STORED = "holdfast-stored"
"""The attribute of a message whose body is in an object store: a StoredMessage in JSON."""

STORED_BODY = b"stored"
"""The body of such a message. A version that doesn't know the attribute finds no key in it."""

_NOT_GIVEN = object()
"""The placeholder for the missing run of a message, if the stream allows that."""

Read = Callable[[bytes, Mapping[str, str]], Sequence[Any]]


def address(
    spec: StreamSpec, body: bytes, attributes: Mapping[str, str], delivery_id: str, number: int | None
) -> tuple[str, Place]:
    """Read the key and place of a message from its fields, or from its attributes if bodies are raw bytes.

    If the stream has no seq, the attribute ``id`` identifies messages, or ``delivery_id`` without one.
    Raises InvalidMessage naming the field and what it should be.
    """
    fields, read = _reader(spec)
    stored = stored_of(attributes)
    key, run, seq = read(body, attributes) if stored is None else stored.address()
    key = check_key(key, fields.key_name)
    is_missing = spec.run is None or run is _NOT_GIVEN
    run = fields.no_run if is_missing else check_number(run, fields.run_name, RUN_DIGITS)
    if spec.seq_kind == "absent":
        return key, Place(run, 0, _check_id(attributes.get("id", delivery_id)))
    if spec.seq != QUEUE_NUMBER:
        if spec.seq_prefix and isinstance(seq, str):
            seq = _without(spec.seq_prefix, seq)
        return key, Place(run, check_number(seq, fields.seq_name, SEQ_DIGITS))
    if number is None:
        raise InvalidMessage(
            f"stream {spec.name!r} takes its seq from the queue, but this queue does not number messages;"
            " declare seq= as the field that holds it"
        )
    return key, Place(run, check_number(number, "the queue's number", SEQ_DIGITS))


class StoredMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message whose body is too large for its queue: where the body is, and what a node must know before it
    reads it: the key, the run if it has one, and the seq."""

    value: StoredValue
    key: str
    run: int | None = None
    seq: int = 0

    def address(self) -> tuple[Any, Any, Any]:
        """Return key, run and seq as they are read from other messages."""
        return self.key, _NOT_GIVEN if self.run is None else self.run, self.seq


_decode_stored = msgspec.json.Decoder(StoredMessage).decode


def stored_of(attributes: Mapping[str, str]) -> StoredMessage | None:
    """Return where a message's body is stored; None if the message has it. Raises InvalidMessage."""
    if (text := attributes.get(STORED)) is None:
        return None
    try:
        return _decode_stored(text)
    except UNREADABLE as error:
        raise InvalidMessage(f"the attribute {STORED!r} can't be read: {error}", STORED) from None


def stored_attributes(
    spec: StreamSpec, body: bytes, attributes: Mapping[str, str], value: StoredValue
) -> dict[str, str]:
    """Return the attributes of a message whose body is stored as ``value``. Raises InvalidMessage."""
    key, place = address(spec, body, attributes, "to be sent", 0)
    run = None if place.run == spec.no_run else place.run
    stored = msgspec.json.encode(StoredMessage(value, key, run, place.seq)).decode()
    return {**attributes, STORED: stored}


def wrap(spec: StreamSpec, key: str, place: Place, body: bytes, media_type: str, at: float) -> bytes:
    """Make a JSON message from a body that isn't JSON. It has key, run and seq in the fields that the stream
    names first. ``timestamp_ms`` is the wall time of its arrival, and ``body_field`` holds the body as a data
    URL (RFC 2397)."""
    message: dict[str, Any] = {"timestamp_ms": round(at * 1000)}
    message[spec.body_field] = f"data:{media_type};base64,{base64.b64encode(body).decode()}"
    return msgspec.json.encode(with_fields(message, _named(spec, key, place)))


def labels(spec: StreamSpec, key: str, place: Place) -> dict[str, str]:
    """Return the attributes that hold key, run and seq of a raw message; empty if its body holds them."""
    if spec.message is not bytes:
        return {}
    return {name: str(value) for name, value in _named(spec, key, place).items()}


def _named(spec: StreamSpec, key: str, place: Place) -> dict[str, str | int]:
    """Return key, run and seq under the first names that the stream has for them."""
    said = {"key": key, "run": None if place.run == NO_RUN else place.run, "seq": place.seq}
    return {name: value for part, name in first_names(spec).items() if (value := said[part]) is not None}


def first_names(spec: StreamSpec) -> dict[str, str]:
    """Return the first name that a stream has for each of ``key``, ``run`` and ``seq``, if it has one."""
    has_seq = spec.seq_kind != "absent" and spec.seq != QUEUE_NUMBER
    names = {"key": names_of(spec.key), "run": spec.run_names, "seq": names_of(spec.seq) if has_seq else ()}
    return {part: some[0] for part, some in names.items() if some}


def with_fields(message: Mapping[str, Any], fields: Mapping[str, str | int]) -> dict[str, Any]:
    """Return ``message`` with ``fields`` added. Dots in their names reach into nested objects. Raises
    InvalidMessage if the message already has another value there."""
    made = dict(message)
    for name, value in fields.items():
        *path, last = name.split(".")
        node = made
        for step in path:
            inner = node.get(step, {})
            if not isinstance(inner, Mapping):
                raise InvalidMessage(f"field {name!r} can't be set: {step!r} isn't an object", name)
            copied = dict(inner)
            node[step] = copied
            node = copied
        if last in node and str(node[last]) != str(value):
            raise InvalidMessage(
                f"field {name!r} is {node[last]!r:.100} in the message, and {value!r:.100} is said beside it",
                name,
            )
        node.setdefault(last, value)
    return made


def unwrap(url: str) -> bytes:
    """Return the bytes in a data URL that :func:`wrap` made. Raises InvalidMessage."""
    head, comma, data = url.partition(",")
    if not (comma and head.endswith(";base64")):
        raise InvalidMessage(f"a data URL must be data:TYPE;base64,…; it begins {url[:40]!r}")
    try:
        return from_base64(data.encode())
    except ValueError as error:
        raise InvalidMessage(f"a data URL holds no base64: {error}") from None


def _without(prefix: str, seq: str) -> str:
    return seq.removeprefix(prefix).lstrip(PREFIX_ENDS) if seq.startswith(prefix) else seq


class _Fields:
    """The fields of a stream's key, run and seq. Each has one or several names, of which a message needs one,
    and a text that lists them. For a run or seq that the stream doesn't have, the names of the key are
    repeated."""

    def __init__(self, spec: StreamSpec) -> None:
        has_seq = spec.seq_kind != "absent" and spec.seq != QUEUE_NUMBER
        self.stream = spec.name
        self.key = names_of(spec.key)
        self.run = spec.run_names or self.key
        self.seq = names_of(spec.seq) if has_seq else self.key
        self.all = (self.key, self.run, self.seq)
        self.no_run = spec.no_run
        self.run_optional = spec.run is not None and spec.run_optional
        self.key_name, self.run_name, self.seq_name = map(" or ".join, self.all)

    def optional(self, names: tuple[str, ...]) -> bool:
        """Return True if a message may have none of ``names``."""
        return names is self.run and self.run_optional


@functools.cache
def _reader(spec: StreamSpec) -> tuple[_Fields, Read]:
    """Return a stream's fields, and the function that reads (key, run, seq) from a message."""
    fields = _Fields(spec)
    return fields, (_attribute_reader if spec.message is bytes else _body_reader)(fields)


def _body_reader(fields: _Fields) -> Read:
    fixed = not fields.run_optional and all(len(names) == 1 for names in fields.all)
    decode, get = _head(fields.stream, [name for names in fields.all for name in names], optional=not fixed)
    choose = None if fixed else _chooser(fields)

    def read(body: bytes, attributes: Mapping[str, str]) -> Sequence[Any]:
        try:
            found = get(decode(body))
            return found if choose is None else choose(found)
        except UNREADABLE as error:
            raise _explain(fields, body, error) from None

    return read


def _chooser(fields: _Fields) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return the function that chooses key, run and seq from the values of all their names."""
    ends = list(itertools.accumulate(len(names) for names in fields.all))
    spans = [
        (slice(end - len(names), end), _NOT_GIVEN if fields.optional(names) else UNSET)
        for end, names in zip(ends, fields.all, strict=True)
    ]

    def choose(values: Sequence[Any]) -> Sequence[Any]:
        chosen = [next((v for v in values[span] if v is not UNSET), default) for span, default in spans]
        if UNSET in chosen:
            raise msgspec.ValidationError("a field is missing")
        return chosen

    return choose


def _attribute_reader(fields: _Fields) -> Read:
    def read(body: bytes, attributes: Mapping[str, str]) -> Sequence[Any]:
        return [one_of(names, attributes) for names in fields.all]

    def one_of(names: tuple[str, ...], attributes: Mapping[str, str]) -> Any:
        for name in names:
            if name in attributes:
                return attributes[name]
        if fields.optional(names):
            return _NOT_GIVEN
        either = " or ".join(names)
        raise InvalidMessage(
            f"attribute {either!r} is missing; raw messages of stream {fields.stream!r} must carry it", either
        )

    return read


Tree = dict[str, "Tree"]


def _head(
    stream: str, fields: list[str], *, optional: bool
) -> tuple[Callable[[bytes], Any], Callable[[Any], Sequence[Any]]]:
    """Return a decoder of only these fields, and a function that then reads them in order. Dots in names
    reach into nested objects. If they are ``optional``, UNSET stands for a missing one.

    Decoding into a struct doesn't build the other fields, which is several times faster.
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
    return msgspec.json.Decoder(_struct(tree, optional)).decode, operator.attrgetter(*paths)


def _struct(tree: Tree, optional: bool) -> type[msgspec.Struct]:
    names = {f"f{i}": name for i, name in enumerate(tree)}
    fields: list[Any] = []
    for field, name in names.items():
        inner: Any = _struct(tree[name], optional) if tree[name] else int | str
        if not optional:
            fields.append((field, inner))
        elif tree[name]:
            fields.append((field, inner, msgspec.field(default_factory=inner)))
        else:
            fields.append((field, inner | UnsetType, UNSET))
    return msgspec.defstruct("Head", fields, rename=names, gc=False)


def _explain(fields: _Fields, body: bytes, error: Exception) -> InvalidMessage:
    """Return the error that says why key and place of a body can't be read, with the names of the stream's
    fields."""
    try:
        whole = msgspec.json.decode(body)
    except UNREADABLE as malformed:
        return InvalidMessage(f"the body is not JSON that can be read: {malformed}")
    if not isinstance(whole, dict):
        return InvalidMessage(f"the body must be a JSON object, not {_json_name(whole)}")
    for names in fields.all:
        found = [(name, node) for name in names if (node := _lookup(whole, name)) is not UNSET]
        for name, node in found:
            if isinstance(node, bool) or not isinstance(node, int | str):
                return InvalidMessage(
                    f"field {name!r} must be a text or an integer, not {_json_name(node)}", name
                )
        if not found and not fields.optional(names):
            field = " or ".join(names)
            return InvalidMessage(
                f"field {field!r} is missing; every message of {fields.stream!r} has it", field
            )
    return InvalidMessage(f"the body can't be read: {error}")


def _lookup(node: Any, field: str) -> Any:
    """Return the value of a field in a decoded body, or UNSET."""
    for name in field.split("."):
        if not isinstance(node, dict) or name not in node:
            return UNSET
        node = node[name]
    return node


def _json_name(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", float: "a fraction", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _check_id(text: str) -> str:
    if not text or len(text) > ID_CHARS_MAX or unprintable(text):
        raise InvalidMessage(
            f"attribute 'id' must be a printable text of 1 to {ID_CHARS_MAX} characters", "id"
        )
    return text
