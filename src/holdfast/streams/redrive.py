"""Sends dead letters of a stream again.

The letter of a message goes to its queue again. That of an effect that was refused goes to its target, with
the same id: it becomes a pending effect of its stream again, which the owner hands over like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cluster.effect_letters import EFFECT, EFFECT_ID, TARGET, TARGET_KEY, is_of_effect
from holdfast.common.acts import HOPS, Effect
from holdfast.errors import OperationRefused
from holdfast.ports.dead_letters import dead_letters
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.state import StateStore
from holdfast.streams import operations


async def redrive(state: StateStore, queue: Queue, ids: Sequence[str]) -> int:
    """Send dead letters of one stream again: those of messages to its queue, those of effects to their
    targets. Returns how many there were. Raises OperationRefused for a timer's, which is no message."""
    found: list[DeadLetter] = []
    for key in sorted({_plain_key(id_) for id_ in ids if EFFECT_ID.fullmatch(id_.rpartition(":")[2])}):
        found += [each async for each in dead_letters(queue, key) if each.id in ids and is_of_effect(each)]
    known = {letter.id for letter in found}
    sent = await queue.redrive([id_ for id_ in ids if id_ not in known])
    for letter in sorted(found, key=lambda letter: letter.at):
        if TARGET in letter.attributes:
            await _send_again(state, letter)
            sent += await queue.purge([letter.id])  # one that is redriven twice has one id at its target
    for letter in found:
        if TARGET not in letter.attributes:
            raise OperationRefused(
                f"{letter.id} is of a timer, so it is no message that a queue could take; purge it, and have"
                " the next message of the stream set the timer"
            )
    return sent


async def _send_again(state: StateStore, letter: DeadLetter) -> None:
    key, said = f"{letter.stream}/{letter.key}", letter.attributes
    effect = Effect(
        0,
        0,
        said[EFFECT],
        said[TARGET],
        said[TARGET_KEY],
        letter.body,
        letter.seq,
        await state.now(key),
        hops=int(said[HOPS]),
    )
    await operations.add_effect(state, key, effect)


def _plain_key(letter_id: str) -> str:
    return letter_id.partition("/")[2].rpartition(":")[0]
