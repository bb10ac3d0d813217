"""Streams: searched, looked at, changed, sent to."""

from __future__ import annotations

import base64
import binascii
import bisect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.common.codec import decode_plain
from holdfast.common.text import counted
from holdfast.console.api.lists import LIMIT, Cursor, Limit, Next, cursor, place_in, shown
from holdfast.console.api.operations import Call, Operation, derived, described
from holdfast.console.index import IndexedStream, Question, Sort, Standing, StreamIndex
from holdfast.console.parts import ConsoleParts
from holdfast.console.timeline import life_of
from holdfast.errors import InvalidMessage, NotKnown
from holdfast.operate import streams
from holdfast.operate.actions import NoFields
from holdfast.operate.explanation import Why, explain
from holdfast.operate.records import moment, place, split_key
from holdfast.operate.streams import Seq, StreamRecord, stream_warning
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer

RESULTS = 10
LISTED_MAX = 1000
"""The most timers or effects of one stream that are listed."""

SEND_MAX = 1000


class StreamsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose streams."""

    text: Annotated[str, Meta(max_length=600, description="A part of STREAM/KEY.")] = ""
    stream: Annotated[str, Meta(max_length=600, description="Only keys of this stream.")] = ""
    standing: Standing = "all"
    sort: Sort = "key"
    down: Annotated[bool, Meta(description="The highest first.")] = False
    limit: Limit = LIMIT
    cursor: Cursor = ""


class ListedStream(msgspec.Struct):
    """A stream in the list. ``owner`` is a node's name, or empty; ``quiet_s`` is the time since its last
    commit; ``waits`` says what it waits for, and ``runs`` which message has been at work for a while.
    ``lag_s`` is how long its node has had the oldest of its messages, from one second on; null if it is no
    further behind. ``messages`` is how many its node holds of a stream that waits or is behind."""

    stream: str
    key: str
    owner: str
    epoch: int
    run: int | None
    seq: int | None
    done: int
    skipped: int
    parked: str
    quiet_s: float | None
    lag_s: float | None
    waits: str
    runs: str
    messages: int


class StreamList(msgspec.Struct):
    """A page of streams. ``total`` is how many were found. ``age_s`` is how old the console's index is; null
    while it is being read for the first time."""

    streams: list[ListedStream]
    total: int
    next: Next
    age_s: float | None


class StreamTimer(msgspec.Struct):
    """A timer of a stream, and when it is due."""

    name: str
    at: str


class LifeEvent(msgspec.Struct):
    """An event of a stream. ``at`` is empty if the time is unknown. ``node`` is the node where it happened,
    or to which the stream came; empty if unknown."""

    at: str
    text: str
    node: str


class StreamView(msgspec.Struct):
    """A stream: its checkpoint, why it isn't moving, its timers and pending effects, the results of its
    latest messages, and its life: openings, moves, gaps, skips and failures, as far as the console knows,
    newest first. ``checkpoint`` is null for a stream that nothing was committed of."""

    checkpoint: StreamRecord | None
    why: Why
    timers: list[StreamTimer]
    effects: list[dict[str, Any]]
    results: list[dict[str, Any]]
    life: list[LifeEvent]


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to send. ``body`` is JSON; raw bytes are in ``body_base64`` instead. ``key``, ``seq`` and
    ``run`` are needed where the body doesn't hold them."""

    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | None = None
    key: str | int | None = None
    seq: Seq | None = None
    run: Seq | None = None
    message_id: str = ""
    delay_s: Annotated[float, Meta(ge=0)] = 0.0


class NewMessages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to send, in their order."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=SEND_MAX)]


class SentMessages(msgspec.Struct):
    """The number of messages that were sent, and a warning if something is odd about that."""

    sent: int
    warning: str = ""


