"""Reads documents of the registry as records, and changes them although others write too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, Registry

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

CONFLICTS_MAX = 20
"""How many times a write is repeated after somebody else wrote first."""

CONFLICT_S = 0.2
"""The longest pause between such writes."""


def record_in(document: Document | None, kind: type[RecordT]) -> RecordT:
    """Return the record that a document holds as JSON; an empty record if there is no document. Raises
    InvalidMessage if it holds something else."""
    if document is None:
        return kind()
    try:
        return msgspec.json.decode(document.body, type=kind)
    except UNREADABLE as error:
        raise InvalidMessage(
            f"the document {document.name} in the registry can't be read ({error}); whoever changes it next"
            " writes it anew"
        ) from error


async def change(
    registry: Registry, clock: Clock, name: str, kind: type[RecordT], how: Callable[[RecordT], RecordT]
) -> RecordT:
    """Change the record in the document ``name``, and return the new record. ``how`` may be called more than
    once, and its change may be applied more than once. A document that can't be read counts as empty. Raises
    what the registry raises."""
    for _ in range(CONFLICTS_MAX):
        document = await registry.get(name)
        try:
            before = record_in(document, kind)
        except InvalidMessage:
            before = kind()
        after = how(before)
        if after == before:
            return before
        try:
            version = document.version if document else 0
            if await registry.put(name, msgspec.json.encode(after), version) is not None:
                return after
        except OutcomeUnknown:
            pass  # read again: the change may have been made
        await clock.sleep(CONFLICT_S * clock.random())
    raise Unavailable(f"the registry's document {name}: {CONFLICTS_MAX} others wrote first")
