"""The rule for the end of an attempt: what follows for its task."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from holdfast.rules.tasks.task import State, Task

PAUSES_MAX = 1000
"""The most pauses that the attempts of one task may ask for. Another request is a failure."""


class How(enum.StrEnum):
    """The way in which an attempt ended."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    DIED = "died"


class Stop(enum.Enum):
    """The reason why an attempt is asked to end. The value is for people."""

    CANCELLED = "its task is cancelled"
    DRAIN = "the node is stopping"
    LAPSED = "its delivery lapsed"
    REISSUE = "its delivery can't be held any longer"
    GRANT_ENDS = "the node couldn't renew its share of the app's maximum"


HANDED_ON = frozenset({Stop.DRAIN, Stop.REISSUE, Stop.GRANT_ENDS})
"""The reasons for which another attempt follows."""


class AttemptEnd(msgspec.Struct, frozen=True):
    """The end of an attempt.

    - ``error`` says in one line why it didn't return; ``detail`` has the traceback, the stacks of a hung
      process or its last output.
    - ``permanent``: no retry can help.
    - ``begun`` is False if the handler never began, because the attempt was cancelled while it waited or the
      pool closed. That doesn't count as a try; the next one may follow after ``rest_s``.
    - ``pause_s``: it RAISED Retry, and asks for another attempt after this pause.
    """

    how: How
    error: str = ""
    detail: str = ""
    permanent: bool = False
    begun: bool = True
    rest_s: float = 0.0
    pause_s: float = 0.0


class NextStep(enum.Enum):
    """The step that follows for a task whose attempt has ended."""

    SUCCEEDED = enum.auto()
    """It succeeds."""
    FAIL = enum.auto()
    """It ends without success."""
    CANCEL = enum.auto()
    """It ends because it was cancelled."""
    RETRY = enum.auto()
    """Another attempt follows after a backoff; this one is spent."""
    PAUSE = enum.auto()
    """Another attempt follows after the pause that this one asked for."""
    RETURN = enum.auto()
    """Another attempt follows, here or elsewhere; this one isn't spent."""
    LAPSE = enum.auto()
    """Another node may have it: nothing but this attempt's end is noted."""


class AttemptVerdict(NamedTuple):
    """The judgement on a task whose attempt has ended. ``state`` is its outcome, if it has one now;
    ``detail`` is kept in its record."""

    step: NextStep
    state: State = State.QUEUED
    detail: str = ""


def judge(end: AttemptEnd, task: Task, tries: int, stop: Stop | None = None) -> AttemptVerdict:
    """Return what follows for a task. ``task`` is its record during the attempt, ``tries`` is how many
    attempts it may have, and ``stop`` is why the attempt was asked to end."""
    if stop is Stop.LAPSED:
        return AttemptVerdict(NextStep.LAPSE)
    handed_on = stop in HANDED_ON and end.how is not How.RETURNED
    may_pause = task.pauses < PAUSES_MAX
    if end.pause_s and may_pause and (handed_on or stop is None):
        return AttemptVerdict(NextStep.PAUSE, detail=end.error)
    if handed_on or not end.begun:
        return AttemptVerdict(NextStep.RETURN)
    if end.how is How.RETURNED:
        return AttemptVerdict(NextStep.SUCCEEDED, State.SUCCEEDED)
    if stop is not None:
        return AttemptVerdict(NextStep.CANCEL, State.FAILED)
    detail = "\n".join(text for text in (end.error, end.detail) if text)
    if end.pause_s and not may_pause:
        detail = f"{end.error}; it has used all its {PAUSES_MAX} pauses"
    if end.permanent or task.attempts >= tries:
        state = State.TIMEOUT if end.how is How.TIMED_OUT else State.FAILED
        return AttemptVerdict(NextStep.FAIL, state, detail)
    return AttemptVerdict(NextStep.RETRY, detail=detail)
