"""A back-up: checkpoints and results of streams, written to a file and restored to an empty store.

The file is JSON lines: the header, all checkpoints, the results that they cover, and a last line with the
counts and the SHA-256 of all earlier lines. docs/backup.md describes the format.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import ConfigError, Damaged, NoRoom, OperationRefused, Unavailable
from holdfast.ports.state import Logged, StateStore, TransferableState
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.system.files import FULL, OWNER, whole_file
from holdfast.transfer.contents import STATES_AT_ONCE
from holdfast.transfer.parts import Writer, checkpoint_pages, results_of

FORMAT = 1

TRIES_MAX = 200
"""Reads of a checkpoint whose stream commits meanwhile."""

HEADER_BYTES_MAX = 1 << 20
"""Bytes of a file that are read to recognize a back-up."""

EPOCH_MARGIN_US = 86_400 * 10**6
"""Microseconds by which a restored epoch is above the clock: stores whose epochs follow the clock add a
random number at each opening, and hosts' clocks differ."""


class Header(msgspec.Struct, frozen=True, tag="header"):
    """The first line. ``streams``: the chosen ones; all, if empty."""

    format: int
    made_at: float
    streams: tuple[str, ...] = ()


class CheckpointLine(msgspec.Struct, frozen=True, tag="checkpoint"):
    checkpoint: Checkpoint


class ResultLine(msgspec.Struct, frozen=True, tag="result"):
    result: Logged


class End(msgspec.Struct, frozen=True, tag="end"):
    """The last line. ``last_cursor``: the store's highest when its results were read."""

    checkpoints: int
    results: int
    last_cursor: int
    sha256: str


class Summary(msgspec.Struct, frozen=True):
    """The summary of a back-up file. ``made_at`` is a wall time."""

    made_at: float
    streams: tuple[str, ...]
    checkpoints: int
    results: int
    last_cursor: int
    sha256: str


class RestoredKey(msgspec.Struct, frozen=True):
    """A restored key. It goes on ``after`` ``run:seq`` (empty if it had no message yet). Its ``effects`` are
    sent again, and the messages that its queue has deleted since ``made_at`` are missing."""

    key: str
    epoch: int
    after: str
    effects: int
    made_at: float


Line = Header | CheckpointLine | ResultLine | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


def transferable(state: StateStore, url: str) -> TransferableState:
    """Return the store, if its contents can be read and written. Raises ConfigError."""
    if not hasattr(state, "stored"):
        raise ConfigError(f"state_url is {url!r}, whose contents can't be backed up or restored")
    return cast("TransferableState", state)


# --- back-up


async def write(state: TransferableState, target: Path, made_at: float, streams: Collection[str]) -> Summary:
    """Write a back-up while nodes run. The file gets its name once it is complete; until then, an older file
    of that name stays. Raises ConfigError if that file isn't a back-up, NoRoom, Unavailable, and
    OperationRefused for a key that commits too often."""
    _check_target(target)
    try:
        with whole_file(target, OWNER, part=f".{target.name}.part-") as file:
            summary = await _write_all(state, file, made_at, tuple(sorted(streams)))
    except OSError as error:
        kind = NoRoom if error.errno in FULL else Unavailable
        raise kind(
            f"{target} can't be written: {error.strerror}; a file of this name is as it was"
        ) from error
    return summary


def _check_target(target: Path) -> None:
    """Raise ConfigError if the name is that of another file than a back-up or an empty one."""
    if not target.exists():
        return
    begins = b""
    if target.is_file():
        with _opened(target) as file:
            begins = file.readline(HEADER_BYTES_MAX)
        if not begins:
            return
    with contextlib.suppress(*UNREADABLE):
        if isinstance(_decode(begins), Header):
            return
    raise ConfigError(f"{target} exists and isn't a back-up of Holdfast, so it stays; name another file")


async def _write_all(
    state: TransferableState, file: BinaryIO, made_at: float, streams: tuple[str, ...]
) -> Summary:
    hashed = hashlib.sha256()

    def add(line: Line) -> None:
        text = _encode(line) + b"\n"
        hashed.update(text)
        file.write(text)

    add(Header(FORMAT, made_at, streams))
    covered: dict[str, int] = {}  # the last cursor of each key that its checkpoint covers
    async for checkpoint, cursor in _settled(state, streams):
        add(CheckpointLine(checkpoint))
        covered[checkpoint.key] = cursor
    if absent := {*streams} - {key.partition("/")[0] for key in covered}:
        raise OperationRefused(
            f"no key of the stream {min(absent)!r} is in the state store; is its name right?"
        )
    count = 0
    async for logged in results_of(state, until=max(covered.values(), default=0)):
        if logged.cursor <= covered.get(logged.key, 0):
            add(ResultLine(logged))
            count += 1
    digest, highest = hashed.hexdigest(), await state.last_cursor()
    file.write(_encode(End(len(covered), count, highest, digest)) + b"\n")
    return Summary(made_at, streams, len(covered), count, highest, digest)


async def _settled(
    state: TransferableState, streams: tuple[str, ...]
) -> AsyncIterator[tuple[Checkpoint, int]]:
    """Yield each checkpoint with a cursor: it covers the key's results up to that cursor."""
    async for listed in checkpoint_pages(state):
        keys = [c.key for c in listed if not streams or c.key.partition("/")[0] in streams]
        for begin in range(0, len(keys), STATES_AT_ONCE):
            waiting = keys[begin : begin + STATES_AT_ONCE]
            for _ in range(TRIES_MAX):
                found, cursors, moved = await _read(state, waiting)
                for checkpoint in found:
                    if checkpoint.key not in moved:
                        yield checkpoint, cursors[checkpoint.key]
                waiting = [checkpoint.key for checkpoint in found if checkpoint.key in moved]
                if not waiting:
                    break
            else:
                raise OperationRefused(
                    f"{waiting[0]} commits faster than it can be read: pause the stream, or back up at a"
                    " quieter time"
                )


