"""Has effects of tasks handed over again that their targets have refused, from their dead letters.

A node hands over what stands in a task's record. So the effects are put there again, with their ids, and a
message for the task has a node look at its record. No attempt begins: the task has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.cluster.effect_letters import EFFECT, effect_again, is_of_effect, restore
from holdfast.common.acts import decode_effects, encode_effects
from holdfast.common.progress import chunks
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.tasks.body import Body
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.rules.task import ResendEffects, Task
from holdfast.tasks.wire import Envelope, SentTask, encode_task

NO_GROUP = "-"
"""Stands for the group of a task that has none. Without any, a node would look for it in the body."""


LOOK_AFTER_S = 2.0
"""How long the message of a task is hidden. Its dead letters are removed meanwhile."""


def divided(task_type: str, letters: Iterable[DeadLetter]) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Return the dead letters of tasks of one type, and those of effects that such tasks have sent."""
    of_tasks, of_effects = list[DeadLetter](), list[DeadLetter]()
    for letter in letters:
        of_effect = is_of_effect(msgspec.structs.replace(letter, stream=task_type))
        (of_effects if of_effect else of_tasks).append(letter)
    return of_tasks, of_effects


async def resend_effects(
    app: str, store: TaskStore, queue: Queue, letters: Sequence[DeadLetter], log: Any
) -> int:
    """Have the effects of these dead letters handed over again; returns how many. The others stay dead
    letters: their tasks have no record any more, or have other effects pending."""
    by_task: dict[str, list[DeadLetter]] = {}
    for letter in sorted(letters, key=lambda letter: letter.at):
        by_task.setdefault(letter.key, []).append(letter)
    count = 0
    for trace, some in by_task.items():
        now = await store.now()
        effects = tuple(effect_again(letter, now) for letter in some)
        [known] = await store.resend_effects([ResendEffects(trace, encode_effects(effects))])
        pending = {effect.id for effect in decode_effects(known.effects)} if known is not None else set[str]()
        if known is not None and pending:  # they may have been put there by a call that was cut off
            await queue.send([_to_look(app, known, min(LOOK_AFTER_S, queue.delay_max_s))])
        added = [letter for letter in some if letter.attributes[EFFECT] in pending]
        for few in chunks(added, queue.max_batch):
            await queue.purge([letter.id for letter in few])  # an effect that is sent twice has one id
            task = await store.get(trace)
            await restore(queue, few, decode_effects(task.effects) if task is not None else ())
        count += len(added)
        for letter in some:
            if letter not in added:
                log.warning(
                    "a dead letter can't be sent again",
                    letter=letter.id,
                    error=_why_not(known, bool(pending)),
                )
    return count


def _to_look(app: str, task: Task, delay_s: float) -> Outgoing:
    """Return a message that has a node look at the record of a task that has ended."""
    envelope = Envelope(app=app, trace_id=task.trace, task_type=task.type, group=task.group or NO_GROUP)
    # As a stand-in that came too late, it tells the producer nothing if the effects are handed over by then.
    marks = {"id": task.trace, STAND_IN: str(task.epoch - 1)}
    return Outgoing(encode_task(SentTask(envelope, Body(b"null"))), marks, delay_s, task.trace)


def _why_not(task: Task | None, others: bool) -> str:
    if task is None:
        return "it is an effect of a task that has no record any more"
    if others:
        return "other effects of its task are pending; send it again once they are taken"
    return "the producer of its task is yet to be told the outcome; send it again later"
