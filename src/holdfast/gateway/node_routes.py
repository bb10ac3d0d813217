"""The routes of a node for clients: ``POST /process/{stream_id}`` runs one message through its stream, and
``/query/{stream}/{key}`` asks a stream.

The body of a message is as the stream declares it: JSON, or raw bytes. An image for a stream of JSON messages
is put into the declared ``body_field`` as a data URL. ``GET`` on the path of a message opens a WebSocket for
one camera: each message in is a frame, numbered from ``seq`` on, each message out its result, in order.

The request of a query is the JSON in a ``POST`` body, or the parameters of a ``GET`` URL as an object of
texts. Parameters are enough for a browser, a link or curl. A query changes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from holdfast.common.codec import decode_plain
from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, Place, check_number
from holdfast.common.traceparent import TRACEPARENT, read_traceparent
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.gateway import request_format as form
from holdfast.gateway.request_format import JSON, RAW, REQUEST_ID, RUN, SEQ
from holdfast.gateway.sockets import OF_TEXT, SocketFrame, SocketReply, serve
from holdfast.http import problem
from holdfast.http.bodies import read_body, unpacked
from holdfast.http.problem import DATA_PLANE, EPOCH, NO_421, OWNER, RequestRefused
from holdfast.http.serving import Secrets
from holdfast.ports.clock import Clock
from holdfast.streams.addressing import address, labels, wrap
from holdfast.streams.queries import Queries
from holdfast.streams.requests import RequestAnswer, Requests
from holdfast.streams.spec import StreamSpec

KINDS = (JSON, RAW, "image/jpeg", "image/png")
"""The content types of messages."""

_ID = re.compile(r"[!-~]{1,128}")


class NodeRoutes:
    """The routes of one node.

    Args:
        specs: the declared streams.
        requests, queries: take the messages, and the queries.
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
        queries: Queries,
        member: Callable[[], str],
        max_body_bytes: int,
        secret: str | None = None,
        also: str | None = None,
    ) -> None:
        self._specs = specs
        self._clock = clock
        self._requests = requests
        self._queries = queries
        self._member = member
        self._max_body_bytes = max_body_bytes
        self._secrets = Secrets(secret, also if secret else None)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes for the node's server."""
        return [*form.message_routes(self._on_post, self._on_socket), *form.query_routes(self._on_query)]

    # --- messages

    async def _on_post(self, request: web.Request) -> web.StreamResponse:
        headers, no_421 = form.repeated(request), request.headers.get(DATA_PLANE) == NO_421
        return await form.or_problem(self._answer_post(request, headers), headers, no_421=no_421)

    async def _answer_post(self, request: web.Request, headers: Mapping[str, str]) -> web.Response:
        spec, key = self._target(request)
        timeout_s = form.timeout_of(request.headers)
        body = await self._body(request, timeout_s)
        place, message = compose(spec, key, request.headers, body, self._clock)
        traceparent = request.headers.get(TRACEPARENT, "")
        answer = await self._process(spec, key, place, message, timeout_s, traceparent)
        more = {OWNER: self._member(), EPOCH: str(answer.epoch), **headers}
        if answer.duplicate:
            more[form.DUPLICATE] = "true"
        result, kind = form.result_body(answer.result)
        return web.Response(body=result, content_type=kind, headers=more)

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

    def _target(self, request: web.Request) -> tuple[StreamSpec, str]:
        """Return the stream and the key of a message, once its sender has shown the secret."""
        form.check_secret(self._secrets, request)
        return self._specs[form.stream_of(request, self._specs)], form.key_of(request.rel_url.raw_path)

    async def _body(self, request: web.Request, timeout_s: float) -> bytes:
        async with asyncio.timeout(timeout_s):
            body = await read_body(request, self._max_body_bytes)
        return await unpacked(body, request.headers, self._max_body_bytes)

    async def _on_socket(self, request: web.Request) -> web.StreamResponse:
        async def answer(frame: SocketFrame) -> SocketReply:
            place, message = compose(spec, key, frame.headers, frame.body, self._clock)
            answer = await self._process(spec, key, place, message, form.TIMEOUT_S)
            result, kind = form.result_body(answer.result)
            reply = {"seq": frame.seq, "result": msgspec.Raw(result) if kind == JSON else result}
            return SocketReply(msgspec.json.encode(reply))

        try:
            spec, key = self._target(request)
        except HoldfastError as error:
            return problem.response(error)
        return await serve(request, answer, self._max_body_bytes)

    # --- queries

    async def _on_query(self, request: web.Request) -> web.StreamResponse:
        headers = form.repeated(request)
        return await form.or_problem(self._answer_query(request, headers), headers)

    async def _answer_query(self, request: web.Request, headers: Mapping[str, str]) -> web.Response:
        form.check_secret(self._secrets, request)
        stream, key = form.query_target(request.rel_url.raw_path, self._specs)
        timeout_s = form.timeout_of(request.headers)
        asked = query_of_url(request) if request.method == "GET" else await self._query(request, timeout_s)
        answered = await self._queries.answer(stream, self._specs[stream].full_key(key), asked, timeout_s)
        result, kind = form.result_body(answered.body)
        more = {EPOCH: str(answered.epoch), form.COMMIT_NUMBER: str(answered.number), **headers}
        return web.Response(body=result, content_type=kind, headers=more)

    async def _query(self, request: web.Request, timeout_s: float) -> bytes:
        """Return the request of a query in a body. Raises InvalidMessage, RequestRefused, TooLarge."""
        body = await self._body(request, timeout_s)
        if request.content_type != JSON:
            text = f"Content-Type is {request.content_type!r}; the request of a query is {JSON}"
            raise RequestRefused(415, "type", "Unknown content type", text)
        try:
            decode_plain(body)
        except ValueError as error:
            raise InvalidMessage(f"the request can't be read: {error}") from None
        return body


