"""The operations on a stream for operators: pause, resume, skip, reset.

Each opens the stream, which fences its owner, and changes the checkpoint in one commit. The owner notices at
its next commit, or at once if it is poked, and opens the stream again from the changed checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from holdfast.common.acts import Effect, RefusedEffect
from holdfast.common.effects import EffectMaker
from holdfast.common.message import TIMER_RUN, Place, Span
from holdfast.common.protocol import Done, StreamChanged
from holdfast.common.redaction import redact
from holdfast.errors import Fenced, HoldfastError, NotKnown, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.dead_letters import batches, dead_letters, in_order
from holdfast.ports.peer import Peer
from holdfast.ports.queue import Queue
from holdfast.ports.state import StateStore
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import COUNT_MAX, Aside, Checkpoint, Commit, RunLog
from holdfast.rules.streams.sequencer import PAST_RUNS_MAX, SKIP_MARK
from holdfast.rules.streams.timers import place_of

PAUSED = "paused"
SKIPPED = "skipped by the operator"
DROPPED = "dropped by the operator"
PARKED_DEAD_LETTER = "parked"
MEMBER = "operator"
TRIES = 5
PAGE = 500
POKE_TIMEOUT_S = 2.0


async def pause(state: StateStore, key: str) -> Checkpoint:
    """Park the stream ``key`` (``stream/key``). Raises OperationRefused."""

    def change(now: Checkpoint) -> Commit:
        # A pause keeps the count of a message that kills nodes, so that the message doesn't look new.
        head = now.started.head if now.started else ""
        return msgspec.structs.replace(unchanged(now), parked=PAUSED, starting=head)

    return await _change(state, key, lambda _: RequestedChange(change, lambda now: now.parked == PAUSED))


async def resume(state: StateStore, queue: Queue, key: str) -> tuple[Checkpoint, int]:
    """Resume a parked stream. Its head gets all its tries again, and its overflow is sent to the queue in
    order. Returns the checkpoint and how many messages were sent. Raises OperationRefused."""

    def change(now: Checkpoint) -> Commit:
        return msgspec.structs.replace(unchanged(now), parked="", due=ledger.due_when_resumed(now))

    checkpoint = await _change(state, key, lambda _: RequestedChange(change, lambda now: not now.parked))
    plain = key.partition("/")[2]
    overflow = [letter async for letter in dead_letters(queue, plain) if letter.kind == PARKED_DEAD_LETTER]
    overflow.sort(key=in_order)
    sent = 0
    for some in batches(queue, overflow):
        sent += await queue.redrive([letter.id for letter in some])
    return checkpoint, sent


async def skip(state: StateStore, key: str, through: int | None = None, run: int | None = None) -> Checkpoint:
    """Skip the head, or every seq of ``run`` up to ``through``. The head is looked up once. Raises
    OperationRefused, and OutcomeUnknown, which names the message."""

    def resolve(standing: Checkpoint) -> RequestedChange:
        place = _skipped_place(standing, through, run)
        named = f"{place.id!r}" if place.id else f"--through {place.seq} --run {place.run}"
        return RequestedChange(
            lambda now: _skipping(now, place, alone=through is None),
            lambda now: _is_skipped(now, place),
            f"to skip {named}",
        )

    return await _change(state, key, resolve)


async def reset(state: StateStore, key: str, *, keep_place: bool = False) -> Checkpoint:
    """Delete the stream's state. Unless ``keep_place``, its place is deleted too, so that messages that were
    handled before count as new. The marks of messages that were begun, and timers, are always deleted.
    Results and pending effects stay. Raises OperationRefused."""

    def change(now: Checkpoint) -> Commit:
        commit = msgspec.structs.replace(
            unchanged(now), clear_state=True, clear_suspects=True, parked="", timers=()
        )
        return commit if keep_place else msgspec.structs.replace(commit, log=None, past=(), window=0)

    return await _change(state, key, lambda _: RequestedChange(change, what="the reset"))


async def drop_effects(
    state: StateStore, key: str, ids: Collection[str] = (), target: str = ""
) -> tuple[Checkpoint, int]:
    """Give up the pending effects with these ids, those for this target, or all if neither is given. Secrets
    of the target may be hidden, as where it is shown. Each effect goes to the dead letters, in its place.
    Returns the checkpoint and how many they are. Raises OperationRefused."""

    count = 0

    def meant(now: Checkpoint) -> list[Effect]:
        of_ids = [effect for effect in now.effects if not ids or effect.id in ids]
        return [effect for effect in of_ids if not target or target in (effect.target, redact(effect.target))]

    def change(now: Checkpoint) -> Commit:
        nonlocal count
        chosen = [effect for effect in meant(now) if not effect.refused]
        count = len(chosen)
        if not chosen:
            raise OperationRefused(f"{key}: no such effect is pending; `holdfast streams effects` lists them")
        return msgspec.structs.replace(
            unchanged(now),
            refused=tuple(RefusedEffect(effect.id, DROPPED) for effect in chosen),
            due=min(now.due, now.at) if now.due else now.at,
        )

    def is_done(now: Checkpoint) -> bool:
        return all(effect.refused for effect in meant(now))

    checkpoint = await _change(state, key, lambda _: RequestedChange(change, is_done, "the drop"))
    return checkpoint, count


async def add_effect(state: StateStore, key: str, effect: Effect) -> Checkpoint:
    """Have an effect handed over that isn't pending any more, with the same id. Raises OperationRefused."""

    def change(now: Checkpoint) -> Commit:
        commit = unchanged(now)
        due = min(now.due, effect.at) if now.due else effect.at
        added = () if is_done(now) else (msgspec.structs.replace(effect, number=commit.number),)
        return msgspec.structs.replace(commit, effects=added, due=due)

    def is_done(now: Checkpoint) -> bool:
        return any(pending.id == effect.id for pending in now.effects)

    return await _change(
        state, key, lambda _: RequestedChange(change, is_done, f"to hand over {effect.id} again")
    )


