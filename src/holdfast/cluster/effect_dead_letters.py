"""Dead letters of effects that were refused and of timers that were skipped."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from holdfast.common.acts import HOPS, Effect
from holdfast.common.progress import chunks
from holdfast.common.traceparent import TRACEPARENT
from holdfast.ports.dead_letters import batches
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.target import OutgoingEffect

EFFECT, TARGET, TARGET_KEY = "effect", "target", "target_key"
"""The attributes of a dead letter: the effect's id, target and key. A timer's letter has no target."""

EFFECT_ID = re.compile("[a-z0-9]{32}")

AGAIN = ".again"
"""The suffix of a dead letter's id while its effect is sent again."""


def dead_letter_of(effect: OutgoingEffect, stream: str, at: float) -> DeadLetter:
    """Return the dead letter of an effect, or of a timer, which has no target."""
    sent_to = {TARGET: effect.target, TARGET_KEY: effect.key, HOPS: str(effect.hops)} if effect.target else {}
    traced = {TRACEPARENT: effect.traceparent} if effect.traceparent else {}
    return DeadLetter(
        f"{effect.sender}:{effect.id}",
        effect.body,
        effect.refused,
        {EFFECT: effect.id, **sent_to, **traced},
        stream=stream,
        key=effect.sender.partition("/")[2],
        seq=effect.cause,
        at=at,
    )


def effect_again(letter: DeadLetter, at: float) -> Effect:
    """Return the effect of a letter, with the same id, as if it were sent at ``at``."""
    known = letter.attributes
    return Effect(
        0,
        0,
        known[EFFECT],
        known[TARGET],
        known[TARGET_KEY],
        letter.body,
        letter.seq,
        at,
        hops=int(known[HOPS]),
        traceparent=known.get(TRACEPARENT, ""),
    )


async def guard(queue: Queue, letters: Sequence[DeadLetter]) -> list[str]:
    """Give the letters of effects that will be sent again another id, and return the new ids. Until these are
    purged, no effect is lost if this process ends, and an effect that is refused again gets a letter of its
    own."""
    guards = [
        letter if letter.id.endswith(AGAIN) else msgspec.structs.replace(letter, id=letter.id + AGAIN)
        for letter in letters
    ]
    plain = [letter.id for letter in letters if not letter.id.endswith(AGAIN)]
    for some in chunks(guards, queue.max_batch):
        await queue.bury([letter for letter in some if letter not in letters])
    for ids in batches(queue, plain):
        await queue.purge(ids)
    return list(dict.fromkeys(letter.id for letter in guards))


def is_of_effect(letter: DeadLetter) -> bool:
    """Return whether a letter is of an effect or a timer. The sender of a message may write any attributes,
    but only the owner writes the id."""
    effect_id = letter.attributes.get(EFFECT, "")
    own_id = f"{letter.stream}/{letter.key}:{effect_id}"
    return bool(EFFECT_ID.fullmatch(effect_id)) and letter.id.removesuffix(AGAIN) == own_id
