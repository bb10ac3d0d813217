"""Encodes the state of a typed handler, and decodes it.

A state is MessagePack behind a header of three bytes. The first byte begins neither MessagePack nor UTF-8,
which distinguishes state that a handler has encoded by itself. Equal states have equal bytes: sets are
sorted, and dicts keep their order. NumPy arrays keep dtype, shape and memory order, bit for bit."""

from __future__ import annotations

import ast
import copy
import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as types
from msgspec import msgpack

from holdfast.common.user_code import run_user_code
from holdfast.errors import ConfigError, HandlerFailed

HEADER = b"\xc1\x48\x01"
"""The beginning of every typed state: a byte that MessagePack never uses, ``H``, and the format's version."""

ARRAY = 1
"""The MessagePack extension type of an array."""

SIZE_BYTES = 2
"""The size of the number in front of an array's description, in bytes."""


class StateCodec:
    """The codec of one state type: a dataclass, msgspec Struct, pydantic model, TypedDict, dict, list or set.

    Raises ConfigError for a type that can't hold state: one that can't be changed in place, or that can't be
    encoded.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._class = _class_of(kind)
        try:
            self._decoder = msgpack.Decoder(kind, dec_hook=_to_custom, ext_hook=_to_array)
            self._has_sets = _has_sets(types.type_info(kind), set())
        except (TypeError, NameError) as error:
            raise ConfigError(f"state type {name_of(kind)} can't be encoded: {error}") from error
        self._encoder = msgpack.Encoder(enc_hook=_from_custom)

    def encode(self, state: Any) -> bytes:
        """Return a state as bytes. Raises HandlerFailed for a value that can't be encoded."""
        if not isinstance(state, self._class):
            raise HandlerFailed(
                f"the state is of type {type(state).__name__}, and the handler declares {name_of(self.kind)}",
                permanent=True,
            )
        try:
            return HEADER + run_user_code(
                self._encoder.encode, _without_sets(state) if self._has_sets else state
            )
        except Exception as error:
            raise HandlerFailed(
                f"the state, of type {name_of(self.kind)}, can't be encoded: {error}"
            ) from error

    def decode(self, data: bytes) -> Any:
        """Return the state that ``data`` holds. Raises ValueError for bytes that don't fit the type."""
        return run_user_code(self._decoder.decode, _body(data))

    def check(self, state: Any) -> None:
        """Raise HandlerFailed for a state that isn't the same after it was stored and loaded, such as one
        with a tuple in a place without a type: it comes back as a list."""
        difference = next(differences("state", state, self.decode(self.encode(state))), None)
        if difference is not None:
            raise HandlerFailed(
                f"the state changes when it is stored and loaded: {difference}; give the place a type that"
                " says what it holds",
                permanent=True,
            )

    def convert(self, plain: Any) -> Any:
        """Return the state for a migrated value: a state already, or plain dicts and lists. Raises ValueError
        if it doesn't fit the type."""
        if isinstance(plain, self._class) and not isinstance(plain, dict | list | set):
            return plain
        return msgspec.convert(plain, self.kind, dec_hook=_to_custom)


def is_typed(data: bytes) -> bool:
    """Return True for state that a typed handler has written."""
    return data.startswith(HEADER)


def decode_plain(data: bytes) -> Any:
    """Return a typed state as plain dicts, lists and arrays. Raises ValueError for other bytes."""
    return msgpack.decode(_body(data), ext_hook=_to_array)


def _body(data: bytes) -> memoryview:
    if not is_typed(data):
        raise ValueError("it was written by a handler without typed state")
    return memoryview(data)[len(HEADER) :]


def name_of(kind: Any) -> str:
    """Return the name of a type, for messages."""
    return kind.__name__ if isinstance(kind, type) else str(kind).removeprefix("typing.")


# -- which types can hold state -----------------------------------------------------------------------


def _class_of(kind: Any) -> type[Any]:
    """Return the class whose instances hold state of a type. Raises ConfigError without such a class."""
    made = typing.get_origin(kind) or kind
    if typing.is_typeddict(made):
        return dict
    wrong = "it can't be changed in place"
    if isinstance(made, type):
        if made in (dict, list, set):
            return made
        if dataclasses.is_dataclass(made):
            if not made.__dataclass_params__.frozen:  # type: ignore[attr-defined] # typeshed leaves it out
                return made
            wrong = "it is frozen"
        elif issubclass(made, msgspec.Struct):
            if not made.__struct_config__.frozen:
                return made
            wrong = "it is frozen"
        elif hasattr(made, "__pydantic_validator__"):
            lost = _lost_fields(made)
            if not lost and not getattr(made, "model_config", {}).get("frozen"):
                return made
            wrong = f"its dumps leave out {', '.join(lost)}" if lost else "it is frozen"
    raise ConfigError(
        f"state type {name_of(kind)} can't hold the state of a stream: {wrong}; use a dataclass, msgspec"
        " Struct, pydantic model, TypedDict, dict, list or set whose fields can be assigned"
    )


