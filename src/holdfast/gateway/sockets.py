"""A WebSocket for one camera: frames in, numbered as they come; results out, in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
from aiohttp import web

from holdfast.core.message import RUN_DIGITS, SEQ_DIGITS, check_number
from holdfast.errors import HoldfastError
from holdfast.gateway import problem
from holdfast.gateway.problem import Refused

WINDOW = 32
"""Frames of one camera that are under way at most."""

HEARTBEAT_S = 30.0


class Frame(msgspec.Struct, frozen=True):
    """One frame, with the headers that it would have by POST."""

    seq: int
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Frame], Awaitable[bytes]]
"""Gives the JSON to send for a frame."""


async def serve(request: web.Request, answer: Answer, max_body_bytes: int) -> web.StreamResponse:
    """Serve one camera until it leaves. The query's ``seq`` (0) numbers the first frame, ``run`` (0) all."""
    try:
        seq = check_number(request.query.get("seq", "0"), "seq", SEQ_DIGITS)
        run = check_number(request.query.get("run", "0"), "run", RUN_DIGITS)
    except HoldfastError as error:
        return problem.response(error)
    socket = web.WebSocketResponse(max_msg_size=max_body_bytes, heartbeat=HEARTBEAT_S)
    if not socket.can_prepare(request).ok:
        text = "use POST; or GET with Upgrade: websocket, for a WebSocket"
        return problem.response(Refused(426, "upgrade", "A WebSocket is expected here", text))
    await socket.prepare(request)
    answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WINDOW)
    async with asyncio.TaskGroup() as group:
        group.create_task(_send_all(socket, answers))
        async for said in socket:
            if said.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                break
            body = said.data if said.type is aiohttp.WSMsgType.BINARY else said.data.encode()
            kind = kind_of(body) if said.type is aiohttp.WSMsgType.BINARY else "application/json"
            headers = {"X-Seq": str(seq), "X-Run": str(run), "Content-Type": kind}
            await answers.put(group.create_task(_answered(answer, Frame(seq, headers, body))))
            seq += 1
        await answers.put(None)
    return socket


async def _answered(answer: Answer, frame: Frame) -> bytes:
    try:
        return await answer(frame)
    except HoldfastError as error:
        return msgspec.json.encode({"seq": frame.seq, "problem": problem.of(error)})


async def _send_all(
    socket: web.WebSocketResponse, answers: asyncio.Queue[asyncio.Task[bytes] | None]
) -> None:
    """Send results in the order of their frames. Once the client is gone they are only waited for."""
    while (task := await answers.get()) is not None:
        said = await task
        if not socket.closed:
            try:
                await socket.send_str(said.decode())
            except (ConnectionError, RuntimeError):
                continue


def kind_of(frame: bytes) -> str:
    """The content type of a binary frame, by its first bytes."""
    if frame.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/png" if frame.startswith(b"\x89PNG\r\n\x1a\n") else "application/octet-stream"
