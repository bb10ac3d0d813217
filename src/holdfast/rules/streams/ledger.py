"""The records that a state store keeps for a stream, and the rules by which they change.

Four functions decide every write: :func:`open_`, :func:`start`, :func:`commit`, :func:`lease_due`. Stores
that can run them inside their own transaction do so. Others, such as Redis with Lua, implement the same rules
in their language, and the conformance suite checks that.
"""

from __future__ import annotations

import msgspec

from holdfast.common.acts import Effect, RefusedEffect
from holdfast.common.message import Place, Span
from holdfast.errors import Fenced

COUNT_MAX = 2**53 - 1
"""The highest count: every store and every reader of JSON can hold it. A gap may be longer than this."""

EARLIEST = 1e-6
"""The due time of a timer of 1970 or before. 0 stands for never."""


SKIPS_MAX = 1000
"""The most ranges of skipped seqs in a run's record. Beyond that the oldest two become one range, and a
message handled between them counts as skipped if it comes again."""


class RunLog(msgspec.Struct, frozen=True, array_like=True):
    """The record of one run: its first seq, the last seq passed, and the seqs that were skipped between.
    ``quiet_s`` is for how long no message had come when this was committed, where that matters."""

    run: int
    start: int
    seq: int
    skips: tuple[Span, ...] = ()
    quiet_s: float = 0.0

    @property
    def last(self) -> int | None:
        """The last seq passed; None before the first."""
        return self.seq if self.seq >= self.start else None

    def skipped(self, seq: int) -> bool:
        """Return True if ``seq`` was passed without being handled."""
        return any(span.first <= seq <= span.last for span in self.skips)

    def passing_over(self, span: Span) -> RunLog:
        """Return the record after ``span``, which follows the last seq, was passed without being handled."""
        skips = self.skips
        if skips and skips[-1].last + 1 == span.first:
            skips = (*skips[:-1], Span(skips[-1].first, span.last))
        else:
            skips = (*skips, span)
        if len(skips) > SKIPS_MAX:
            skips = (Span(skips[0].first, skips[-SKIPS_MAX].last), *skips[1 - SKIPS_MAX :])
        return msgspec.structs.replace(self, seq=span.last, skips=skips)


class Aside(msgspec.Struct, frozen=True, array_like=True):
    """A message that a commit sets aside: its identity without the key, and the reason."""

    name: str
    reason: str


class Result(msgspec.Struct, frozen=True, array_like=True):
    """A handler's result for one message. ``name`` is its identity without the key (``run:seq``)."""

    name: str
    body: bytes


class Timer(msgspec.Struct, frozen=True, array_like=True):
    """A time at which a stream wants to be woken. ``name`` is unique in its stream. ``at`` is a wall time.
    ``setting`` names the commit that set it and the place therein, so that a timer that is set again is
    another one."""

    name: str
    at: float
    body: bytes
    setting: str


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A head whose handler was begun, and that no commit covers yet. It holds in how many openings that
    happened, and the epoch of the last one, in which another start isn't counted again."""

    head: str
    openings: int
    epoch: int = 0


SUSPECTS_MAX = 16
"""The most begun and unfinished heads that are remembered; the oldest is forgotten first."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A stream as its last accepted commit left it.

    ``number`` counts the commits of the stream. ``log`` is the current run, ``past`` holds older ones.
    ``recent`` holds the newest identities, oldest first, if the stream needs them. ``suspects`` are heads
    that no commit covers, and whose mark was taken by another head: messages may come in any order, and a
    message that kills nodes must not be forgotten because of another. ``parked`` is the reason why the stream
    is parked, or empty. ``at`` is the wall time of the commit. ``effects`` are pending, oldest first. ``due``
    is the wall time from which the key needs an owner even if no message comes; 0: never.
    """

    key: str
    epoch: int = 0
    number: int = 0
    commit_id: str = ""
    log: RunLog | None = None
    past: tuple[RunLog, ...] = ()
    recent: tuple[str, ...] = ()
    state: bytes | None = None
    state_version: int = 0
    started: Started | None = None
    suspects: tuple[Started, ...] = ()
    parked: str = ""
    done: int = 0
    skipped: int = 0
    member: str = ""
    at: float = 0.0
    effects: tuple[Effect, ...] = ()
    timers: tuple[Timer, ...] = ()
    due: float = 0.0

    @property
    def acts(self) -> bool:
        """True if the stream has timers or pending effects: it must not expire."""
        return bool(self.effects or self.timers or self.due)


class Commit(msgspec.Struct, frozen=True):
    """The next commit of a stream. ``id`` is unique to the content, so that a repeat is harmless.

    ``identities`` are added to the ``window`` newest ones. If ``state`` is None, the stored state is kept,
    unless ``clear_state``. ``starting`` names the head that will run before the next commit, if any;
    ``clear_suspects`` forgets all other heads that were begun. ``done`` and ``skipped`` count the messages
    that this commit handled and skipped, up to ``COUNT_MAX``.

    ``effects`` are added to the pending ones, after ``dropped`` ones (by id) are taken away and ``refused``
    ones marked. If ``timers`` is None, the stored timers are kept. ``due`` replaces the stored one.
    """

    key: str
    epoch: int
    number: int
    id: str
    log: RunLog | None
    past: tuple[RunLog, ...] = ()
    identities: tuple[str, ...] = ()
    window: int = 0
    state: bytes | None = None
    state_version: int = 0
    clear_state: bool = False
    clear_suspects: bool = False
    results: tuple[Result, ...] = ()
    aside: tuple[Aside, ...] = ()
    starting: str = ""
    parked: str = ""
    done: int = 0
    skipped: int = 0
    effects: tuple[Effect, ...] = ()
    dropped: tuple[str, ...] = ()
    refused: tuple[RefusedEffect, ...] = ()
    timers: tuple[Timer, ...] | None = None
    due: float = 0.0


