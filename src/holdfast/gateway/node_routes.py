"""The routes of a node for clients: ``POST /process/{stream_id}`` runs one message through its stream.

The body is a message as the stream declares it: JSON, or raw bytes. An image for a stream of JSON messages is
put into the declared ``body_field`` as a data URL. ``GET`` on the same path opens a WebSocket for one camera:
each message in is a frame, numbered from ``seq`` on, each message out its result, in order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, Place, check_key, check_number
from holdfast.common.record import UNREADABLE
from holdfast.common.traceparent import TRACEPARENT, read_traceparent
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.gateway import openapi
from holdfast.gateway.sockets import OF_TEXT, SocketFrame, SocketReply, serve
from holdfast.http import problem
from holdfast.http.bodies import read_body, slow_body, unpacked
from holdfast.http.problem import DATA_PLANE, EPOCH, NO_421, OWNER, RequestRefused
from holdfast.http.serving import Secrets
from holdfast.ports.clock import Clock
from holdfast.streams.addressing import address, labels, wrap
from holdfast.streams.requests import RequestAnswer, Requests
from holdfast.streams.spec import StreamSpec

PATH = "/process/"
SEQ, RUN, STREAM, TIMEOUT = "X-Seq", "X-Run", "X-Stream", "X-Timeout-Ms"
DUPLICATE, REQUEST_ID = "X-Duplicate", "X-Request-Id"
PASSED_ON = (REQUEST_ID, TRACEPARENT, "tracestate")
"""The headers of a request that the answer repeats."""

JSON, RAW = "application/json", "application/octet-stream"
IMAGES = ("image/jpeg", "image/png")
TIMEOUT_S = 30.0
TIMEOUT_MAX_S = 3600.0

_ID = re.compile(r"[!-~]{1,128}")


class NodeRoutes:
    """The routes of one node.

    Args:
        specs: the declared streams.
        requests: takes the messages.
        member: returns the node's membership, which changes when the node joins again.
        max_body_bytes: the largest body.
        secret, also: the secrets of which callers must show one, if there are any.
    """

    def __init__(
        self,
        specs: Mapping[str, StreamSpec],
        clock: Clock,
        *,
        requests: Requests,
        member: Callable[[], str],
        max_body_bytes: int,
        secret: str | None = None,
        also: str | None = None,
    ) -> None:
        self._specs = specs
        self._clock = clock
        self._requests = requests
        self._member = member
        self._max_body_bytes = max_body_bytes
        self._secrets = Secrets(secret, also if secret else None)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes for the node's server."""
        return [
            web.post(f"{PATH}{{id:(?s:.*)}}", self._on_post),
            web.get(f"{PATH}{{id:(?s:.*)}}", self._on_socket),
            openapi.route(),
        ]

    # --- one message

    async def _on_post(self, request: web.Request) -> web.StreamResponse:
        passed_on = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        try:
            admit(self._secrets, request)
            spec, key = self._spec(request), key_of(request.rel_url.raw_path)
            timeout_s = timeout_of(request.headers)
            async with asyncio.timeout(timeout_s):
                sent = await read_body(request, self._max_body_bytes)
            body = await unpacked(sent, request.headers, self._max_body_bytes)
            place, message = compose(spec, key, request.headers, body, self._clock)
            traceparent = request.headers.get(TRACEPARENT, "")
            answer = await self._process(spec, key, place, message, timeout_s, traceparent)
        except TimeoutError:
            return problem.response(slow_body(), passed_on)
        except HoldfastError as error:
            no_421 = request.headers.get(DATA_PLANE) == NO_421
            return problem.response(error, passed_on, no_421=no_421)
        return self._response(answer, passed_on)

    async def _process(
        self,
        spec: StreamSpec,
        key: str,
        place: Place,
        body: bytes,
        timeout_s: float,
        traceparent: str = "",
    ) -> RequestAnswer:
        attributes = labels(spec, key, place)
        if traceparent and read_traceparent(traceparent):
            attributes[TRACEPARENT] = traceparent
        return await self._requests.process(spec.name, spec.full_key(key), place, body, attributes, timeout_s)

    def _response(self, answer: RequestAnswer, passed_on: dict[str, str]) -> web.Response:
        headers = {OWNER: self._member(), EPOCH: str(answer.epoch), **passed_on}
        if answer.duplicate:
            headers[DUPLICATE] = "true"
        body, kind = shown(answer.result)
        return web.Response(body=body, content_type=kind, headers=headers)

    def _spec(self, request: web.Request) -> StreamSpec:
        return self._specs[stream_of(request, self._specs)]

    # --- one camera

    async def _on_socket(self, request: web.Request) -> web.StreamResponse:
        async def answer(frame: SocketFrame) -> SocketReply:
            place, message = compose(spec, key, frame.headers, frame.body, self._clock)
            answer = await self._process(spec, key, place, message, TIMEOUT_S)
            result, kind = shown(answer.result)
            said = {"seq": frame.seq, "result": msgspec.Raw(result) if kind == JSON else result}
            return SocketReply(msgspec.json.encode(said))

        try:
            admit(self._secrets, request)
            spec, key = self._spec(request), key_of(request.rel_url.raw_path)
        except HoldfastError as error:
            return problem.response(error)
        return await serve(request, answer, self._max_body_bytes)


