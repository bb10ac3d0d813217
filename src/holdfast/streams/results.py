"""The committed results of a stream, and the cursors of named readers.

A named reader is a document of the registry with the cursor that the reader has acknowledged. A program that
begins to read under a name takes it over: the document gets a new token, and the earlier reader loses.
Results are read at least once: after a crash, unacknowledged ones come again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.common.codec import decode_plain
from holdfast.common.message import Place, is_timer_name
from holdfast.common.record import UNREADABLE
from holdfast.errors import InvalidMessage, ReaderLost, ResultsExpired
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, Registry
from holdfast.ports.state import Logged, StateStore

R = TypeVar("R")

READERS = "readers/"
"""The beginning of the names of readers' documents; the names of stream and reader follow."""

PAGE = 500
WAIT_S = 20.0
"""Seconds for which one call waits for further results."""

SAVE_EVERY_S = 1.0
"""Seconds between two saves of a reader's cursor while results come. After a crash, the results of that time
come again."""


class StreamResult(msgspec.Struct, Generic[R], frozen=True):
    """The committed result of a handler for one message.

    Attributes:
        key: the stream's key.
        run, seq: the place of the message; 0 if it has none.
        value: the result, decoded from JSON; bytes if it isn't JSON.
        message_id: identifies the message of a stream without seqs.
        timer: the name of the timer, if the result is of one; run and seq are 0 then.
        cursor: the result's place in the log of all results.
        epoch: the epoch of the owner that committed it.
        at: the wall time of the commit, in seconds since 1970.
    """

    key: str
    run: int
    seq: int
    value: R
    message_id: str = ""
    timer: str = ""
    cursor: int = 0
    epoch: int = 0
    at: float = 0.0


class ReaderState(msgspec.Struct, frozen=True):
    """The document of a reader: what it has acknowledged, and the wall time before which no result can be
    unread. ``token`` is of the program that reads."""

    cursor: int = 0
    read_until: float = 0.0
    token: str = ""


def result_of(logged: Logged) -> StreamResult[Any]:
    """Return a logged result as users see it."""
    _, _, key = logged.key.partition("/")
    place = Place.named(logged.result.name)
    try:
        value: Any = decode_plain(logged.result.body)
    except ValueError:
        value = logged.result.body
    commit = logged.cursor, logged.epoch, logged.at
    if is_timer_name(logged.result.name):
        return StreamResult(key, 0, 0, value, "", place.timer, *commit)
    return StreamResult(key, place.run, place.seq, value, place.id, "", *commit)


async def read_results(
    state: StateStore, stream: str, after: int, *, follow: bool
) -> AsyncGenerator[StreamResult[Any]]:
    """Yield the results of a stream with a cursor above ``after``; with ``follow`` for ever. Raises what the
    store raises."""
    while True:
        page = await state.results(after, PAGE, WAIT_S if follow else 0.0, stream)
        for logged in page:
            yield result_of(logged)
            after = logged.cursor
        if not page and not follow:
            return


class Reader:
    """The named reader ``name`` of a stream. ``keep_s`` is how long results are kept, in seconds."""

    def __init__(
        self, registry: Registry, state: StateStore, clock: Clock, stream: str, name: str, keep_s: float
    ) -> None:
        self._registry = registry
        self._results = state.results
        self._clock = clock
        self._stream = stream
        self._name = name
        self._keep_s = keep_s
        self._document = f"{READERS}{stream}/{name}"
        self._version = 0
        self._saved = self._standing = ReaderState()

    async def read(self, after: int | None, *, follow: bool) -> AsyncGenerator[StreamResult[Any]]:
        """Yield results from the saved cursor on, or from ``after``. Asking for the next result acknowledges
        the one before it.

        Raises ReaderLost if another program has begun to read under this name, ResultsExpired if results may
        have expired that this reader hasn't read, InvalidMessage for a damaged document, and what the
        services raise.
        """
        await self._take_over(after)
        saved_at = self._clock.monotonic()
        try:
            while True:
                self._check_kept()
                unsaved_s = self._clock.monotonic() - saved_at
                if self._standing != self._saved and unsaved_s >= SAVE_EVERY_S:
                    await self._save()
                    saved_at, unsaved_s = self._clock.monotonic(), 0.0
                is_saved = self._standing.cursor == self._saved.cursor
                wait_s = WAIT_S if is_saved else SAVE_EVERY_S - unsaved_s
                asked_at = self._clock.wall()
                page = await self._results(
                    self._standing.cursor, PAGE, wait_s if follow else 0.0, self._stream
                )
                for logged in page:
                    yield result_of(logged)
                    self._note(logged.cursor, logged.at)
                    if self._clock.monotonic() - saved_at >= SAVE_EVERY_S:
                        await self._save()
                        saved_at = self._clock.monotonic()
                if len(page) < PAGE:
                    self._note(self._standing.cursor, asked_at)
                if not page and not follow:
                    return
        finally:
            await self._save()

    def _note(self, cursor: int, read_until: float) -> None:
        read_until = max(read_until, self._standing.read_until)
        self._standing = msgspec.structs.replace(self._standing, cursor=cursor, read_until=read_until)

    def _check_kept(self) -> None:
        """Raise ResultsExpired if unread results may be gone."""
        ago_s = self._clock.wall() - self._standing.read_until
        if ago_s > self._keep_s:
            raise ResultsExpired(
                f"reader {self._name!r} of stream {self._stream!r} is {ago_s:.0f} s behind, and results are"
                f" kept for {self._keep_s:g} s (results_keep_s): some may have expired unread; pass"
                f" after={self._standing.cursor} to go on with the remaining ones, and raise results_keep_s"
            )

    async def _take_over(self, after: int | None) -> None:
        """Write a new token into the document, so that the reader before this one loses."""
        token = self._clock.new_id()
        while True:
            document = await self._registry.get(self._document)
            if after is not None or document is None:
                found = ReaderState(after or 0, self._clock.wall())
            else:
                found = self._decode(document)
            self._standing = msgspec.structs.replace(found, token=token)
            self._check_kept()
            version = 0 if document is None else document.version
            if await self._put(version):
                return

    def _decode(self, document: Document) -> ReaderState:
        try:
            return msgspec.json.decode(document.body, type=ReaderState)
        except UNREADABLE as error:
            raise InvalidMessage(
                f"the document {document.name} in the registry can't be read: {error}; pass after= to"
                " replace it"
            ) from error

    async def _put(self, version: int) -> bool:
        written = await self._registry.put(self._document, msgspec.json.encode(self._standing), version)
        if written is not None:
            self._version, self._saved = written.version, self._standing
        return written is not None

    async def _save(self) -> None:
        while self._standing != self._saved and not await self._put(self._version):
            document = await self._registry.get(self._document)
            if document is None or self._decode(document).token != self._standing.token:
                raise ReaderLost(
                    f"another program reads stream {self._stream!r} as {self._name!r} now; give each reader a"
                    " name of its own"
                )
            self._version = document.version  # of a write whose answer was lost
