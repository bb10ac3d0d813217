"""Rows of the outbox's tables as records. Another program may have written anything into a row."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, get_args, get_type_hints

from holdfast.devices.rules.device_queue import TRIES_MAX, CommandState, Head, HeadPhase, StoredCommand
from holdfast.devices.rules.device_turn import Arrival, Cancel, Rollout
from holdfast.devices.services.sqlalchemy.statements import COMMAND_FIELDS
from holdfast.extend import get_logger

Row = Sequence[Any]
Kinds = Sequence[tuple[type, ...]]
"""The types that the columns of a row may have, in the database's terms."""

NAMED_MAX, NAMED_CHARS_MAX = 1000, 60
"""Spoilt rows that are remembered, and characters of a value that are logged."""

STATES = {state.value: state for state in CommandState}
PHASES = {phase.value: phase for phase in HeadPhase}
STATE, TRIES, SPENT = (COMMAND_FIELDS.index(name) for name in ("state", "tries", "spent"))

log = get_logger(__name__)


def kinds(record: type, names: Iterable[str] = ()) -> Kinds:
    """Return the types that columns of a record's fields may have: a whole number is a time too, and SQLite
    has no type for true and false."""
    hints = get_type_hints(record)
    return [
        tuple(kind for each in get_args(hints[name]) or (hints[name],) for kind in _stored_kinds(each))
        for name in names or hints
    ]


def _stored_kinds(kind: type) -> tuple[type, ...]:
    if kind is float:
        return float, int
    return (str if issubclass(kind, enum.Enum) else int if kind is bool else kind,)


COMMAND_KINDS = kinds(StoredCommand, COMMAND_FIELDS)
HEAD_KINDS = kinds(Head)
ROLLOUT_KINDS, ARRIVAL_KINDS = kinds(Rollout), kinds(Arrival)
CANCEL_KINDS = kinds(Cancel)
TEXT: Kinds = [(str,)]
SHARD_KINDS: Kinds = [(int,), (int,)]
PAUSE_KINDS: Kinds = [(str,), (float, int)]
SEEN_KINDS: Kinds = [(str,), (float, int, NoneType)]


def to_command(row: Row) -> StoredCommand:
    """Return a row of ``COLUMNS`` as a record. Invalid values are left out and named in ``spoilt``."""
    spoilt = ""
    if not fits(row, COMMAND_KINDS) or row[STATE] not in STATES or max(row[TRIES], row[SPENT]) >= TRIES_MAX:
        row, spoilt = _without_spoilt(row)
    values = [*row, spoilt]
    values[STATE] = STATES[row[STATE]]
    return StoredCommand(*values)


def to_head(row: Row) -> Head:
    """Return a valid row of a head as a record."""
    device, lane, shard, phase, command, due = row
    return Head(device, lane, shard, PHASES[phase], command, due)


def to_rollout(row: Row) -> Rollout:
    """Return a valid row of a rollout as a record."""
    number, name, total, abort_share, done, failed, aborted, created_at, rate = row
    return Rollout(number, name, total, abort_share, done, failed, bool(aborted), created_at, rate)


def _without_spoilt(row: Row) -> tuple[Row, str]:
    """Return a row with harmless values in place of invalid ones, and a text that names these."""
    valid: list[Any] = []
    spoilt: list[str] = []
    for name, value, accepted in zip(COMMAND_FIELDS, row, COMMAND_KINDS, strict=True):
        fit = isinstance(value, accepted)
        if fit and name == "state":
            fit = value in STATES
        elif fit and name in ("tries", "spent"):
            fit = value < TRIES_MAX
        harmless = None if NoneType in accepted else accepted[0]()
        valid.append(value if fit else CommandState.FAILED.value if name == "state" else harmless)
        if not fit:
            spoilt.append(f"{name} {str(value)[:40]!r}")
    return valid, f"command {row[0]}: its row has values that Holdfast never writes: {', '.join(spoilt)}"


def fits(row: Row, accepted: Kinds) -> bool:
    """Return whether the values of a row have the types of its columns. SQLite keeps any type in any
    column."""
    return all(map(isinstance, row, accepted))


def has_phase(row: Row) -> bool:
    """Return whether the phase of a head's row exists."""
    return row[3] in PHASES


class RowFilter:
    """Leaves out rows that another program spoilt, and logs each of them once. Threads may share it."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def valid(
        self,
        table: str,
        rows: Iterable[Row],
        accepted: Kinds,
        and_is: Callable[[Row], bool] = lambda _: True,
    ) -> list[Row]:
        """Return the rows whose first columns have the types ``accepted``, and for which ``and_is`` holds."""
        found: list[Row] = []
        for row in rows:
            if fits(row[: len(accepted)], accepted) and and_is(row):
                found.append(row)
            else:
                self._name(table, row[: len(accepted)])
        return found

    def _name(self, table: str, row: Row) -> None:
        values = ", ".join(repr(value)[:NAMED_CHARS_MAX] for value in row)
        if (name := f"{table} ({values})") in self._named:
            return
        if len(self._named) >= NAMED_MAX:
            self._named.clear()
        self._named.add(name)
        log.warning("invalid outbox row skipped", table=f"holdfast_outbox_{table}", row=values)
