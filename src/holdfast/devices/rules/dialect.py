"""Dialects: ids inside payloads, for devices that can't return an id beside the payload."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.errors import InvalidMessage
from holdfast.extend.tools import UNREADABLE, Text, check_setting, kind_and_place, run_user_code

_ID = re.compile(r"[!-~]{1,128}")


def check_id(id: str) -> str:  # noqa: A002 (the word of the port)
    """Return ``id``. Raises InvalidMessage unless it has 1 to 128 printable ASCII characters without
    blanks."""
    if not _ID.fullmatch(id):
        raise InvalidMessage(f"a command's id has 1 to 128 printable ASCII characters, not {id!r:.200}", "id")
    return id


class Reading(msgspec.Struct, frozen=True):
    """The content of an answer: the ``id`` of the command (empty if it has none), and whether the device
    succeeded."""

    id: str
    ok: bool = True


@runtime_checkable
class Dialect(Protocol):
    """Writes ids into commands and reads them from answers."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        """Return ``payload`` with ``id`` in it. Raises InvalidMessage if the payload has no place for one."""

    def read(self, payload: bytes) -> Reading:
        """Read an answer. Raises InvalidMessage if it can't be understood."""


def write_id(dialect: Dialect, payload: bytes, id: str) -> bytes:  # noqa: A002
    """Return ``payload`` with ``id`` in it. Raises InvalidMessage, however the dialect fails."""
    made = _call(dialect, dialect.write, payload, id)
    if isinstance(made, bytes):
        return made
    raise _invalid(dialect, "write", f"returned {type(made).__name__}; make it return bytes")


def read_answer(dialect: Dialect, payload: bytes) -> Reading:
    """Read an answer. Raises InvalidMessage, however the dialect fails: a device may send any bytes."""
    reading = _call(dialect, dialect.read, payload)
    answered = reading.id if isinstance(reading, Reading) else reading
    if isinstance(reading, Reading) and isinstance(answered, str):
        return reading
    kind = type(answered).__name__
    raise _invalid(dialect, "read", f"returned {kind}; make it return a Reading with the id as text")


def _call(dialect: Dialect, method: Callable[..., Any], *given: Any) -> Any:
    """Call a dialect, which may be the user's own."""
    try:
        return run_user_code(method, *given)
    except InvalidMessage:
        raise
    except Exception as error:
        name, kind = method.__name__, kind_and_place(error)[0]
        said = f"failed with {kind}; make it raise InvalidMessage for payloads that it can't {name}"
        raise _invalid(dialect, name, said) from error


def _invalid(dialect: Dialect, method: str, said: str) -> InvalidMessage:
    return InvalidMessage(f"{type(dialect).__name__}.{method} {said}", "payload")


class PlainDialect:
    """Payloads of any kind, unchanged, for devices that return ids beside them. Every answer is a success."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        return payload

    def read(self, payload: bytes) -> Reading:
        return Reading("")


class JsonDialect:
    """Payloads that are JSON objects with the id in one field, and the result in another.

    Args:
        field: the field of the id, in commands and answers.
        result_field: the field of an answer's result; empty without one, when every answer is a success.
        success: the values of ``result_field`` that mean success.
    """

    def __init__(
        self, field: str = "messageId", result_field: str = "", success: tuple[str | int | bool, ...] = ()
    ) -> None:
        check_setting("JsonDialect", "field", field, Text)
        check_setting("JsonDialect", "result_field", result_field, str)
        check_setting("JsonDialect", "success", success, tuple[str | int | bool, ...])
        self._field = field
        self._result_field = result_field
        self._success = success
        self._objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._encoder = msgspec.json.Encoder()

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        try:
            fields = self._objects.decode(payload)
        except UNREADABLE:
            raise InvalidMessage(
                f"the command's payload must be a JSON object, for its field {self._field!r} carries the id;"
                " or give a dialect that puts it elsewhere",
                "payload",
            ) from None
        return self._encoder.encode(
            {self._field: id, **{k: v for k, v in fields.items() if k != self._field}}
        )

    def read(self, payload: bytes) -> Reading:
        try:
            fields = self._objects.decode(payload)
            id_ = msgspec.json.decode(fields.get(self._field, b'""'))
            result = msgspec.json.decode(fields.get(self._result_field, b"null"))
        except UNREADABLE:
            raise InvalidMessage("the answer is not a JSON object", "payload") from None
        if isinstance(id_, bool) or not isinstance(id_, str | int):
            raise InvalidMessage(f"the answer's {self._field!r} is neither text nor a number", self._field)
        ok = not self._result_field or (isinstance(result, str | int) and result in self._success)
        return Reading(str(id_), ok)