def open_(standing: Checkpoint | None, key: str, expect: int, member: str) -> Checkpoint:
    """Return the checkpoint after an opening. Raises Fenced unless ``expect`` is the present epoch."""
    epoch = standing.epoch if standing else 0
    if epoch != expect:
        raise Fenced(f"{key}: epoch {epoch} stands, not {expect}; another node has opened the stream", epoch)
    return msgspec.structs.replace(standing or Checkpoint(key), epoch=expect + 1, member=member)


def start(standing: Checkpoint | None, key: str, epoch: int, head: str) -> Checkpoint:
    """Return the checkpoint with this opening counted for ``head``, only once per opening. Another head that
    is still marked becomes a suspect. If it began in this opening too, the opening no longer counts for it:
    its handler has returned, so what may end the opening from now on is not that head. Raises Fenced for
    another epoch."""
    current = guard_epoch(standing, key, epoch)
    standing_head = (current.started,) if current.started else ()
    known = (*current.suspects, *standing_head)
    same = [suspect for suspect in known if suspect.head == head]
    openings = sum(suspect.openings for suspect in same)
    if not any(suspect.epoch == epoch for suspect in same):
        openings += 1
    others = (
        suspect if suspect.epoch != epoch else Started(suspect.head, suspect.openings - 1, epoch - 1)
        for suspect in known
        if suspect.head != head
    )
    suspects = tuple(suspect for suspect in others if suspect.openings)[-SUSPECTS_MAX:]
    return msgspec.structs.replace(current, started=Started(head, openings, epoch), suspects=suspects)


def is_repeat(standing: Checkpoint, commit: Commit) -> bool:
    """Return True if ``commit`` is the one that was applied last."""
    return standing.commit_id == commit.id and standing.number == commit.number


def commit(standing: Checkpoint | None, commit: Commit, at: float) -> Checkpoint | None:
    """Return the checkpoint after ``commit``; None if it was already applied and is the last one.

    Raises Fenced unless the commit names the present epoch and the next number."""
    current = guard_epoch(standing, commit.key, commit.epoch)
    if is_repeat(current, commit):
        return None
    guard_number(current, commit)
    started = Started(commit.starting, 1, commit.epoch) if commit.starting else None
    if current.started and current.started.head == commit.starting:
        started = current.started
    return msgspec.structs.replace(
        current,
        number=commit.number,
        commit_id=commit.id,
        log=commit.log,
        past=commit.past,
        recent=(current.recent + commit.identities)[-commit.window :] if commit.window else (),
        state=commit.state if commit.state is not None or commit.clear_state else current.state,
        state_version=commit.state_version if commit.state is not None else current.state_version,
        started=started,
        suspects=() if commit.clear_suspects else current.suspects,
        parked=commit.parked,
        done=current.done + commit.done,
        skipped=min(COUNT_MAX, current.skipped + commit.skipped),
        at=at,
        effects=pending_after(current.effects, commit),
        timers=current.timers if commit.timers is None else commit.timers,
        due=commit.due,
    )


def pending_after(standing: tuple[Effect, ...], commit: Commit) -> tuple[Effect, ...]:
    """Return the pending effects after a commit."""
    if not (commit.dropped or commit.refused):
        return standing + commit.effects
    dropped, refused = set(commit.dropped), {effect.id: effect.reason for effect in commit.refused}
    kept = (
        msgspec.structs.replace(effect, refused=refused[effect.id]) if effect.id in refused else effect
        for effect in standing
        if effect.id not in dropped
    )
    return (*kept, *commit.effects)


def lease_due(standing: Checkpoint, before: float, lease_s: float) -> Checkpoint | None:
    """Return the checkpoint after its key was given to a node that asked for keys due ``before`` that wall
    time; None if it isn't due. No other node gets the key until ``lease_s`` after ``before``."""
    if not 0.0 < standing.due < before:
        return None
    return msgspec.structs.replace(standing, due=before + lease_s)


def due_when_resumed(standing: Checkpoint) -> float:
    """Return when a parked stream is due that goes on: its timers count again."""
    times = [max(timer.at, EARLIEST) for timer in standing.timers]
    return min([*times, standing.due] if standing.due else times, default=0.0)


def may_expire(standing: Checkpoint, idle_before: float) -> bool:
    """Return True if nothing was committed since ``idle_before``, and nothing is waited for or to be sent."""
    return 0.0 < standing.at < idle_before and not standing.acts


def expire(standing: Checkpoint) -> Checkpoint:
    """Return what is left of an expired checkpoint: enough to fence, and to recognise a repeated commit."""
    return Checkpoint(standing.key, standing.epoch, standing.number, standing.commit_id)


def identity(key: str, place: Place) -> str:
    """Return a message's identity, ``key:run:seq``."""
    return f"{key}:{place.name}"


def guard_epoch(standing: Checkpoint | None, key: str, epoch: int) -> Checkpoint:
    """Return the checkpoint. Raises Fenced unless ``epoch`` is its own."""
    if standing is None or standing.epoch != epoch:
        stands = standing.epoch if standing else 0
        raise Fenced(f"{key}: epoch {stands} stands, not {epoch}; this opening is over", stands)
    return standing


def guard_number(standing: Checkpoint, commit: Commit) -> None:
    """Raise Fenced unless the commit is the next one."""
    if commit.number != standing.number + 1:
        raise Fenced(
            f"{commit.key}: commit {commit.number} is not next after {standing.number}; reopen the stream",
            standing.epoch,
        )
