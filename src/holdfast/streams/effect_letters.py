"""Dead letters of effects that were refused and of timers that were skipped.

The letter of a message goes to its queue again. That of an effect goes to the effect's target, with the same
id: it becomes a pending effect of its stream again, which the stream's owner hands over like any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.errors import OperationRefused
from holdfast.ports.dead_letters import dead_letters
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.state import StateStore
from holdfast.ports.target import OutgoingEffect
from holdfast.streams import operations
from holdfast.streams.rules.ledger import Effect
from holdfast.streams.rules.owner import HOPS

EFFECT, TARGET, TARGET_KEY = "effect", "target", "target_key"
"""The attributes of a letter: the effect's id, and where it was to go. A letter of a timer has no target."""

_ID = re.compile("[a-z0-9]{32}")


def letter_of(effect: OutgoingEffect, stream: str, at: float) -> DeadLetter:
    """Return the dead letter of an effect, or of a timer, which has no target."""
    sent_to = {TARGET: effect.target, TARGET_KEY: effect.key, HOPS: str(effect.hops)} if effect.target else {}
    return DeadLetter(
        f"{effect.sender}:{effect.id}",
        effect.body,
        effect.refused,
        {EFFECT: effect.id, **sent_to},
        stream=stream,
        key=effect.sender.partition("/")[2],
        seq=effect.cause,
        at=at,
    )


async def redrive(state: StateStore, queue: Queue, ids: Sequence[str]) -> int:
    """Send dead letters of one stream again: those of messages to its queue, those of effects to their
    targets. Returns how many there were. Raises OperationRefused for a timer's, which is no message."""
    found: list[DeadLetter] = []
    for key in sorted({_plain_key(id_) for id_ in ids if _ID.fullmatch(id_.rpartition(":")[2])}):
        found += [each async for each in dead_letters(queue, key) if each.id in ids and _is_of_effect(each)]
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


def _is_of_effect(letter: DeadLetter) -> bool:
    """Return True if a letter is of an effect or a timer. Of a message, the sender has written the
    attributes, and may have written these; but the owner has written the id."""
    effect_id = letter.attributes.get(EFFECT, "")
    return bool(_ID.fullmatch(effect_id)) and letter.id == f"{letter.stream}/{letter.key}:{effect_id}"


def _plain_key(letter_id: str) -> str:
    return letter_id.partition("/")[2].rpartition(":")[0]
