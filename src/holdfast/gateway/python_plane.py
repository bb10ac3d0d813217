"""The data plane in Python: receives clients' requests and forwards each to the owner of its stream.

HAProxy sends requests here that it has no route for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from holdfast.cluster.view import View
from holdfast.errors import HoldfastError, Unavailable
from holdfast.gateway import models
from holdfast.gateway import request_format as form
from holdfast.gateway.forwarder import Forwarder
from holdfast.gateway.request_format import JSON, REQUEST_ID, STREAM
from holdfast.gateway.sockets import UNREAD, SocketFrame, SocketReply, serve
from holdfast.http import problem
from holdfast.http.bodies import read_body
from holdfast.http.problem import DATA_PLANE
from holdfast.http.serving import not_ready, problem_response
from holdfast.ports.clock import Clock

NOT_FORWARDED = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "origin",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        DATA_PLANE.lower(),
    }
)
"""Headers that belong to one connection, or only to this gateway."""

NOT_RETURNED = NOT_FORWARDED | {"date", "server", *map(str.lower, form.REPEATED)}

ACCEPT, UNPACKED = "Accept-Encoding", "identity"
"""The encoding that a gateway asks for if the client doesn't say that it can unpack answers: it unpacks
none."""


class PythonPlane:
    """The routes of a gateway's server.

    ``not_ready`` returns why the gateway can't serve; "" if it can. ``middlewares`` get each request first.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        view: View,
        clock: Clock,
        *,
        not_ready: Callable[[], str],
        max_body_bytes: int,
        middlewares: Sequence[Middleware] = (),
    ) -> None:
        self._forwarder = forwarder
        self._view = view
        self._clock = clock
        self._not_ready = not_ready
        self._max_body_bytes = max_body_bytes
        self._middlewares = middlewares
        self._declared: frozenset[str] = frozenset()

    def app(self) -> web.Application:
        """Return the server's application."""
        app = web.Application(client_max_size=self._max_body_bytes, middlewares=self._middlewares)
        app.add_routes(
            [
                *form.message_routes(self._on_post, self._on_socket),
                *form.query_routes(self._on_query),
                models.of_members(self._view.members.values),
                web.get("/healthz", self._on_health),
                web.get("/readyz", self._on_ready),
            ]
        )
        return app

    async def _on_post(self, request: web.Request) -> web.StreamResponse:
        return await self._forward(request, lambda: self._full_key(request), request.rel_url.raw_path)

    async def _on_query(self, request: web.Request) -> web.StreamResponse:
        def full_key() -> str:
            return "/".join(form.query_target(request.rel_url.raw_path, self._served()))

        return await self._forward(request, full_key, request.rel_url.raw_path_qs, query=request.method)

    async def _forward(
        self, request: web.Request, find_key: Callable[[], str], path: str, query: str = ""
    ) -> web.StreamResponse:
        async def answer() -> web.StreamResponse:
            key = find_key()
            timeout_s = form.timeout_of(request.headers)
            async with asyncio.timeout(timeout_s):
                body = await read_body(request, self._max_body_bytes)
            headers = CIMultiDict(
                (name, value) for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED
            )
            headers.update(repeated)
            headers[STREAM] = key.partition("/")[0]  # a message's may be named by its parameter only
            headers.setdefault(ACCEPT, UNPACKED)
            reply = await self._forwarder.forward(key, path, headers, body, timeout_s, query=query)
            returned = {
                name: value for name, value in reply.headers.items() if name.lower() not in NOT_RETURNED
            }
            return web.Response(status=reply.status, headers=returned | repeated, body=reply.body)

        repeated = form.repeated(request)
        repeated.setdefault(REQUEST_ID, self._clock.new_id())
        return await form.or_problem(answer(), repeated)

    async def _on_socket(self, request: web.Request) -> web.StreamResponse:
        async def answer(frame: SocketFrame) -> SocketReply:
            own = {STREAM: stream, REQUEST_ID: self._clock.new_id(), ACCEPT: UNPACKED}
            path = request.rel_url.raw_path
            headers = {**frame.headers, **own}
            reply = await self._forwarder.forward(key, path, headers, frame.body, form.TIMEOUT_S)
            if reply.status != 200:
                failed = {"seq": frame.seq, "problem": msgspec.Raw(reply.body)}
                return SocketReply(msgspec.json.encode(failed), reply.status not in UNREAD)
            is_json = reply.headers.get("Content-Type", "").startswith(JSON)
            result: Any = msgspec.Raw(reply.body) if is_json else reply.body
            return SocketReply(msgspec.json.encode({"seq": frame.seq, "result": result}))

        try:
            key = self._full_key(request)
            stream = key.partition("/")[0]
        except HoldfastError as error:
            return problem.response(error)
        return await serve(request, answer, self._max_body_bytes)

    def _full_key(self, request: web.Request) -> str:
        """Return the full key of a request. Its stream is the one it names, or the only one that nodes
        declare."""
        key = form.key_of(request.rel_url.raw_path)
        return f"{form.stream_of(request, self._served())}/{key}"

    def _served(self) -> frozenset[str]:
        """Return the streams that nodes declare. While no node lives, such as when all must join again, the
        streams of the last nodes count, and requests wait for a node."""
        served = frozenset(name for member in self._view.members.values() for name in member.load.serves)
        self._declared = served or self._declared
        if not self._declared:
            raise Unavailable("no node has joined yet; start one, or send the request again")
        return self._declared

    async def _on_health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_ready(self, request: web.Request) -> web.Response:
        reason = self._not_ready()
        return problem_response(not_ready(reason)) if reason else web.Response(text="ready\n")