async def _read(
    state: TransferableState, keys: Sequence[str]
) -> tuple[list[Checkpoint], dict[str, int], set[str]]:
    """Return checkpoints, the last cursor that each covers, and the keys with a new result that their
    checkpoints may cover or not."""
    before = await state.last_cursor()
    found = await state.stored(keys)
    by_key = {checkpoint.key: checkpoint for checkpoint in found}
    cursors, moved = dict.fromkeys(by_key, before), set[str]()
    async for logged in results_of(state, before, await state.last_cursor()):
        if (checkpoint := by_key.get(logged.key)) is None:
            continue
        covers = _covers(checkpoint, logged)
        if covers is None:
            moved.add(logged.key)
        elif covers:
            cursors[logged.key] = logged.cursor
    return found, cursors, moved


def _covers(checkpoint: Checkpoint, logged: Logged) -> bool | None:
    """Return whether a checkpoint covers a result of its stream; None if unknown. Results of one opening come
    in the order of places. In a stream that remembers identities, names may be other than places."""
    run, _, seq = logged.result.name.partition(":")
    log = checkpoint.log
    if log is None or checkpoint.recent or logged.epoch != checkpoint.epoch:
        return None
    if not (run.isdecimal() and seq.isdecimal()):
        return None
    return (int(run), int(seq)) <= (log.run, log.seq)


# --- the file


def verify(source: Path) -> Summary:
    """Read and check the whole file. Raises Damaged if it differs from the written one, and ConfigError if
    this version can't read it as a back-up."""
    header, end = Header(FORMAT, 0.0), End(0, 0, 0, "")
    with _opened(source) as file:
        for line in lines(source, file):
            if isinstance(line, Header):
                header = line
            elif isinstance(line, End):
                end = line
    return Summary(header.made_at, header.streams, end.checkpoints, end.results, end.last_cursor, end.sha256)


def lines(source: Path, file: BinaryIO) -> Iterator[Line]:
    """Yield all lines, and check them. The file is valid only once all lines are read."""
    hashed, counts, place = hashlib.sha256(), [0, 0], 0
    end: End | None = None
    for place, text in enumerate(file, 1):
        if end is not None:
            raise Damaged(f"{source} is damaged: line {place} comes after its end; use another back-up")
        try:
            line = _decode(text)
        except UNREADABLE as error:
            if place == 1:
                raise ConfigError(f"{source} isn't a back-up of Holdfast ({error})") from error
            raise Damaged(f"{source} is damaged at line {place} ({error}); use another back-up") from error
        if isinstance(line, Header) != (place == 1):
            raise ConfigError(f"{source} isn't a back-up of Holdfast: only the first line must be a header")
        if isinstance(line, Header) and line.format != FORMAT:
            raise ConfigError(
                f"{source} has format {line.format}; this version of Holdfast reads format {FORMAT}: use the"
                " version that made it"
            )
        if isinstance(line, End):
            end = line
            if end.sha256 != hashed.hexdigest() or [end.checkpoints, end.results] != counts:
                raise Damaged(f"{source} is damaged: its digest doesn't fit; use another back-up")
        hashed.update(text)
        counts[0] += isinstance(line, CheckpointLine)
        counts[1] += isinstance(line, ResultLine)
        yield line
    if end is None:
        raise Damaged(f"{source} is cut off after line {place}; use another back-up")


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror}") from error


# --- restore


async def restore(state: TransferableState, source: Path, now: float) -> AsyncIterator[RestoredKey]:
    """Write a verified file to an empty store, and yield each key. ``now`` is the wall time.

    New epochs are above all earlier ones, so that an old writer is refused. New cursors are above all earlier
    ones, so that a follower that was further than the back-up misses nothing."""
    summary = verify(source)
    if await state.checkpoints("", 1) or await state.results(0, 1):
        raise OperationRefused(
            "the state store isn't empty, and nothing was written: restore to an empty one, such as a new"
            " database, schema or namespace"
        )
    now_us = round(now * 1e6)
    above = max(summary.last_cursor, now_us)
    await state.restore_results([], above=above)  # also SQLite's epochs of new keys begin above this
    checkpoints = Writer[Checkpoint](state.restore)
    results = Writer[Logged](partial(state.restore_results, above=above))
    with _opened(source) as file:
        for line in lines(source, file):
            if isinstance(line, CheckpointLine):
                raised = _raised(line.checkpoint, now_us)
                await checkpoints.add(raised, len(raised.state or b""))
                yield _restored(raised, summary.made_at)
            elif isinstance(line, ResultLine):
                await checkpoints.flush()  # all come before the results
                await results.add(line.result, len(line.result.result.body))
    await checkpoints.flush()
    await results.flush()


def _raised(checkpoint: Checkpoint, now_us: int) -> Checkpoint:
    epoch = max(checkpoint.epoch, now_us) + EPOCH_MARGIN_US
    return msgspec.structs.replace(checkpoint, epoch=epoch, member="")


def _restored(checkpoint: Checkpoint, made_at: float) -> RestoredKey:
    log = checkpoint.log
    after = f"{log.run}:{log.seq}" if log is not None else ""
    return RestoredKey(checkpoint.key, checkpoint.epoch, after, len(checkpoint.effects), made_at)
