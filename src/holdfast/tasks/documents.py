"""Reads documents of the registry as records, and changes them although others write too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, Registry

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

CONFLICTS_MAX = 20
"""The most repeats of a write after another process wrote first."""

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
            f"the document {document.name} in the registry can't be read ({error}); the next change"
            " replaces it"
        ) from error


def rewritten(document: Document | None, before: RecordT, after: RecordT) -> bytes:
    """Return ``after`` as JSON, to be written in place of a document that was read as ``before``. Fields that
    a newer version has added are kept."""
    if document is None:
        return msgspec.json.encode(after)
    found = msgspec.json.decode(document.body)
    return msgspec.json.encode(_kept(found, msgspec.to_builtins(before), msgspec.to_builtins(after)))


def _kept(found: Any, known: Any, after: Any) -> Any:
    """Return ``after`` with what is in ``found`` and not in ``known``, at every depth."""
    if not (isinstance(found, dict) and isinstance(known, dict) and isinstance(after, dict)):
        return after
    unknown = {name: value for name, value in found.items() if name not in known}
    return unknown | {name: _kept(found.get(name), known.get(name), value) for name, value in after.items()}


async def change(
    registry: Registry, clock: Clock, name: str, kind: type[RecordT], how: Callable[[RecordT], RecordT]
) -> RecordT:
    """Change the record in the document ``name``, and return the new record. ``how`` may be called more than
    once, and its change may be applied more than once. A document that can't be read counts as empty. Raises
    what the registry raises."""
    for _ in range(CONFLICTS_MAX):
        document = await registry.get(name)
        version = document.version if document else 0
        try:
            before = record_in(document, kind)
        except InvalidMessage:
            before, document = kind(), None
        after = how(before)
        if after == before:
            return before
        try:
            if await registry.put(name, rewritten(document, before, after), version) is not None:
                return after
        except OutcomeUnknown:
            pass  # read again: the change may have been made
        await clock.sleep(CONFLICT_S * clock.random())
    raise Unavailable(f"the registry's document {name}: {CONFLICTS_MAX} others wrote first")
