"""Orders as protobuf. The classes are made from the compiled ``order.proto``: generated code would demand one
version of protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.errors import InvalidMessage
from holdfast.reports.order import ReportOrder, encode, from_plain

_pool = Default()
for _proto in FileDescriptorSet.FromString(files(__package__).joinpath("order.binpb").read_bytes()).file:
    _pool.Add(_proto)

OrderMessage: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.reports.v1.ReportOrder"))
"""The protobuf class of an order."""

_LISTS = ("in", "not in")


def decode_protobuf(body: bytes) -> ReportOrder:
    """Return the checked order in a protobuf body. Raises InvalidMessage with the field's name in JSON."""
    return from_plain(plain_protobuf(body))


def plain_protobuf(body: bytes) -> object:
    """Decode a protobuf body to the values of a JSON order. Raises InvalidMessage."""
    try:
        return _order(OrderMessage.FromString(body))
    except DecodeError as error:
        raise InvalidMessage(
            f"the order isn't a holdfast.reports.v1.ReportOrder: {error}", "order"
        ) from error


def encode_protobuf(order: ReportOrder) -> bytes:
    """Return the order as protobuf, without defaults: equal orders give equal bytes."""
    plain = msgspec.json.decode(encode(order))
    form = plain.pop("format", {"type": "csv"})
    plain[form.pop("type")] = form
    for table in plain["tables"]:
        for condition in table.get("filter", ()):
            value = condition.pop("value", None)
            condition["value"] = [] if value is None else value if isinstance(value, list) else [value]
    message = OrderMessage()
    _fill(message, plain)
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _order(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(message)
    for form in ("csv", "xlsx"):
        if form in plain:
            plain["format"] = {"type": form, **plain.pop(form)}
    for table in plain.get("tables", ()):
        for condition in table.get("filter", ()):
            values = condition.pop("value", [])
            if condition.get("op") in _LISTS or len(values) > 1:
                condition["value"] = values
            elif values:
                condition["value"] = values[0]
    return plain


def _plain(message: Message) -> Any:
    """Return the fields that are set."""
    if message.DESCRIPTOR.name == "Value":
        kind = message.WhichOneof("kind")
        return None if kind is None else getattr(message, kind)
    plain: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Mapping):
            plain[field.name] = {key: _one(item) for key, item in value.items()}
        elif field.is_repeated:
            plain[field.name] = [_one(item) for item in value]
        else:
            plain[field.name] = _one(value)
    return plain


def _one(value: Any) -> Any:
    return _plain(value) if isinstance(value, Message) else value


def _fill(message: Any, plain: Mapping[str, Any]) -> None:
    for name, value in plain.items():
        field, kind = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
        if isinstance(value, Mapping) and kind.is_repeated:
            holds_values = kind.message_type.fields_by_name["value"].message_type
            for key, item in value.items():
                if holds_values:
                    _set(field[key], item)
                else:
                    field[key] = item
        elif isinstance(value, Mapping):
            field.SetInParent()
            _fill(field, value)
        elif kind.is_repeated and kind.message_type:
            for item in value:
                fill = _fill if isinstance(item, Mapping) else _set
                fill(field.add(), item)
        elif kind.is_repeated:
            field.extend(value)
        else:
            setattr(message, name, value)


def _set(message: Any, value: Any) -> None:
    """Set the field of a ``Value`` that has the type of the given one."""
    kinds = {bool: "truth", int: "integer", float: "number", str: "text"}
    setattr(message, kinds[type(value)], value)