async def poke(coordinator: Coordinator, peer: Peer, key: str) -> str:
    """Ask the stream's owner to read the store. Returns its name, or "" if no owner could be reached. That
    does no harm, because the owner notices the change at its next commit."""
    try:
        claim = await coordinator.lookup(key)
        members = await coordinator.members() if claim else []
        for member in members:
            if claim and member.id == claim.member and not member.foreign:
                request = StreamChanged(member.id, key.partition("/")[0], key)
                reply = await peer.call(member.address, request, POKE_TIMEOUT_S)
                return member.name if isinstance(reply, Done) and reply.ok else ""
    except HoldfastError:
        pass
    return ""


class RequestedChange(msgspec.Struct, frozen=True):
    """A change that an operator asks for: the commit that makes it, and how to see that it is done, if that
    can be seen. ``what`` names it."""

    change: Callable[[Checkpoint], Commit]
    is_done: Callable[[Checkpoint], bool] | None = None
    what: str = "the change"


async def _change(
    state: StateStore, key: str, resolve: Callable[[Checkpoint], RequestedChange]
) -> Checkpoint:
    """Open the stream and commit the change; repeat that if an owner opened it in between, or an answer was
    lost. ``resolve`` is called once, and a change that may already have been made isn't made twice."""
    requested: RequestedChange | None = None
    lost: Commit | None = None
    for attempt in range(1, TRIES + 1):
        sent: Commit | None = None
        try:
            standing = await state.peek(key)
            if standing is None:
                raise NotKnown(f"no stream {key!r} in the state store; `holdfast status` lists them")
            if requested is None:
                resolve(standing).change(standing)  # refuse an impossible change before anybody is fenced
            opened = _still_quiet(await state.open(key, standing.epoch, MEMBER), await state.now(key))
            requested = requested or resolve(opened)
            if lost is not None and _was_applied(opened, lost, requested):
                return opened
            sent = requested.change(opened)
            await state.commit(sent)
            return ledger.commit(opened, sent, opened.at) or opened
        except (Fenced, OutcomeUnknown, Unavailable) as error:
            lost = sent if isinstance(error, OutcomeUnknown) and sent is not None else lost
            if attempt == TRIES or isinstance(error, Unavailable):
                if requested is not None and lost is not None:
                    raise _unknown(key, requested) from error
                raise
    raise AssertionError


def _still_quiet(opened: Checkpoint, wall: float) -> Checkpoint:
    """Return the checkpoint with how long no message has come until now: the commit of an operator isn't one,
    and streams whose numbers may start again after a quiet time go by that."""
    if opened.log is None:
        return opened
    quiet_s = opened.log.quiet_s + max(0.0, wall - opened.at)
    return msgspec.structs.replace(opened, log=msgspec.structs.replace(opened.log, quiet_s=quiet_s))