def admit(secrets: Secrets, request: web.Request) -> None:
    """Refuse a request that shows no secret, if it must."""
    if not secrets.admit(request):
        raise RequestRefused(401, "unauthorized", "Who are you?", "the secret is missing or wrong")


def stream_of(request: web.Request, declared: Collection[str]) -> str:
    """Return the declared stream that a request names, or the only one if it names none.

    Raises RequestRefused, InvalidMessage."""
    named = request.headers.getall(STREAM, [])
    if len(named) > 1:
        raise InvalidMessage(f"header {STREAM} is given {len(named)} times; name one stream", STREAM)
    name = (named and named[0]) or request.query.get("stream", "")
    if not name and len(declared) == 1:
        return next(iter(declared))
    if name not in declared:
        by_header, by_query = f"header {STREAM}", "parameter stream"
        place = by_header if any(named) else by_query if name else f"{by_header} or {by_query}"
        text = f"{place} must name one of: {', '.join(sorted(declared))}"
        text += f"; it is {name!r}" if name else ""
        raise RequestRefused(404, "no-stream", "No such stream", text)
    return name


def key_of(raw_path: str) -> str:
    """Return the key in a request's path, percent-decoded once. Raises RequestRefused, InvalidMessage."""
    raw = raw_path.removeprefix(PATH)
    if not raw or "/" in raw:
        raise RequestRefused(
            404, "no-path", "No such path", f"use {PATH}STREAM_ID; a '/' in the id is written %2F"
        )
    try:
        return check_key(unquote_to_bytes(raw).decode(), "stream_id")
    except UnicodeDecodeError:
        raise InvalidMessage("the stream_id is not UTF-8", "stream_id") from None


def timeout_of(headers: Mapping[str, str]) -> float:
    """Return how long the client waits, in seconds. Raises InvalidMessage."""
    if TIMEOUT not in headers:
        return TIMEOUT_S
    timeout_s = check_number(headers[TIMEOUT], TIMEOUT, 9) / 1000
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise InvalidMessage(f"{TIMEOUT} must be from 1 to {TIMEOUT_MAX_S * 1000:.0f}", TIMEOUT)
    return timeout_s


def compose(
    spec: StreamSpec, key: str, headers: Mapping[str, str], body: bytes, clock: Clock
) -> tuple[Place, bytes]:
    """Return the place of a message in its stream, and the message as the handler reads it.

    Raises RequestRefused, InvalidMessage."""
    kind = headers.get("Content-Type", RAW).partition(";")[0].strip().lower()
    if kind not in (JSON, RAW, *IMAGES):
        known = ", ".join((JSON, RAW, *IMAGES))
        raise RequestRefused(
            415, "type", "Unknown content type", f"Content-Type is {kind!r}; use one of {known}"
        )
    if not body:
        raise InvalidMessage("the body is empty; send the frame or the message in it")
    if kind == JSON and spec.message is not bytes:
        return _compose_json(spec, key, headers, body, clock)
    place = place_of(spec, headers, clock)
    return place, body if spec.message is bytes else wrap(spec, key, place, body, kind, clock.wall())


def _compose_json(
    spec: StreamSpec, key: str, headers: Mapping[str, str], body: bytes, clock: Clock
) -> tuple[Place, bytes]:
    by = _request_id if OF_TEXT in headers else _identity  # a text has only its connection's number
    said_key, place = address(spec, body, {}, by(headers, clock), None)
    if said_key != key:
        raise InvalidMessage(f"the body's key is {said_key!r}, but the path says {key!r}", "stream_id")
    if SEQ in headers and OF_TEXT not in headers and spec.seq_kind != "absent":
        seq = check_number(headers[SEQ], SEQ, SEQ_DIGITS)
        if seq != place.seq:
            raise InvalidMessage(f"the body's seq is {place.seq}, but {SEQ} says {seq}", SEQ)
    return place, body


def place_of(spec: StreamSpec, headers: Mapping[str, str], clock: Clock) -> Place:
    """Return the place from the headers. If the stream has no seqs, ``X-Seq`` or ``X-Request-Id`` is the id
    that finds duplicates. Raises InvalidMessage."""
    run = check_number(headers[RUN], RUN, RUN_DIGITS) if RUN in headers else spec.no_run
    if spec.seq_kind == "absent":
        return Place(run, 0, _identity(headers, clock))
    if SEQ not in headers:
        raise InvalidMessage(f"header {SEQ} is missing; every message of {spec.name!r} has a number", SEQ)
    return Place(run, check_number(headers[SEQ], SEQ, SEQ_DIGITS))


def _identity(headers: Mapping[str, str], clock: Clock) -> str:
    """Return the id of a message that has no seq in its stream."""
    if SEQ in headers:
        return f"seq {check_number(headers[SEQ], SEQ, SEQ_DIGITS)}"
    return _request_id(headers, clock)


def _request_id(headers: Mapping[str, str], clock: Clock) -> str:
    given = headers.get(REQUEST_ID, "")
    if given and not _ID.fullmatch(given):
        raise InvalidMessage(f"{REQUEST_ID} must be 1 to 128 visible ASCII characters", REQUEST_ID)
    return given or clock.new_id()


def shown(result: bytes | None) -> tuple[bytes, str]:
    """Return a stored result as a body, and its content type."""
    if result is None:
        return b"null", JSON
    try:
        msgspec.json.decode(result, type=msgspec.Raw)
    except UNREADABLE:
        return result, RAW
    return result, JSON
