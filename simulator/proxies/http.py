"""A reverse proxy on a loopback port that has faults befall the calls it passes on."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from simulator.proxies.door import HOST, FaultPort, reset
from simulator.proxies.plan import CallFault, FaultPlan, Hit, Rule

MAX_BYTES = 1 << 30
CONNECT_S = 5.0
ANSWER_S = 60.0
CLOSE_S = 0.01
"""How long calls under way may take to end when the proxy is closed; 0 would be for ever."""

BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length"})
"""Headers that each connection has of its own; the lengths of bodies are counted anew."""


class HttpCall:
    """A request as it came. ``number`` counts from 1."""

    __slots__ = ("body", "headers", "method", "number", "operation", "path")

    def __init__(
        self, number: int, operation: str, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.number = number
        self.operation = operation
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body


class HttpAnswer:
    """An answer to be sent."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = CIMultiDict(headers)
        self.body = body


class HttpFaults:
    """Passes calls on to the server at ``backend``, and has the faults befall them that the rules say.

    All else passes unchanged, the ``Host`` header included. Used as an async context manager, or with
    ``start`` and ``close``. Each subclass knows how one service names its calls and words its errors.

    Args:
        backend: the server's URL, such as ``http://127.0.0.1:5000``.
        rules: the rules in force at the beginning.
        seed: the same calls in the same order meet the same faults under the same seed.
        port: where to listen; 0 for a free port.

    Attributes:
        plan: the rules in force (``plan.rules``, ``plan.add``) and the log of what struck (``plan.log``).
        calls: calls that came in, by operation, whatever became of them.
        bytes_in, bytes_out: bytes of the bodies of calls and of their answers, by operation.
    """

    throttled = "Throttling"
    expired = "ExpiredToken"
    failed = "InternalError"

    def __init__(self, backend: str, rules: Iterable[Rule] = (), *, seed: int = 0, port: int = 0) -> None:
        self.plan = FaultPlan(rules, seed)
        self.calls: Counter[str] = Counter()
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()
        self._backend = backend.rstrip("/")
        self._numbers = 0
        self._came = asyncio.Event()
        self._server: web.Server | None = None
        self._door = FaultPort(self._protocol, port)
        self._http: aiohttp.ClientSession | None = None

    @property
    def endpoint(self) -> str:
        """Where clients are to call, such as ``http://127.0.0.1:40123``."""
        return f"http://{HOST}:{self._door.port}"

    async def start(self) -> None:
        """Begin to listen."""
        self._server = web.Server(self._handle, request_factory=_request, access_log=None)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
        )
        await self.accept()

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        await self._door.close()
        if self._server is not None:
            await self._server.shutdown(CLOSE_S)
        if self._http is not None:
            await self._http.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def refuse(self) -> None:
        """Begin an outage: connections are reset, new ones refused. What was passed on goes on."""
        self._door.shut()
        for connection in self._server.connections if self._server else ():
            reset(connection.transport)

    async def accept(self) -> None:
        """End an outage."""
        await self._door.open()

    async def called(self, operation: str, times: int = 1) -> None:
        """Return once the operation was called so often."""
        while self.calls[operation] < times:
            self._came.clear()
            await self._came.wait()

    # --- for subclasses

    def operation(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        """The name of a call."""
        return method

    def error(self, status: int, code: str, text: str) -> HttpAnswer:
        """An error as the service words it."""
        return HttpAnswer(status, {"Content-Type": "text/plain"}, f"{code}: {text}".encode())

    async def serve(self, call: HttpCall) -> HttpAnswer:
        """Answer a call that reaches the service."""
        return await self.forward(call, call.body)

    async def forward(self, call: HttpCall, body: bytes) -> HttpAnswer:
        """The server's answer to a call with this body."""
        assert self._http is not None
        async with self._http.request(
            call.method,
            URL(self._backend + call.path, encoded=True),
            headers=_kept(call.headers),
            data=io.BytesIO(body) if body else None,  # large bytes would be warned about
            allow_redirects=False,
        ) as response:
            answer = HttpAnswer(response.status, _kept(response.headers), await response.read())
            if call.method == "HEAD":
                answer.headers["Content-Length"] = response.headers.get("Content-Length", "0")
            return answer

    def strike(self, fault: CallFault, call: HttpCall) -> Hit | None:
        """What has ``fault`` befall this call, if anything does."""
        return self.plan.strike(fault, call.operation, call.number)

    # --- how it is done

    def _protocol(self) -> asyncio.BaseProtocol:
        assert self._server is not None
        return self._server()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._numbers += 1
        operation = self.operation(request.method, request.raw_path, request.headers)
        self.calls[operation] += 1
        self._came.set()
        try:
            call = HttpCall(
                self._numbers,
                operation,
                request.method,
                request.raw_path,
                request.headers,
                await request.read(),
            )
            self.bytes_in[operation] += len(call.body)
            answer = await self._answer(call)
        except (aiohttp.ClientError, OSError) as error:  # either side hung up: so does the other
            reset(request.transport)
            raise ConnectionResetError from error
        if answer is None:
            reset(request.transport)
            raise ConnectionResetError
        self.bytes_out[operation] += len(answer.body)
        if self.strike(CallFault.CUT, call):
            await _send_half(request, answer)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    async def _answer(self, call: HttpCall) -> HttpAnswer | None:
        """What to answer; None if nothing."""
        if self.strike(CallFault.RESET, call):
            return None
        if hit := self.strike(CallFault.THROTTLE, call):
            return self.error(hit.rule.status, hit.rule.code or self.throttled, "Slow down.")
        if hit := self.strike(CallFault.EXPIRE, call):
            return self.error(hit.rule.status, hit.rule.code or self.expired, "The token has expired.")
        if hit := self.strike(CallFault.ERROR, call):
            return self.error(500, hit.rule.code or self.failed, "We have a problem.")
        answer = await self.serve(call)
        if self.strike(CallFault.LOSE_REPLY, call):
            return None
        if hit := self.strike(CallFault.ERROR_DONE, call):
            return self.error(500, hit.rule.code or self.failed, "We have a problem.")
        if hit := self.strike(CallFault.SLOW, call):
            await asyncio.sleep(hit.rule.delay_s)
        return answer


def _request(*args: Any) -> web.BaseRequest:
    message, payload, protocol, writer, task = args
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BYTES)


def _kept(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in BY_HOP)


async def _send_half(request: web.BaseRequest, answer: HttpAnswer) -> NoReturn:
    """Send the first half of a body, all of which arrives, and hang up."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_length = len(answer.body)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    if request.transport is not None:
        request.transport.close()
    raise ConnectionResetError
