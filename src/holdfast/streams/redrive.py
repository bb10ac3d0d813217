"""Sends dead letters of a stream again.

The letter of a message goes to its queue again. That of an effect that was refused goes to its target, with
the same id: it becomes a pending effect of its stream again, which the owner hands over like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.cluster.effect_dead_letters import AGAIN, EFFECT_ID, TARGET, effect_again, guard, is_of_effect
from holdfast.common.progress import chunks
from holdfast.errors import HoldfastError, OperationRefused, Retry
from holdfast.ports.dead_letters import PAGE, batches, dead_letters
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.ports.state import StateStore
from holdfast.streams import operations


async def redrive(
    state: StateStore,
    queue: Queue,
    ids: Sequence[str],
    notify: Callable[[str], Awaitable[object]],
    failed: Callable[[str, HoldfastError], None],
) -> int:
    """Send dead letters of one stream again: messages to its queue, effects to their targets. ``notify`` is
    called with the full key of each stream that has effects to hand over again, and ``failed`` with the id of
    each letter that stays, such as a timer's. Returns how many letters were sent."""
    asked, found = {*ids}, list[DeadLetter]()
    keys = sorted({_plain_key(id_) for id_ in ids if _may_be_of_effect(id_)})
    for key in [None] if keys and queue.hides_dead_letters else keys:
        found += [each async for each in dead_letters(queue, key) if each.id in asked and is_of_effect(each)]
    known = {letter.id for letter in found}
    sent = await queue.redrive([id_ for id_ in ids if id_ not in known])
    changed: dict[str, None] = {}
    in_time = sorted(found, key=lambda letter: letter.at)
    # Where each call reads all dead letters, many effects share the calls.
    for some in chunks(in_time, PAGE if queue.hides_dead_letters else 1):
        try:
            count, is_away = await _resend(state, queue, some, changed, failed)
        except HoldfastError as error:
            failed(some[0].id, error)
            count, is_away = 0, error.retry is not Retry.NEVER
        sent += count
        if is_away:
            break  # for the others too
    for key in changed:
        try:
            await notify(key)
        except HoldfastError as error:
            failed(key, error)
    return sent


async def _resend(
    state: StateStore,
    queue: Queue,
    letters: Sequence[DeadLetter],
    changed: dict[str, None],
    failed: Callable[[str, HoldfastError], None],
) -> tuple[int, bool]:
    """Make the effects of these letters pending again, and add the keys of their streams to ``changed``.
    Returns the number of these effects, and whether a service can't be reached."""
    fit, is_away = list[DeadLetter](), False
    for letter in letters:
        try:
            await _check(state, letter)
            fit.append(letter)
        except OperationRefused as error:
            failed(letter.id, error)
    await guard(queue, fit)
    over: dict[str, None] = {}  # one that is redriven twice has one id at its target
    for letter in fit:
        key = _full_key(letter)
        try:
            await operations.add_effect(state, key, effect_again(letter, await state.now(key)))
        except HoldfastError as error:
            failed(letter.id, error)
            if is_away := error.retry is not Retry.NEVER:
                break
        else:
            changed[key] = over[letter.id.removesuffix(AGAIN) + AGAIN] = None
    return sum([await queue.purge(ids) for ids in batches(queue, list(over))]), is_away


async def _check(state: StateStore, letter: DeadLetter) -> None:
    """Raise OperationRefused for a letter that holds nothing to hand over."""
    if TARGET not in letter.attributes:
        raise OperationRefused(
            "it is of a timer, so it is no message that a queue could take; purge it, and have the next"
            " message of the stream set the timer"
        )
    if await state.peek(_full_key(letter)) is None:
        raise OperationRefused(f"no stream {_full_key(letter)!r} in the state store, so it stays")


def _full_key(letter: DeadLetter) -> str:
    return f"{letter.stream}/{letter.key}"


def _may_be_of_effect(letter_id: str) -> bool:
    return bool(EFFECT_ID.fullmatch(letter_id.rpartition(":")[2].removesuffix(AGAIN)))


def _plain_key(letter_id: str) -> str:
    return letter_id.partition("/")[2].rpartition(":")[0]
