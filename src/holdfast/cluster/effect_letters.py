"""Dead letters of effects that were refused and of timers that were skipped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.common.acts import HOPS, Effect
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.target import OutgoingEffect

EFFECT, TARGET, TARGET_KEY = "effect", "target", "target_key"
"""The attributes of a letter: the effect's id, and where it was to go. A letter of a timer has no target."""

EFFECT_ID = re.compile("[a-z0-9]{32}")


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


def effect_again(letter: DeadLetter, at: float) -> Effect:
    """Return the effect of a letter, with the same id, as if it were sent at ``at``."""
    said = letter.attributes
    return Effect(
        0,
        0,
        said[EFFECT],
        said[TARGET],
        said[TARGET_KEY],
        letter.body,
        letter.seq,
        at,
        hops=int(said[HOPS]),
    )


async def restore(queue: Queue, letters: Sequence[DeadLetter], pending: Sequence[Effect]) -> None:
    """Bury letters of effects again that were just purged, but for those that are pending: they may have been
    refused once more, before that."""
    waiting = {effect.id for effect in pending if not effect.refused}
    await queue.bury([letter for letter in letters if letter.attributes[EFFECT] not in waiting])


def is_of_effect(letter: DeadLetter) -> bool:
    """Return True if a letter is of an effect or a timer. Of a message, the sender has written the
    attributes, and may have written these; but the owner has written the id."""
    effect_id = letter.attributes.get(EFFECT, "")
    return bool(EFFECT_ID.fullmatch(effect_id)) and letter.id == f"{letter.stream}/{letter.key}:{effect_id}"
