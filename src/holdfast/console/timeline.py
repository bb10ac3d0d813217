"""The life of one stream: events that the console has seen, its dead letters and its checkpoint, each with
its node."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.common.held import SKIPPED_BEFORE
from holdfast.common.text import counted
from holdfast.console.index import StreamIndex
from holdfast.console.life import SeenOpening, StreamEvent, node_at, on
from holdfast.console.rendering import place
from holdfast.errors import HoldfastError
from holdfast.operate.explanation import Why
from holdfast.operate.records import split_key
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.wiring.services import Services

DEAD_LETTERS = 20
EVENTS_MAX = 60
"""The most events of one stream that are shown."""

REASON_MAX = 600


async def life_of(services: Services, index: StreamIndex, point: Checkpoint, why: Why) -> list[StreamEvent]:
    """Return the known events of a stream, newest first; those without a time come last. ``point`` is its
    checkpoint, which the index has taken, and ``why`` names its present owner."""
    letters = await _dead_letters(services, point.key)
    openings = index.openings(point.key)
    if why.node and why.here_s is not None:
        now = services.clock.wall()
        openings.append(SeenOpening(point.key, why.node, now - why.here_s, now))
    events = [
        *index.life.of(point.key),
        *(_failure(point.key, letter, openings) for letter in letters),
        *_of_checkpoint(point, _committer(point, index) or node_at(openings, point.at)),
    ]
    return sorted(events, key=lambda event: -event.at)[:EVENTS_MAX]


async def _dead_letters(services: Services, key: str) -> Sequence[DeadLetter]:
    """Return dead letters of a stream, unless reading them hides them from others."""
    name, plain = split_key(key)
    queue = services.queue(name)
    if queue.hides_dead_letters:
        return []
    try:
        return await queue.dead_letters(DEAD_LETTERS, "", plain)
    except HoldfastError:
        return []  # the list of dead letters shows the error


def _failure(key: str, letter: DeadLetter, openings: Sequence[SeenOpening]) -> StreamEvent:
    """Return the event of a dead letter. The owner of its stream wrote it, by the clock of the node. If an
    earlier commit had skipped the message, that may have been on another node."""
    name = place(f"{letter.run}:{letter.seq}") if letter.seq else letter.id
    node = "" if letter.kind == SKIPPED_BEFORE else node_at(openings, letter.at)
    return StreamEvent(key, letter.at, f"{name} was set aside{on(node)}: {letter.reason[:REASON_MAX]}", node)


def _committer(point: Checkpoint, index: StreamIndex) -> str:
    """Return the node of the last commit, if that node has opened the stream last and its name is known.
    The id of a commit begins with its epoch."""
    stream = index.get(point.key)
    of_last_opening = point.commit_id.partition(".")[0] == str(point.epoch)
    return stream.opener if of_last_opening and stream is not None and stream.epoch == point.epoch else ""


def _of_checkpoint(point: Checkpoint, node: str) -> list[StreamEvent]:
    """Return the events in a checkpoint. ``node`` is the node of its last commit; empty if unknown."""
    events = []
    if point.at:
        text = f"last commit{on(node)}: number {point.number} of all, in epoch {point.epoch}"
        events.append(StreamEvent(point.key, point.at, text, node))
    if point.started is not None:
        begun = f"{place(point.started.head)} was begun in {counted(point.started.openings, 'opening')}"
        events.append(StreamEvent(point.key, 0.0, f"{begun}, and no commit covers it yet"))
    for log in (point.log, *point.past):
        if log is None:
            continue
        skips = ", ".join(
            str(span.first) if span.first == span.last else f"{span.first} to {span.last}"
            for span in log.skips[-5:]
        )
        gaps = f"; passed over: {skips}" if skips else ""
        reached = f"to {log.seq}" if log.last is not None else "on; nothing of it is committed"
        events.append(StreamEvent(point.key, 0.0, f"run {log.run}: from seq {log.start} {reached}{gaps}"))
    return events
