"""Dialects: how a command's id travels inside payloads, for devices that can't bring it back beside them."""

from __future__ import annotations

import re
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.errors import InvalidMessage
from holdfast.extend.tools import UNREADABLE, Text, check_setting, kind_and_place, run_user_code

_ID = re.compile(r"[!-~]{1,128}")


def check_id(id: str) -> str:  # noqa: A002 (the word of the port)
    """``id`` itself. Raises InvalidMessage if it can't be a command's: 1 to 128 characters of printable ASCII
    without blanks."""
    if not _ID.fullmatch(id):
        raise InvalidMessage(f"a command's id has 1 to 128 printable ASCII characters, not {id!r:.200}", "id")
    return id


class Reading(msgspec.Struct, frozen=True):
    """The content of an answer's payload: the ``id`` of the command (empty if it names none), and whether the
    device did it."""

    id: str
    ok: bool = True


@runtime_checkable
class Dialect(Protocol):
    """Writes ids into commands and reads them from answers."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        """``payload`` with ``id`` in it. Raises InvalidMessage for a payload that has no place for one."""

    def read(self, payload: bytes) -> Reading:
        """Read an answer. Raises InvalidMessage if it can't be understood."""


def write_id(dialect: Dialect, payload: bytes, id: str) -> bytes:  # noqa: A002
    """``payload`` with ``id`` in it. A dialect may be the user's own, fail in any way and return anything:
    then the command can't be sent. Raises InvalidMessage."""
    try:
        made: Any = run_user_code(dialect.write, payload, id)
    except InvalidMessage:
        raise
    except Exception as error:
        raise InvalidMessage(
            f"{type(dialect).__name__}.write failed with {kind_and_place(error)[0]}; make it raise"
            " InvalidMessage for what it can't write",
            "payload",
        ) from error
    if not isinstance(made, bytes):
        raise InvalidMessage(
            f"{type(dialect).__name__}.write returned {type(made).__name__}; make it return bytes", "payload"
        )
    return made


def read_answer(dialect: Dialect, payload: bytes) -> Reading:
    """Read an answer. Raises InvalidMessage if it can't be understood, whatever the dialect raised or
    returned: the bytes are a device's, and may be anything."""
    try:
        reading: Any = run_user_code(dialect.read, payload)
    except InvalidMessage:
        raise
    except Exception as error:
        raise InvalidMessage(
            f"{type(dialect).__name__}.read failed with {kind_and_place(error)[0]}; make it raise"
            " InvalidMessage for what it can't read",
            "payload",
        ) from error
    told = reading.id if isinstance(reading, Reading) else reading
    if not (isinstance(reading, Reading) and isinstance(told, str)):
        raise InvalidMessage(
            f"{type(dialect).__name__}.read returned {type(told).__name__}; make it return a Reading with the"
            " id as text",
            "payload",
        )
    return reading


class PlainDialect:
    """Payloads are anything and stay as they are: for devices that bring ids back beside them. Every answer
    is a success."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        return payload

    def read(self, payload: bytes) -> Reading:
        return Reading("")


class JsonDialect:
    """Payloads are JSON objects with the id as text in one field, and may tell success in another.

    Args:
        field: the id's, in commands and answers.
        result_field: where an answer tells how it went; empty if nowhere: every answer is a success.
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
            told = msgspec.json.decode(fields.get(self._field, b'""'))
            result = msgspec.json.decode(fields.get(self._result_field, b"null"))
        except UNREADABLE:
            raise InvalidMessage("the answer is not a JSON object", "payload") from None
        if isinstance(told, bool) or not isinstance(told, str | int):
            raise InvalidMessage(f"the answer's {self._field!r} is neither text nor a number", self._field)
        ok = not self._result_field or (isinstance(result, str | int) and result in self._success)
        return Reading(str(told), ok)
