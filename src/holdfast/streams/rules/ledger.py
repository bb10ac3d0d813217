"""What a state store keeps for a stream, and the only rules by which it changes.

Three functions decide every write: :func:`open_`, :func:`start`, :func:`commit`. Stores that can run
them inside their own transaction do; others (Redis, in Lua) say the same in their language and are held
to it by the conformance suite.
"""

from __future__ import annotations

import msgspec

from holdfast.common.message import Place, Span
from holdfast.errors import Fenced

COUNT_MAX = 2**53 - 1
"""Where counts stop: every store and every reader of JSON can hold so much, and a gap may be longer."""


class RunLog(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one run: where it started, the last seq passed, and what was skipped between."""

    run: int
    start: int
    seq: int
    skips: tuple[Span, ...] = ()

    def skipped(self, seq: int) -> bool:
        """True if ``seq`` was passed without being handled."""
        return any(span.first <= seq <= span.last for span in self.skips)


class Aside(msgspec.Struct, frozen=True, array_like=True):
    """A message that a commit names as set aside: its identity after the key, and why."""

    name: str
    reason: str


class Result(msgspec.Struct, frozen=True, array_like=True):
    """A handler's result for one message. ``name`` is the identity after the key (``run:seq``)."""

    name: str
    body: bytes


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A head whose handler was begun and not yet covered by a commit, in how many openings, and the epoch of
    the last of them: to count it there again changes nothing."""

    head: str
    openings: int
    epoch: int = 0


SUSPECTS_MAX = 16
"""Heads begun and never finished that are remembered; the oldest is forgotten first."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A stream as its last accepted commit left it.

    ``number`` counts commits over the stream's life. ``log`` is the current run, ``past`` older ones.
    ``recent`` holds the newest identities where the stream needs a window of them, oldest first.
    ``suspects`` are heads whose mark another head took before a commit covered them: messages may come in
    any order, and one that kills nodes must not hide behind another.
    ``parked`` is the reason why the stream stands still, or empty. ``at`` is the wall time of the commit.
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


class Commit(msgspec.Struct, frozen=True):
    """The next commit of a stream. ``id`` is unique to the content, so that repeating it is harmless.

    ``identities`` are new ones for the window of ``window`` newest. ``state`` None keeps the stored state
    unless ``clear_state``. ``starting`` names the head that will run before the next commit, if any;
    ``clear_suspects`` forgets every other that was begun.
    ``done`` and ``skipped`` count messages handled and passed over by this commit, ``COUNT_MAX`` at most.
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


def open_(standing: Checkpoint | None, key: str, expect: int, member: str) -> Checkpoint:
    """The checkpoint after an opening. Raises Fenced unless ``expect`` is the epoch that stands."""
    epoch = standing.epoch if standing else 0
    if epoch != expect:
        raise Fenced(f"{key}: epoch {epoch} stands, not {expect}; another node has opened the stream", epoch)
    return msgspec.structs.replace(standing or Checkpoint(key), epoch=expect + 1, member=member)


def start(standing: Checkpoint | None, key: str, epoch: int, head: str) -> Checkpoint:
    """The checkpoint with this opening counted for ``head``, once however often it is asked; a head that
    still stood marked becomes a suspect. Raises Fenced for another epoch."""
    current = _guard_epoch(standing, key, epoch)
    standing_head = (current.started,) if current.started else ()
    known = (*current.suspects, *standing_head)
    same = [suspect for suspect in known if suspect.head == head]
    openings = sum(suspect.openings for suspect in same)
    if not any(suspect.epoch == epoch for suspect in same):
        openings += 1
    suspects = tuple(suspect for suspect in known if suspect.head != head)[-SUSPECTS_MAX:]
    return msgspec.structs.replace(current, started=Started(head, openings, epoch), suspects=suspects)


def is_repeat(standing: Checkpoint, commit: Commit) -> bool:
    """True if ``commit`` is the very one applied last."""
    return standing.commit_id == commit.id and standing.number == commit.number


def commit(standing: Checkpoint | None, commit: Commit, at: float) -> Checkpoint | None:
    """The checkpoint after ``commit``; None if it is the last one again, already applied.

    Raises Fenced unless it names the standing epoch and the next number."""
    current = _guard_epoch(standing, commit.key, commit.epoch)
    if is_repeat(current, commit):
        return None
    _guard_number(current, commit)
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
    )


def expire(standing: Checkpoint) -> Checkpoint:
    """What is left of an expired checkpoint: enough to fence and to know a repeated commit."""
    return Checkpoint(standing.key, standing.epoch, standing.number, standing.commit_id)


def identity(key: str, place: Place) -> str:
    """A message's identity, ``key:run:seq``."""
    return f"{key}:{place.name}"


def _guard_epoch(standing: Checkpoint | None, key: str, epoch: int) -> Checkpoint:
    if standing is None or standing.epoch != epoch:
        stands = standing.epoch if standing else 0
        raise Fenced(f"{key}: epoch {stands} stands, not {epoch}; this opening is over", stands)
    return standing


def _guard_number(standing: Checkpoint, commit: Commit) -> None:
    if commit.number != standing.number + 1:
        raise Fenced(
            f"{commit.key}: commit {commit.number} is not next after {standing.number}; reopen the stream",
            standing.epoch,
        )
