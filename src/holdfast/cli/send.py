"""``holdfast send``."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.assembly.loading import declared_stream, load_app
from holdfast.cli import output
from holdfast.cli.apart import apart
from holdfast.cli.names import StreamName
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.survey import warn_of_undeclared
from holdfast.common.codec import decode_plain
from holdfast.common.text import counted
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer

READ_BYTES = 1 << 20
"""The most bytes that are read, checked and sent at a time."""


async def send(
    stream: StreamName,
    body: str | None = None,
    /,
    *,
    file: Path | None = None,
    lines: bool = False,
    key: str | None = None,
    seq: int | None = None,
    run: int | None = None,
    raw: bool = False,
    message_id: str = "",
    delay_s: float = 0.0,
    app: str | None = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Send a message to a stream, or many with --lines. The body is the argument, the file, or standard
    input.

    ```
    holdfast send readings '{"meter": "m0", "number": 0, "kwh": 0.5}'
    holdfast send readings --lines --file readings.jsonl --app meters:app
    tail -f readings.jsonl | holdfast send readings --lines
    holdfast send frames --raw --file 17.jpg --key cam-1 --seq 17
    ```

    Args:
        stream: The stream's name.
        body: The message, as JSON.
        file: Read the body from this file; `-` is standard input.
        lines: Each line is a message of its own.
        key: The stream's key, if it isn't in the body.
        seq: The message's place in its stream, if it isn't in the body.
        run: The message's run, if it isn't in the body.
        raw: The body is raw bytes, not JSON; give key, seq and run as options.
        message_id: In a stream without seqs: one message with this id is handled.
        delay_s: Seconds before the message is delivered.
        app: MODULE:NAME of the app that declares the stream, to check messages before they are sent.
        json: Print JSON.
    """
    if body is not None and file is not None:
        raise ConfigError("the body is given twice; leave out the argument or --file")
    if lines and not (seq is None and run is None and not message_id):
        raise ConfigError("--seq, --run and --message-id are of one message; leave them out with --lines")
    loaded = None if app is None else load_app(app)
    spec = None if loaded is None or app is None else declared_stream(loaded, app, stream)

    def message(data: bytes) -> StreamMessage:
        given: Any = data if raw else _json(data)
        return StreamMessage(given, key, seq, run, message_id, delay_s)

    sent = 0
    async with options.services() as services:
        await warn_of_undeclared(services, stream)
        values = None if loaded is None else services.values(loaded.name)
        producer = StreamProducer(stream, services.queue(stream), spec, values)
        with _opened(body, file) as source:
            if lines:
                reader = _lines(source)
                while some := await apart(partial(next, reader, None)):
                    sent += await _send_lines(producer, message, some, sent)
            else:
                data = await apart(source.read)
                sent += len(await producer.send([message(data or b"")]))
    if json:
        output.json_line({"stream": stream, "sent": sent})
    else:
        output.say(f"{counted(sent, 'message')} sent to {stream}")


@contextlib.contextmanager
def _opened(body: str | None, file: Path | None) -> Iterator[io.BytesIO | io.RawIOBase]:
    """Open the source of the body or of the lines: the argument, a file, or standard input. It is
    unbuffered: an ending process would wait for the lock of a buffer that another thread reads."""
    if body is not None:
        yield io.BytesIO(body.encode())
    elif file is None or file == Path("-"):
        if sys.stdin is None:
            raise ConfigError("standard input is closed: give the body as an argument, or --file")
        yield cast("Any", sys.stdin.buffer).raw
    else:
        try:
            opened = file.open("rb", buffering=0)
        except OSError as error:
            raise ConfigError(f"--file {str(file)!r} can't be read: {error.strerror}") from None
        with opened:
            yield opened


def _lines(source: io.BytesIO | io.RawIOBase) -> Iterator[list[bytes]]:
    """Yield the new lines each time, until the source ends."""
    begun = b""
    while data := source.read(READ_BYTES):
        *whole, begun = (begun + data).split(b"\n")
        if whole:
            yield whole
    if begun:
        yield [begun]


async def _send_lines(
    producer: StreamProducer, message: Callable[[bytes], StreamMessage], lines: list[bytes], before: int
) -> int:
    """Send the lines that aren't empty; returns their number. If one can't be sent, none is."""
    outgoing = []
    for line in filter(bytes.strip, lines):
        try:
            outgoing.append(producer.outgoing(message(line)))
        except (InvalidMessage, TooLarge) as error:
            number = before + len(outgoing) + 1
            raise type(error)(f"message {number}: {error}; {before} messages before it were sent") from None
    return len(await producer.send_outgoing(outgoing))


def _json(data: bytes) -> msgspec.Raw:
    try:
        decode_plain(data)
    except ValueError as error:
        raise InvalidMessage(
            f"the body can't be read: {error}; quote it for the shell, or give --raw"
        ) from None
    return msgspec.Raw(data)
