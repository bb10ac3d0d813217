"""The routes of nodes and gateways for queries: ``GET`` and ``POST /query/{stream}/{key}``.

With ``GET`` the request is what the URL's parameters say, an object of texts, or null without any: enough for
a browser, a link or curl. With ``POST`` it is the JSON in the body. Neither changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from holdfast.common.codec import decode_plain
from holdfast.common.message import check_key
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.gateway.node_routes import JSON, PASSED_ON, admit, shown, timeout_of
from holdfast.http import problem
from holdfast.http.bodies import read_body, slow_body, unpacked
from holdfast.http.problem import EPOCH, RequestRefused
from holdfast.http.serving import Handler, Secrets
from holdfast.streams.queries import Queries
from holdfast.streams.spec import StreamSpec

PATH = "/query/"
NUMBER = "X-Commit-Number"
"""The header with the number of the commit that an answer is of."""


class QueryRoutes:
    """The routes of one node. ``queries`` answers; the other arguments are as those of
    :class:`~holdfast.gateway.node_routes.NodeRoutes`."""

    def __init__(
        self,
        specs: Mapping[str, StreamSpec],
        *,
        queries: Queries,
        max_body_bytes: int,
        secret: str | None = None,
        also: str | None = None,
    ) -> None:
        self._specs = specs
        self._queries = queries
        self._max_body_bytes = max_body_bytes
        self._secrets = Secrets(secret, also if secret else None)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes for the node's server."""
        return both(self._on_query)

    async def _on_query(self, request: web.Request) -> web.StreamResponse:
        passed_on = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        try:
            admit(self._secrets, request)
            stream, key = place_of(request.rel_url.raw_path, self._specs)
            timeout_s = timeout_of(request.headers)
            async with asyncio.timeout(timeout_s):
                asked = await self._asked(request)
            full_key = self._specs[stream].full_key(key)
            answered = await self._queries.answer(stream, full_key, asked, timeout_s)
        except TimeoutError:
            return problem.response(slow_body(), passed_on)
        except HoldfastError as error:
            return problem.response(error, passed_on)
        body, kind = shown(answered.body)
        headers = {EPOCH: str(answered.epoch), NUMBER: str(answered.number), **passed_on}
        return web.Response(body=body, content_type=kind, headers=headers)

    async def _asked(self, request: web.Request) -> bytes:
        """Return the request to the handler, as JSON. Raises InvalidMessage, RequestRefused, TooLarge."""
        if request.method == "GET":
            return asked_by(request)
        body = await unpacked(
            await read_body(request, self._max_body_bytes), request.headers, self._max_body_bytes
        )
        if request.content_type != JSON:
            text = f"Content-Type is {request.content_type!r}; the request of a query is {JSON}"
            raise RequestRefused(415, "type", "Unknown content type", text)
        try:
            decode_plain(body)
        except ValueError as error:
            raise InvalidMessage(f"the request can't be read: {error}") from None
        return body


def both(handle: Handler) -> list[web.AbstractRouteDef]:
    """Return the routes of queries."""
    path = f"{PATH}{{place:(?s:.*)}}"
    return [web.get(path, handle, allow_head=False), web.post(path, handle)]


def asked_by(request: web.Request) -> bytes:
    """Return what the parameters of a URL ask, as JSON. Raises InvalidMessage."""
    asked: dict[str, str] = {}
    for name, value in request.query.items():
        if name in asked:
            raise InvalidMessage(f"the parameter {name!r:.100} is given twice; POST a body with a list", name)
        asked[name] = value
    return msgspec.json.encode(asked or None)


def place_of(raw_path: str, declared: Collection[str]) -> tuple[str, str]:
    """Return the declared stream and the key in a request's path, each percent-decoded once. Raises
    RequestRefused, InvalidMessage."""
    parts = raw_path.removeprefix(PATH).split("/")
    if len(parts) != 2 or not all(parts):
        raise RequestRefused(
            404, "no-path", "No such path", f"use {PATH}STREAM/KEY; a '/' in either is written %2F"
        )
    try:
        stream, key = (unquote_to_bytes(part).decode() for part in parts)
    except UnicodeDecodeError:
        raise InvalidMessage("the path is not UTF-8", "key") from None
    if stream not in declared:
        known = ", ".join(sorted(declared))
        raise RequestRefused(
            404, "no-stream", "No such stream", f"there is no stream {stream!r:.100}; there are: {known}"
        )
    return stream, check_key(key, "key")