def _lost_fields(model: Any) -> list[str]:
    """Return the fields of a pydantic model that its dumps leave out."""
    left_out = [name for name, field in model.model_fields.items() if field.exclude]
    return [*left_out, *model.__private_attributes__]


def _has_sets(info: types.Type, seen: set[Any]) -> bool:
    """Return True if values of a type can hold sets. ``seen`` are the classes already looked at."""
    if isinstance(info, types.SetType | types.FrozenSetType):
        return True
    if (made := getattr(info, "cls", None)) in seen:
        return False
    seen.add(made)
    return any(_has_sets(part, seen) for part in _parts(info))


def _parts(info: types.Type) -> Iterator[types.Type]:
    """Yield the types of which a type is made."""
    for name in ("type", "item_type", "key_type", "value_type"):
        if isinstance(part := getattr(info, name, None), types.Type):
            yield part
    yield from getattr(info, "item_types", ())
    yield from getattr(info, "types", ())
    yield from (field.type for field in getattr(info, "fields", ()))


def _without_sets(value: Any) -> Any:
    """Return a value with sorted lists in place of its sets."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: msgpack.encode(item, enc_hook=_from_custom))
    if isinstance(value, dict):
        return {key: _without_sets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_sets(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made: Any = object.__new__(type(value))
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, _without_sets(getattr(value, field.name)))
        return made
    if isinstance(value, msgspec.Struct):
        made = copy.copy(value)
        for name in value.__struct_fields__:
            msgspec.structs.force_setattr(made, name, _without_sets(getattr(value, name)))
        return made
    return value


# -- types that msgspec doesn't know ------------------------------------------------------------------


def _from_custom(value: Any) -> Any:
    """Convert an array, a number of NumPy or a pydantic model to what msgspec encodes."""
    if hasattr(value, "__array_interface__"):
        return _from_array(value) if type(value).__name__ == "ndarray" else value.item()
    if hasattr(value, "__pydantic_serializer__"):
        return _without_sets(value.model_dump(round_trip=True))
    raise TypeError(f"it holds an object of type {type(value).__name__}")


def _from_array(array: Any) -> msgpack.Ext:
    if array.dtype.hasobject:
        raise TypeError("it holds an array of objects; give it a dtype of numbers or texts")
    if not array.flags.forc:
        raise TypeError("it holds an array that isn't contiguous; keep array.copy() instead")
    from numpy.lib import format as npy  # noqa: PLC0415 - as below

    order = "C" if array.flags.c_contiguous else "F"
    head = msgpack.encode((repr(npy.dtype_to_descr(array.dtype)), array.shape, order))
    return msgpack.Ext(ARRAY, len(head).to_bytes(SIZE_BYTES, "big") + head + array.tobytes(order))


def _to_array(code: int, data: memoryview) -> Any:
    if code != ARRAY:
        raise ValueError(f"it holds a value of the unknown extension type {code}")
    import numpy as np  # noqa: PLC0415 - only states that hold arrays need it
    from numpy.lib import format as npy  # noqa: PLC0415

    end = SIZE_BYTES + int.from_bytes(data[:SIZE_BYTES], "big")
    described, shape, order = msgpack.decode(data[SIZE_BYTES:end])
    dtype = npy.descr_to_dtype(ast.literal_eval(described))
    return np.frombuffer(data[end:], dtype).reshape(shape, order=order).copy(order=order)


def _to_custom(kind: Any, value: Any) -> Any:
    """Convert a decoded value to a type that msgspec doesn't know."""
    made = typing.get_origin(kind) or kind
    if isinstance(value, made):
        return value
    if hasattr(made, "__pydantic_validator__"):
        return made.model_validate(value)
    raise NotImplementedError(f"values of type {name_of(kind)} can't be decoded")


# -- whether a state comes back as it was -------------------------------------------------------------


def differences(place: str, before: Any, after: Any) -> Iterator[str]:
    """Yield where two values differ in type or content. Numbers of NumPy are equal to Python's."""
    if hasattr(before, "item") and not hasattr(after, "item"):
        before = before.item()
    if type(before) is not type(after):
        yield f"{place} is of type {type(before).__name__}, and comes back as {type(after).__name__}"
    elif isinstance(before, dict):
        if list(before) != list(after):
            yield f"the keys of {place} come back as others"
        for key in before.keys() & after.keys():
            yield from differences(f"{place}[{key!r:.40}]", before[key], after[key])
    elif isinstance(before, list | tuple):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(f"{place}[{index}]", one, other)
    elif type(before).__name__ == "ndarray":
        if _from_array(before) != _from_array(after):
            yield f"the array {place} comes back as another"
    elif (names := _attributes(before)) is not None:
        for name in names:
            yield from differences(f"{place}.{name}", getattr(before, name), getattr(after, name))
    elif before != after and not (_is_nan(before) and _is_nan(after)):
        yield f"{place} is {before!r:.40}, and comes back as {after!r:.40}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _attributes(value: Any) -> list[str] | None:
    """Return the names of the fields of an object; None if it isn't made of fields."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return list(type(value).model_fields) if hasattr(value, "__pydantic_validator__") else None
