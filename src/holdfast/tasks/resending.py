"""Hands over effects of tasks again that their targets have refused, from their dead letters.

The effects are put into the task's record again, with their ids, and a message has a node read the record. No
attempt begins: the task has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.cluster.effect_dead_letters import EFFECT, effect_again, guard, is_of_effect
from holdfast.common.acts import Effect, decode_effects, encode_effects
from holdfast.ports.dead_letters import batches
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import ResendEffects, Task
from holdfast.tasks.body import Body
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.wire import Envelope, SentTask, encode_task

NO_GROUP = "-"
"""Stands for the group of a task that has none. Without any, a node would look for it in the body."""


def divided(task_type: str, letters: Iterable[DeadLetter]) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Return the dead letters of tasks of one type, and of effects that such tasks have sent."""
    of_tasks, of_effects = list[DeadLetter](), list[DeadLetter]()
    for letter in letters:
        of_effect = is_of_effect(msgspec.structs.replace(letter, stream=task_type))
        (of_effects if of_effect else of_tasks).append(letter)
    return of_tasks, of_effects


async def resend_effects(
    app: str, store: TaskStore, queue: Queue, letters: Sequence[DeadLetter], log: Any
) -> int:
    """Hand over the effects of these dead letters again, and return their number. The others stay dead
    letters: their tasks have no record any more, or have other pending effects."""
    by_task: dict[str, list[DeadLetter]] = {}
    for letter in sorted(letters, key=lambda letter: letter.at):
        by_task.setdefault(letter.key, []).append(letter)
    count = 0
    for task_id, some in by_task.items():
        record = await store.get(task_id)
        if reason := _why_not(record, some):
            for letter in some:
                log.warning("cannot resend dead letter", letter=letter.id, error=reason)
            continue
        guards = await guard(queue, some)
        now = await store.now()
        assert record is not None
        marked = _marked(record)
        # A call that was cut off leaves two letters of an effect.
        again = {letter.attributes[EFFECT]: effect_again(letter, now) for letter in some}
        effects = {effect.id: effect for effect in marked} | again
        change = ResendEffects(
            task_id, encode_effects(list(effects.values())), record.effects if marked else b""
        )
        [task] = await store.resend_effects([change])
        if task is None or not _are_pending(task, some):
            log.warning("cannot resend effects yet", task_id=task_id, letters=guards)
            continue
        await queue.send([_to_look(app, task)])
        for ids in batches(queue, guards):
            await queue.purge(ids)  # an effect that is sent twice has one id
        count += len(some)
    return count


def _marked(task: Task) -> Sequence[Effect]:
    """Return the pending effects of a task if all of them were refused. A node has sent their dead letters,
    or is about to, and will note that. Its note must not count for the effects that are sent again."""
    pending = decode_effects(task.effects)
    return pending if all(effect.refused for effect in pending) else ()


def _are_pending(task: Task, letters: Sequence[DeadLetter]) -> bool:
    """Return True if the record of a task has the effects of these letters: from this call, or from one that
    was cut off."""
    pending = {effect.id for effect in decode_effects(task.effects) if not effect.refused}
    return pending >= {letter.attributes[EFFECT] for letter in letters}


def _to_look(app: str, task: Task) -> Outgoing:
    """Return a message that has a node look at the record of a task that has ended."""
    envelope = Envelope(app=app, task_id=task.task_id, task_type=task.type, group=task.group or NO_GROUP)
    # As a stand-in that came too late, it notifies no producer if the effects are handed over by then.
    marks = {"id": task.task_id, STAND_IN: str(task.epoch - 1)}
    return Outgoing(encode_task(SentTask(envelope, Body(b"null"))), marks, key=task.task_id)


def _why_not(task: Task | None, letters: Sequence[DeadLetter]) -> str:
    """Return why the effects of a task can't be handed over again; empty if they can."""
    if task is None:
        return "it is an effect of a task that has no record any more"
    if task.effects and not _marked(task) and not _are_pending(task, letters):
        return "other effects of its task are pending; send it again once they are taken"
    if not task.briefed:
        return "the producer of its task has not got the outcome yet; send it again later"
    return ""
