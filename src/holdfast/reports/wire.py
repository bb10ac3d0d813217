"""Orders as protobuf. The classes are made from the compiled ``order.proto``: generated code would demand one
version of protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.errors import InvalidMessage

_pool = Default()
for _proto in FileDescriptorSet.FromString(files(__package__).joinpath("order.binpb").read_bytes()).file:
    _pool.Add(_proto)

OrderMessage: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.reports.v1.ReportOrder"))
"""The protobuf class of an order."""

_LISTS = ("in", "not in")


def plain_protobuf(body: bytes) -> object:
    """Decode a protobuf body to the values of a JSON order. Raises InvalidMessage."""
    try:
        return _order(OrderMessage.FromString(body))
    except DecodeError as error:
        raise InvalidMessage(
            f"the order isn't a holdfast.reports.v1.ReportOrder: {error}", "order"
        ) from error


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
