"""A WebSocket for one camera: frames in, numbered as they come; results out, in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
from aiohttp import web

from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, check_number
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.http import problem
from holdfast.http.problem import RequestRefused

WINDOW = 32
"""The most unanswered frames of one camera."""

HEARTBEAT_S = 30.0

OF_TEXT = "X-Frame"
"""The header of a frame that came as text. If the stream's messages are JSON, the frame has its own seq, and
the seq in the headers isn't used."""

UNREAD = frozenset({400, 404, 413, 415})
"""Status codes of frames that can't be a message of the stream. They had no effect, and take no number."""


class SocketFrame(msgspec.Struct, frozen=True):
    """A frame, with the headers that it would have as a POST."""

    seq: int
    headers: dict[str, str]
    body: bytes


class SocketReply(msgspec.Struct, frozen=True):
    """The JSON answer to a frame. ``read`` is False if the frame can't be a message of the stream."""

    text: bytes
    read: bool = True


Answer = Callable[[SocketFrame], Awaitable[SocketReply]]
"""Returns the answer to a frame."""


async def serve(request: web.Request, answer: Answer, max_body_bytes: int) -> web.StreamResponse:
    """Serve one camera until it leaves. The query gives the seq of the first frame (``seq``, 0) and the run
    of all (``run``, 0).

    A frame that can't be read takes no number, because the next frame would wait for that number. Only the
    stream's node knows whether it can read a text, so a binary frame waits until the texts before it are
    answered."""
    try:
        seq = check_number(request.query.get("seq", "0"), "seq", SEQ_DIGITS)
        run = check_number(request.query.get("run", "0"), "run", RUN_DIGITS)
    except HoldfastError as error:
        return problem.response(error)
    socket = web.WebSocketResponse(max_msg_size=max_body_bytes, heartbeat=HEARTBEAT_S)
    if not socket.can_prepare(request).ok:
        text = "use POST; or GET with Upgrade: websocket, for a WebSocket"
        return problem.response(RequestRefused(426, "upgrade", "A WebSocket is expected here", text))
    await socket.prepare(request)
    answers: asyncio.Queue[asyncio.Task[SocketReply] | None] = asyncio.Queue(WINDOW)
    texts: list[asyncio.Task[SocketReply]] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(_send_all(socket, answers))
        async for message in socket:
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                break
            of_text = message.type is aiohttp.WSMsgType.TEXT
            body = message.data.encode() if of_text else message.data
            if texts and not of_text:
                await asyncio.wait(texts)
            seq -= sum(not text.result().read for text in texts if text.done())
            texts = [text for text in texts if not text.done()]
            headers = {"X-Seq": str(seq), "X-Run": str(run), "Content-Type": kind_of(body)}
            if of_text:
                headers |= {"Content-Type": "application/json", OF_TEXT: "text"}
            frame = group.create_task(_answered(answer, SocketFrame(seq, headers, body)))
            await answers.put(frame)
            if body:
                seq += 1
                if of_text:
                    texts.append(frame)
        await answers.put(None)
    return socket


async def _answered(answer: Answer, frame: SocketFrame) -> SocketReply:
    try:
        if not frame.body:
            raise InvalidMessage("the message is empty; send the frame in it")
        return await answer(frame)
    except HoldfastError as error:
        failed = problem.of(error)
        text = msgspec.json.encode({"seq": frame.seq, "problem": failed})
        return SocketReply(text, failed.status not in UNREAD)


async def _send_all(
    socket: web.WebSocketResponse, answers: asyncio.Queue[asyncio.Task[SocketReply] | None]
) -> None:
    """Send results in the order of their frames. After the client has left, wait for them without sending."""
    while (task := await answers.get()) is not None:
        reply = await task
        if not socket.closed:
            try:
                await socket.send_str(reply.text.decode())
            except (ConnectionError, RuntimeError):
                continue


def kind_of(frame: bytes) -> str:
    """Return the content type of a binary frame, by its first bytes."""
    if frame.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/png" if frame.startswith(b"\x89PNG\r\n\x1a\n") else "application/octet-stream"