def _was_applied(now: Checkpoint, lost: Commit, requested: RequestedChange) -> bool:
    """Return whether the commit whose answer was lost was applied. Raises OutcomeUnknown if that can't be
    known, because an owner has committed since."""
    if now.number == lost.number and now.commit_id == lost.id:
        return True
    if requested.is_done is not None:
        return requested.is_done(now)
    if now.number > lost.number:
        raise _unknown(now.key, requested)
    return False


def _unknown(key: str, requested: RequestedChange) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{key}: the state store's answer was lost; {requested.what} may have been done. `holdfast status`"
        " shows where the stream stands: look before you repeat it"
    )


def unchanged(now: Checkpoint) -> Commit:
    """Return the next commit, without any change yet. Its window keeps every known identity."""
    number = now.number + 1
    return Commit(
        key=now.key,
        epoch=now.epoch,
        number=number,
        id=f"{now.epoch}.{number}",
        log=now.log,
        past=now.past,
        window=len(now.recent),
        parked=now.parked,
        due=now.due,
    )


def is_passed(now: Checkpoint, place: Place) -> bool:
    """Return True if a commit covers the place, even if its mark is still there."""
    if place.run == TIMER_RUN:
        return all(place_of(timer) != place for timer in now.timers)
    if place.id or now.log is None:
        return not {place.name, SKIP_MARK + place.name}.isdisjoint(now.recent)
    return (place.run, place.seq) <= (now.log.run, now.log.seq)


def _is_skipped(now: Checkpoint, place: Place) -> bool:
    """Return True if the checkpoint says that the place was skipped."""
    if place.run == TIMER_RUN:
        return is_passed(now, place)
    if SKIP_MARK + place.name in now.recent:
        return True
    logs = (now.log, *now.past)
    return not place.id and any(log and log.run == place.run and log.skipped(place.seq) for log in logs)


def _skipping(now: Checkpoint, place: Place, *, alone: bool) -> Commit:
    """Return the commit that skips ``place`` and everything before it. ``alone``: the place is the head, so
    nothing before it is skipped."""
    if place.run == TIMER_RUN:
        return _skipping_timer(now, place)
    log, past = now.log, now.past
    if log is not None and place.run < log.run:
        raise OperationRefused(
            f"{now.key}: run {place.run} is over, {log.run} is current; nothing of it can be skipped"
        )
    if log is None or place.run > log.run:
        if log is not None:
            past = (log, *past)[:PAST_RUNS_MAX]
        first = place.seq if alone else 0
        log = RunLog(place.run, first, first - 1, quiet_s=log.quiet_s if log is not None else 0.0)
    if place.seq <= log.seq and not place.id:
        raise OperationRefused(
            f"{now.key}: seq {place.seq} is passed already; the stream stands at {log.seq}"
        )
    seq = log.seq + 1 if place.id else place.seq
    commit = msgspec.structs.replace(
        unchanged(now),
        log=log.passing_over(Span(log.seq + 1, seq)),
        past=past,
        aside=(Aside(place.name, SKIPPED),),
        skipped=1 if alone else min(COUNT_MAX, seq - log.seq),
    )
    if now.recent or (now.started is not None and alone):
        # A stream that finds duplicates by identity must remember this one; for others it does no harm.
        mark = SKIP_MARK + place.name
        commit = msgspec.structs.replace(commit, identities=(mark,), window=len(now.recent) + 1)
    return commit


def _skipping_timer(now: Checkpoint, place: Place) -> Commit:
    """Return the commit that removes a timer that is begun again and again. Its body goes to the dead
    letters."""
    commit = unchanged(now)
    letters = EffectMaker(now.key, now.epoch, commit.number, now.at)
    for timer in now.timers:
        if place_of(timer) == place:
            letters.set_aside(timer.body, place.name, SKIPPED)
    return msgspec.structs.replace(
        commit,
        aside=(Aside(place.name, SKIPPED),),
        skipped=1,
        timers=tuple(timer for timer in now.timers if place_of(timer) != place),
        effects=tuple(letters.made),
        due=now.due or now.at,
    )


def _skipped_place(now: Checkpoint, through: int | None, run: int | None) -> Place:
    """Return the place to skip: the one that was named, else the head whose handler was begun, else the next
    seq."""
    if through is not None:
        current = now.log.run if now.log else 0
        return Place(current if run is None else run, through)
    if now.started is not None and not is_passed(now, head := Place.named(now.started.head)):
        return head
    by_identity = any(not name.startswith(SKIP_MARK) for name in now.recent)
    if now.log is None or by_identity:
        raise OperationRefused(
            f"{now.key}: no message of it is under way; name the seq to skip with --through"
        )
    return Place(now.log.run, now.log.seq + 1)
