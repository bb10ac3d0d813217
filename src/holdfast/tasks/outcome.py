"""The outcome of a task, as its producer gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.common.codec import decode_plain
from holdfast.common.stored import StoredValue
from holdfast.rules.tasks.task import State, Task

if TYPE_CHECKING:
    # With a default, which typing has from Python 3.13 on.
    from typing_extensions import TypeVar as DefaultTypeVar

    R = DefaultTypeVar("R", default=Any)
else:
    R = TypeVar("R")

RESULT_BYTES_MAX = 64 << 10
"""The largest result that travels in an outcome event. Some queues take at most 256 KiB in a call."""

SAME = ("task_id", "state", "detail", "attempts", "started_at", "ended_at", "node", "progress", "epoch")
"""The fields of an outcome that the record of its task has too."""

_decode_stored = msgspec.json.Decoder(StoredValue).decode


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The outcome of a task.

    ``state`` is succeed, failed, timeout or duplicated. ``value`` is the handler's result or None: a JSON
    value, or of type R if a :class:`holdfast.SentTask` returned the outcome. ``detail`` says why the task did
    not succeed. Times are wall times in seconds, 0 if unknown. ``progress`` goes from 0 to 1. ``epoch`` is
    the epoch of the attempt that ended the task. ``stored`` says where a large value is; ``wait`` and
    ``briefs`` read it."""

    task_id: str = msgspec.field(name="trace_id")
    state: State
    task_type: str = ""
    app: str = ""
    value: R = None  # type: ignore[assignment] # a task without a result
    detail: str = ""
    attempts: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    node: str = ""
    progress: float = 0.0
    epoch: int = 0
    stored: StoredValue | None = None

    @property
    def trace_id(self) -> str:
        """The task's id, by the name that this had in 0.2.0."""
        return self.task_id

    @property
    def ok(self) -> bool:
        """True if the task succeeded."""
        return self.state is State.SUCCEEDED


def outcome_of(app: str, task: Task) -> Outcome:
    """Return the outcome of a task that has ended, for its producer."""
    same = {name: getattr(task, name) for name in SAME}
    return Outcome(task_type=task.type, app=app, value=value_of(task), stored=stored_of(task), **same)


def stored_of(task: Task) -> StoredValue | None:
    """Return where the value of a task is that is too large for its record."""
    return _decode_stored(task.stored) if task.stored else None


def value_of(task: Task) -> Any:
    """Return what the handler returned; None for nothing. If it can't be read as JSON, return it as text."""
    try:
        return decode_plain(task.result) if task.result else None
    except ValueError:
        return task.result.decode(errors="replace")