def query_of_url(request: web.Request) -> bytes:
    """Return the parameters of a URL as JSON; null without any. Raises InvalidMessage."""
    asked: dict[str, str] = {}
    for name, value in request.query.items():
        if name in asked:
            raise InvalidMessage(f"the parameter {name!r:.100} is given twice; POST a body with a list", name)
        asked[name] = value
    return msgspec.json.encode(asked or None)


def compose(
    spec: StreamSpec, key: str, headers: Mapping[str, str], body: bytes, clock: Clock
) -> tuple[Place, bytes]:
    """Return the place of a message in its stream, and the message as the handler reads it.

    Raises RequestRefused, InvalidMessage."""
    kind = headers.get("Content-Type", RAW).partition(";")[0].strip().lower()
    if kind not in KINDS:
        text = f"Content-Type is {kind!r}; use one of {', '.join(KINDS)}"
        raise RequestRefused(415, "type", "Unknown content type", text)
    if not body:
        raise InvalidMessage("the body is empty; send the frame or the message in it")
    if kind == JSON and spec.message is not bytes:
        return _compose_json(spec, key, headers, body, clock)
    place = _place_of(spec, headers, clock)
    return place, body if spec.message is bytes else wrap(spec, key, place, body, kind, clock.wall())


def _compose_json(
    spec: StreamSpec, key: str, headers: Mapping[str, str], body: bytes, clock: Clock
) -> tuple[Place, bytes]:
    by = _request_id if OF_TEXT in headers else _identity  # a text has only its connection's number
    own_key, place = address(spec, body, {}, by(headers, clock), None)
    if own_key != key:
        raise InvalidMessage(f"the body's key is {own_key!r}, but the path says {key!r}", "stream_id")
    if SEQ in headers and OF_TEXT not in headers and spec.seq_kind != "absent":
        seq = check_number(headers[SEQ], SEQ, SEQ_DIGITS)
        if seq != place.seq:
            raise InvalidMessage(f"the body's seq is {place.seq}, but {SEQ} says {seq}", SEQ)
    return place, body


def _place_of(spec: StreamSpec, headers: Mapping[str, str], clock: Clock) -> Place:
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
