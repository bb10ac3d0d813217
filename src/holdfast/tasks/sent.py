"""A task that was sent, as ``send`` of its type returns it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.common.codec import decoder, encode
from holdfast.errors import ConfigError, TaskFailed

if TYPE_CHECKING:
    from holdfast.rules.tasks.task import Task
    from holdfast.tasks.outcome import Outcome

R = TypeVar("R")


class OutcomeClient(Protocol):
    """The part of a :class:`holdfast.Client` that reads outcomes."""

    def wait(self, task_id: str, timeout_s: float | None = None) -> Outcome: ...
    async def aoutcome(self, task_id: str, timeout_s: float | None = None) -> Outcome: ...
    def cancel(self, task_id: str, reason: str = ...) -> Task | None: ...


class SentTask(str, Generic[R]):
    """A task that was sent. It is its task id, a text, and reads the outcome with the app's client. R is the
    type that the handler returns.

    A copy, or one that was pickled, is the text alone.
    """

    __slots__ = ("_client", "_read")

    _client: Callable[[], OutcomeClient]
    _read: Callable[[Any], Any]

    def __new__(
        cls, task_id: str, client: Callable[[], OutcomeClient], read: Callable[[Any], Any]
    ) -> SentTask[R]:
        """Make one of a task id, the function that returns the client, and the one that converts results."""
        made = super().__new__(cls, task_id)
        made._client, made._read = client, read
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def id(self) -> str:
        """The task id."""
        return str(self)

    def outcome(self, timeout_s: float | None = None) -> Outcome[R]:
        """Wait until the task has ended, and return its outcome, with the value as the handler's return type.
        Raises TimeoutError after ``timeout_s``, and InvalidMessage for a value that doesn't fit the type."""
        return self._typed(self._client().wait(self.id, timeout_s))

    async def aoutcome(self, timeout_s: float | None = None) -> Outcome[R]:
        """Like ``outcome``, for programs with an event loop."""
        return self._typed(await self._client().aoutcome(self.id, timeout_s))

    def result(self, timeout_s: float | None = None) -> R:
        """Wait until the task has ended, and return what its handler returned. Raises TaskFailed if it didn't
        succeed, and as ``outcome``."""
        return _value(self.outcome(timeout_s))

    async def aresult(self, timeout_s: float | None = None) -> R:
        """Like ``result``, for programs with an event loop."""
        return _value(await self.aoutcome(timeout_s))

    def cancel(self, reason: str = "cancelled by its producer") -> bool:
        """Cancel the task: a waiting one ends at once, a running one within seconds. Return False for a task
        that isn't known any longer."""
        return self._client().cancel(self.id, reason) is not None

    def _typed(self, outcome: Outcome) -> Outcome[R]:
        if outcome.value is None or not outcome.ok:
            return outcome
        return msgspec.structs.replace(outcome, value=self._read(outcome.value))


def result_reader(handler: Any) -> Callable[[Any], Any]:
    """Return the function that converts a JSON value to the type that a handler returns. A type that JSON
    can't hold, or that isn't known, leaves values as they are."""
    try:
        returned = typing.get_type_hints(getattr(handler, "run", handler)).get("return")
        if returned in (None, Any, type(None)):
            return lambda value: value
        read = decoder(returned)
    except (ConfigError, NameError, TypeError):
        return lambda value: value
    return lambda value: read(encode(value))


def _value(outcome: Outcome[R]) -> R:
    if not outcome.ok:
        why = outcome.detail or "without a reason"
        raise TaskFailed(f"task {outcome.task_id!r} ended as {outcome.state.value}: {why}", outcome)
    return outcome.value