class StreamOperations:
    """Operations on streams."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._services = parts.services

    def all(self) -> Sequence[Operation]:
        """Return all of them."""
        one = "/streams/{stream}/{key}"
        return [
            described(self._list, "GET", "/streams", "listStreams"),
            described(self._show, "GET", one, "getStream"),
            *(derived(action, one, full_key, self._services) for action in streams.ACTIONS),
            described(
                self._send,
                "POST",
                "/streams/{stream}/messages",
                "sendMessages",
                action="send",
                status=202,
                body_bytes_max=4 * self._services.config.max_message_bytes,
            ),
        ]

    async def _list(self, call: Call[StreamsQuery, None]) -> StreamList:
        """Search and sort all streams."""
        self._parts.attention.asked()
        query, index, now = call.query, self._parts.index, self._parts.clock.wall()
        question = Question(query.text.strip(), query.stream, query.standing, query.sort, query.down)
        found = index.find(question, 0, max(1, len(index))).streams
        begin = _after(found, query, place_in(query.cursor, (int, str)))
        page = found[begin : begin + query.limit]
        end = begin + len(page)
        return StreamList(
            streams=[listed(index, stream, now) for stream in page],
            total=len(found),
            next=cursor(end, page[-1].key) if page and end < len(found) else "",
            age_s=index.age_s,
        )

    async def _show(self, call: Call[NoFields, None]) -> StreamView:
        """Look at one stream: where it is, what it waits for, what it has to do."""
        services, key, index = self._services, full_key(call.path), self._parts.index
        asked_at = services.clock.wall()
        found = await services.state().peek(key)
        is_known = found is not None or key in index.waits
        if not is_known and await services.coordinator().lookup(key) is None:
            raise NotKnown(f"nothing is known of {key!r}; GET /api/v1/streams lists all")
        if found is not None:
            index.take(found, asked_at)
        point = found or Checkpoint(key)
        why = await explain(services, key)
        return StreamView(
            checkpoint=streams.record_of(point) if found is not None else None,
            why=why,
            timers=[
                StreamTimer(timer.name, moment(timer.at))
                for timer in sorted(point.timers, key=lambda timer: timer.at)[:LISTED_MAX]
            ],
            effects=[
                streams.effect_record(effect, why.target_errors, shown)
                for effect in point.effects[:LISTED_MAX]
            ],
            results=[_result(logged) for logged in await streams.latest_results(services, point, RESULTS)],
            life=[
                LifeEvent(moment(event.at), event.text, event.node)
                for event in await life_of(services, index, point, why)
            ],
        )

    async def _send(self, call: Call[NoFields, NewMessages]) -> SentMessages:
        """Send messages to a stream: all of them are checked before any is sent.

        If no answer comes, some may have been sent. Sending the same again does no harm if messages have a
        `seq` or a `message_id`."""
        stream = call.path["stream"]
        messages = [_message(n, message) for n, message in enumerate(call.body.messages)]
        warning = await stream_warning(self._services, stream)
        sent = await StreamProducer(stream, self._services.queue(stream)).send(messages)
        call.outcome = counted(len(sent), "message")
        return SentMessages(len(sent), warning)


def full_key(path: Mapping[str, str]) -> str:
    """Return the full key of the stream that the parts of a path name."""
    return f"{path['stream']}/{path['key']}"


def listed(index: StreamIndex, stream: IndexedStream, now: float) -> ListedStream:
    """Return a stream as lists show it."""
    owner, waits, lag = index.owner(stream), index.waits.get(stream.key), index.lags.get(stream.key)
    work = index.runs.get(stream.key)
    name, key = split_key(stream.key)
    return ListedStream(
        stream=name,
        key=key,
        owner=owner.name if owner is not None else "",
        epoch=stream.epoch,
        run=stream.run,
        seq=stream.seq,
        done=stream.done,
        skipped=stream.skipped,
        parked=stream.parked,
        quiet_s=max(0.0, now - stream.at) if stream.at else None,
        lag_s=lag.lag_s if lag is not None else None,
        waits=waits.sentence if waits is not None else "",
        runs=work.sentence if work is not None else "",
        messages=index.messages(stream.key),
    )


def _after(found: Sequence[IndexedStream], query: StreamsQuery, place: list[Any] | None) -> int:
    """Return where the page after this place begins. Streams may have come and gone since."""
    if place is None:
        return 0
    offset, last = max(0, int(place[0])), str(place[1])
    if query.sort == "key":
        if query.down:
            return len(found) - bisect.bisect_left(found[::-1], last, key=lambda stream: stream.key)
        return bisect.bisect_right(found, last, key=lambda stream: stream.key)
    if 0 < offset <= len(found) and found[offset - 1].key == last:
        return offset
    return next((n + 1 for n, stream in enumerate(found) if stream.key == last), offset)


def _message(place: int, message: NewMessage) -> StreamMessage:
    if (message.body is msgspec.UNSET) == (message.body_base64 is None):
        raise InvalidMessage(f"messages[{place}]: give either 'body' or 'body_base64'", "body")
    given: Any
    if message.body_base64 is not None:
        try:
            given = base64.b64decode(message.body_base64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidMessage(
                f"messages[{place}]: field 'body_base64' isn't Base64", "body_base64"
            ) from None
    else:
        given = message.body
        try:
            decode_plain(bytes(given))
        except ValueError as error:
            raise InvalidMessage(f"messages[{place}]: field 'body' can't be read: {error}", "body") from None
    try:
        return StreamMessage(
            given, message.key, message.seq, message.run, message.message_id, message.delay_s
        )
    except InvalidMessage as error:
        raise InvalidMessage(f"messages[{place}]: {error}", error.field) from None


def _result(logged: Logged) -> dict[str, Any]:
    return {
        "name": logged.result.name,
        **place(logged.result.name),
        "cursor": logged.cursor,
        "epoch": logged.epoch,
        "at": moment(logged.at),
        **shown(logged.result.body, "result"),
    }
