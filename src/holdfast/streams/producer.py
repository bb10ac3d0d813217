"""Sends messages to a stream's queue, for producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.common.codec import decode_plain, decoder, encode
from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, check_key, check_number, check_text
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.ports.queue import Addition, Outgoing, Queue, TransactionalQueue
from holdfast.streams.addressing import STORED_BODY, address, first_names, stored_attributes, with_fields
from holdfast.streams.message import StreamMessage
from holdfast.streams.spec import StreamSpec
from holdfast.system.spans import sending
from holdfast.system.values import ADVICE, Values

UNDECLARED = {"key": "key", "seq": "seq", "run": "run"}
"""The names of key, seq and run in messages of a stream that isn't declared in this program."""

UNDECLARED_ADVICE = (
    "; it could go to the object store at values_url if the client were given the App, which knows its key"
)


class StreamProducer:
    """Sends messages to the queue of the stream ``name``. With ``spec``, the declaration of the stream,
    messages are checked before they are sent; without it they aren't. ``values`` stores bodies that are too
    large for the queue, if the stream is declared: only then is it known where the key is."""

    def __init__(
        self, name: str, queue: Queue, spec: StreamSpec | None = None, values: Values | None = None
    ) -> None:
        self._name = name
        self._queue = queue
        self._spec = spec
        self._values = values
        self._names = UNDECLARED if spec is None else first_names(spec)
        self._read = None if spec is None else decoder(spec.message)

    async def send(self, messages: Iterable[StreamMessage]) -> list[str]:
        """Send messages in as few calls as the queue allows; returns the queue's ids for them, in order.
        Raises InvalidMessage and TooLarge before anything is sent. If the queue doesn't answer, some messages
        may have been sent. Sending the same again does no harm if they have seqs or message ids."""
        outgoing = [self.outgoing(message) for message in messages]
        with sending(self._name, len(outgoing)) as traceparent:
            return await self.send_outgoing(_traced(outgoing, traceparent))

    async def send_outgoing(self, outgoing: Sequence[Outgoing]) -> list[str]:
        """Send messages that ``outgoing`` made, as ``send`` does."""
        outgoing = [await self._lightened(message) for message in outgoing]
        ids: list[str] = []
        for start in range(0, len(outgoing), self._queue.max_batch):
            ids += await self._queue.send(outgoing[start : start + self._queue.max_batch])
        return ids

    async def addition(self, messages: Iterable[StreamMessage]) -> Addition:
        """Return what adds messages within a transaction of the caller's. Raises InvalidMessage, TooLarge,
        and ConfigError for a queue that isn't in a database."""
        if not hasattr(self._queue, "addition"):
            raise ConfigError(
                f"messages of stream {self._name!r} can't be sent in a transaction: their queue is in no"
                " database; leave connection out, or use a queue in PostgreSQL or SQLite (queue_url)"
            )
        outgoing = [self.outgoing(message) for message in messages]
        with sending(self._name, len(outgoing)) as traceparent:
            outgoing = [await self._lightened(message) for message in _traced(outgoing, traceparent)]
            return await cast("TransactionalQueue", self._queue).addition(outgoing)

    async def _lightened(self, message: Outgoing) -> Outgoing:
        """Return a message whose body is stored if it is too large for the queue."""
        if len(message.body) <= self._queue.max_bytes:
            return message
        assert self._spec is not None  # else _check_fits has refused it
        assert self._values is not None
        stored = await self._values.put(message.body)
        attributes = stored_attributes(self._spec, message.body, message.attributes, stored)
        return msgspec.structs.replace(message, body=STORED_BODY, attributes=attributes)

    def outgoing(self, message: StreamMessage) -> Outgoing:
        """Return a message in the form that the queue takes. Raises InvalidMessage, TooLarge."""
        is_raw = isinstance(message.body, bytes | bytearray | memoryview)
        if self._spec is not None and self._spec.message is bytes and not is_raw:
            raise InvalidMessage(
                f"stream {self._name!r} is of raw bytes, and the body is a {type(message.body).__name__};"
                " give it bytes"
            )
        takes_fields = not is_raw if self._spec is None else self._spec.message is not bytes
        place = self._place(message)
        attributes = {"id": check_text(message.message_id, "message_id")} if message.message_id else {}
        body = bytes(message.body) if is_raw else _json(message.body)
        if not takes_fields:
            attributes |= {name: str(value) for name, value in place.items()}
        elif place:
            body = encode(with_fields(_object(body), place))
        if self._spec is None or self._read is None:
            key = "" if message.key is None else check_key(message.key, "key")
        else:
            key, _ = address(self._spec, body, attributes, "to be sent", 0)
            self._read(body)  # refuse a wrong type now, not in the handler
        self._check_fits(body, message.delay_s)
        return Outgoing(body, attributes, message.delay_s, key)

    def _check_fits(self, body: bytes, delay_s: float) -> None:
        queue = self._queue
        if len(body) > queue.max_bytes and not self._may_store:
            values = self._values
            advice = ADVICE if values is None or not values.can_store else UNDECLARED_ADVICE
            raise TooLarge(
                f"a message of {len(body)} bytes is over max_bytes of the queue of stream {self._name!r},"
                f" {queue.max_bytes} (max_message_bytes){advice}"
            )
        if delay_s > queue.delay_max_s:
            raise InvalidMessage(
                f"field 'delay_s' is {delay_s:g}; it is 0 to {queue.delay_max_s:g} on this queue", "delay_s"
            )

    @property
    def _may_store(self) -> bool:
        return self._spec is not None and self._values is not None and self._values.can_store

    def _place(self, message: StreamMessage) -> dict[str, str | int]:
        """Return key, seq and run that were given beside the body, by the names of their fields or
        attributes."""
        names = self._names
        said: dict[str, str | int | None] = {
            "key": None if message.key is None else check_key(message.key, "key"),
            "seq": None if message.seq is None else check_number(message.seq, "seq", SEQ_DIGITS),
            "run": None if message.run is None else check_number(message.run, "run", RUN_DIGITS),
        }
        if message.message_id and "seq" in names and self._spec is not None:
            raise InvalidMessage(
                f"stream {self._name!r} knows messages by their seqs; leave message_id out",
                "message_id",
            )
        place: dict[str, str | int] = {}
        for part, value in said.items():
            if value is None:
                continue
            if part not in names:
                raise InvalidMessage(f"messages of stream {self._name!r} have no {part}; leave it out", part)
            place[names[part]] = value
        return place


def _traced(outgoing: list[Outgoing], traceparent: str) -> list[Outgoing]:
    if not traceparent:
        return outgoing
    return [
        msgspec.structs.replace(each, attributes={**each.attributes, TRACEPARENT: traceparent})
        for each in outgoing
    ]


def _json(body: Any) -> bytes:
    try:
        return encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"the message can't be written as JSON: {error}") from None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = decode_plain(body)
    except ValueError as error:
        raise InvalidMessage(f"the body can't be read: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidMessage("key, seq and run can be given only for a message that is a JSON object")
    return decoded
