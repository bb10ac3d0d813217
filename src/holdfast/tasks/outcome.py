"""How a task ended, as its producer reads it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.task import State


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended.

    ``state`` is succeed, failed, timeout or duplicated. ``value`` is what the handler returned (what JSON
    can hold; None for nothing), ``detail`` says why the task did not succeed. Times are wall times in
    seconds, 0 where unknown. ``progress`` goes from 0 to 1. ``epoch`` is that of the attempt that ended
    it.
    """

    trace_id: str
    state: State
    task_type: str = ""
    app: str = ""
    value: Any = None
    detail: str = ""
    attempts: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    node: str = ""
    progress: float = 0.0
    epoch: int = 0

    @property
    def ok(self) -> bool:
        """True if it succeeded."""
        return self.state is State.SUCCEED
