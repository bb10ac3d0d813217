"""The task store in memory: the rules of tasks make every decision, and all are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    AttemptBeat,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    ResendEffects,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
)
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.state import Forgot


class Changed(msgspec.Struct, frozen=True):
    """An attempt to change a task by the port's ``call``. ``before`` stood; ``after`` stands now, or None: it
    was refused."""

    at: float
    call: str
    trace: str
    before: Task | None
    after: Task | None


class MemoryTasks:
    """The tasks of one app, for all nodes and producers.

    Args:
        clock: its time.
        history: where attempts go; share one list between services to have one order of all events.
        queues: those that are kept beside it, by name.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        history: list[Any] | None = None,
        queues: Mapping[str, MemoryQueue] | None = None,
    ) -> None:
        self.history: list[Any] = [] if history is None else history
        self.standing: dict[str, Task] = {}
        self._clock = clock
        self._queues = {} if queues is None else queues
        self._issued: dict[str, int] = {}

    # --- changes

    async def queue(self, tasks: Sequence[Task]) -> list[Task]:
        now = self._clock.wall()
        return [self._change("queue", t.trace, partial(rules.queue, task=t, now=now)) for t in tasks]

    async def delay(self, wishes: Sequence[DelayTask]) -> list[Task]:
        now = self._clock.wall()
        return [self._change("delay", w.trace, partial(rules.delay, wish=w, now=now)) for w in wishes]

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        before = self._clock.wall() + ahead_s
        due = [task for task in self.standing.values() if task.message and task.send_at <= before]
        due.sort(key=lambda task: (task.send_at, task.trace))
        until = before + lease_s
        return [self._change("due", t.trace, partial(rules.hand_out, until=until)) for t in due[:limit]]

    async def messages_sent(self, traces: Sequence[str]) -> None:
        for trace in traces:
            if trace in self.standing:
                self._change("messages_sent", trace, rules.message_sent)

    async def start(self, wishes: Sequence[StartAttempt]) -> list[Task]:
        now = self._clock.wall()
        return [self._change("start", w.trace, partial(rules.start, wish=w, now=now)) for w in wishes]

    async def beat(self, beats: Sequence[AttemptBeat]) -> list[Task | Fenced]:
        now = self._clock.wall()
        return [self._try("beat", b.trace, partial(rules.beat, beat=b, now=now)) for b in beats]

    async def give_back(self, returns: Sequence[ReturnAttempt]) -> list[Task | Fenced]:
        now = self._clock.wall()
        return [self._try("give_back", r.trace, partial(rules.give_back, wish=r, now=now)) for r in returns]

    async def end(self, ends: Sequence[EndAttempt]) -> list[Task | Fenced]:
        now = self._clock.wall()
        return [self._try("end", e.trace, partial(rules.end, end=e, now=now)) for e in ends]

    async def end_and_brief(
        self, ends: Sequence[EndAttempt], queue: str, brief: Callable[[Task], Outgoing]
    ) -> list[Task | Fenced]:
        answers: list[Task | Fenced] = []
        for end in ends:
            try:  # before the outcome is stored, of which there is none if its brief can't be made
                ended = rules.end(self.standing.get(end.trace), end, self._clock.wall())
                message = None if ended.briefed else brief(ended)
            except Fenced:
                message = None
            [answer] = await self.end([end])
            if message is not None and len(message.body) <= self._queues[queue].max_bytes:
                await self._queues[queue].send([message])
                answer = self._change("briefed", end.trace, partial(rules.briefed, epoch=end.epoch))
            answers.append(answer)
        return answers

    async def count(self, wishes: Sequence[CountMember]) -> list[Task]:
        now = self._clock.wall()
        return [self._change("count", w.trace, partial(rules.count, wish=w, now=now)) for w in wishes]

    async def briefed(self, sent: Sequence[tuple[str, int]]) -> None:
        for trace, epoch in sent:
            if trace in self.standing:
                self._change("briefed", trace, partial(rules.briefed, epoch=epoch))

    async def handed_over(self, left: Sequence[EffectsLeft]) -> None:
        for each in left:
            if each.trace in self.standing:
                self._change("handed_over", each.trace, partial(rules.handed_over, left=each))

    async def resend_effects(self, wishes: Sequence[ResendEffects]) -> list[Task | None]:
        now = self._clock.wall()
        return [
            self._change("resend_effects", w.trace, partial(rules.resend_effects, wish=w, now=now))
            if w.trace in self.standing
            else None
            for w in wishes
        ]

    async def cancel(self, trace: str, reason: str) -> Task | None:
        if trace not in self.standing:
            return None
        now = self._clock.wall()
        return self._change("cancel", trace, lambda task: rules.cancel(task, reason, now))

    async def reset(self, traces: Sequence[str]) -> list[Task | None]:
        now = self._clock.wall()
        return [
            self._change("reset", trace, lambda task: rules.reset(task, now))
            if trace in self.standing
            else None
            for trace in traces
        ]

    # --- reading

    async def get(self, trace: str) -> Task | None:
        return self.standing.get(trace)

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the port's
        since: float = 0.0,
        down: bool = False,
    ) -> list[Task]:
        found = [
            task
            for trace, task in sorted(self.standing.items(), reverse=down)
            if ((not after or trace < after) if down else trace > after)
            and state in (None, task.state)
            and type in ("", task.type)
            and task.moved_at >= since
        ]
        return found[:limit]

    async def counts(self) -> dict[tuple[str, State], int]:
        return dict(Counter((task.type, task.state) for task in self.standing.values()))

    async def now(self) -> float:
        return self._clock.wall()

    async def expire(self, before: float) -> int:
        expired = [trace for trace, task in self.standing.items() if rules.expired(task, before)]
        for trace in expired:
            del self.standing[trace]
            self._issued.pop(trace, None)
        return len(expired)

    async def restore(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._change("restore", task.trace, partial(_restored, task=task))

    async def close(self) -> None:
        pass

    def rewind(self, seconds: float) -> None:
        """Forget the last changes, as where a server's replica takes over. No epoch is issued again."""
        now = self._clock.monotonic()
        since = now - seconds
        for event in reversed(self.history):
            if isinstance(event, Forgot) or (isinstance(event, Changed) and event.at < since):
                break
            if not isinstance(event, Changed) or event.after is None:
                continue
            if event.before is None:
                self.standing.pop(event.trace, None)
            else:
                self.standing[event.trace] = event.before
        self.history.append(Forgot(now, since))

    def _try(self, call: str, trace: str, rule: Callable[[Task | None], Task]) -> Task | Fenced:
        try:
            return self._change(call, trace, rule)
        except Fenced as refusal:
            return refusal

    def _change(self, call: str, trace: str, rule: Callable[[Any], Task]) -> Task:
        before, at = self.standing.get(trace), self._clock.monotonic()
        try:
            after = rule(before)
        except Fenced:
            self.history.append(Changed(at, call, trace, before, None))
            raise
        if after.epoch > (before.epoch if before else 0):
            epoch = self._issued[trace] = max(after.epoch, self._issued.get(trace, 0) + 1)
            after = msgspec.structs.replace(after, epoch=epoch)
        self.standing[trace] = after
        self.history.append(Changed(at, call, trace, before, after))
        return after


def _restored(standing: Task | None, task: Task) -> Task:
    return standing or task
