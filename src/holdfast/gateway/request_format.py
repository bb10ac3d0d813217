"""The format of requests to gateways and nodes: paths, headers, timeouts, and errors of what a client sends.

``openapi.json`` beside this module describes it to clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from importlib.resources import files
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from holdfast.common.message import check_key, check_number
from holdfast.common.record import UNREADABLE
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.http import problem
from holdfast.http.bodies import slow_body
from holdfast.http.problem import RequestRefused
from holdfast.http.serving import Handler, Secrets

MESSAGES, QUERIES = "/process/", "/query/"
SEQ, RUN, STREAM, TIMEOUT = "X-Seq", "X-Run", "X-Stream", "X-Timeout-Ms"
DUPLICATE, REQUEST_ID = "X-Duplicate", "X-Request-Id"
COMMIT_NUMBER = "X-Commit-Number"
"""The header with the number of the commit that the answer to a query is from."""

REPEATED = (REQUEST_ID, TRACEPARENT, "tracestate")
"""The headers of a request that the answer repeats."""

JSON, RAW = "application/json", "application/octet-stream"
TIMEOUT_S = 30.0
TIMEOUT_MAX_S = 3600.0


def message_routes(on_post: Handler, on_socket: Handler) -> list[web.AbstractRouteDef]:
    """Return the routes of messages, and of the API's description."""
    path = f"{MESSAGES}{{id:(?s:.*)}}"
    page = files("holdfast.gateway").joinpath("openapi.json").read_bytes()

    async def describe(request: web.Request) -> web.Response:
        return web.Response(body=page, content_type=JSON)

    return [web.post(path, on_post), web.get(path, on_socket), web.get("/openapi.json", describe)]


def query_routes(on_query: Handler) -> list[web.AbstractRouteDef]:
    """Return the routes of queries."""
    path = f"{QUERIES}{{place:(?s:.*)}}"
    return [web.get(path, on_query, allow_head=False), web.post(path, on_query)]


def repeated(request: web.Request) -> dict[str, str]:
    """Return the headers that the answer must repeat."""
    return {name: request.headers[name] for name in REPEATED if name in request.headers}


async def or_problem(
    answer: Awaitable[web.StreamResponse], headers: Mapping[str, str], *, no_421: bool = False
) -> web.StreamResponse:
    """Return the answer, or the problem document of the error that it ends with, with these headers."""
    try:
        return await answer
    except TimeoutError:
        return problem.response(slow_body(), dict(headers))
    except HoldfastError as error:
        return problem.response(error, dict(headers), no_421=no_421)


def check_secret(secrets: Secrets, request: web.Request) -> None:
    """Raise RequestRefused for a request that must show a secret and doesn't."""
    if not secrets.admit(request):
        raise RequestRefused(401, "unauthorized", "Unauthorized", "the secret is missing or wrong")


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
        raise _no_stream(text)
    return name


def key_of(raw_path: str) -> str:
    """Return the key in a message's path, percent-decoded once. Raises RequestRefused, InvalidMessage."""
    [key] = _parts(raw_path.removeprefix(MESSAGES), 1, f"{MESSAGES}STREAM_ID; a '/' in the id", "stream_id")
    return check_key(key, "stream_id")


def query_target(raw_path: str, declared: Collection[str]) -> tuple[str, str]:
    """Return the declared stream and the key in a query's path, each percent-decoded once. Raises
    RequestRefused, InvalidMessage."""
    stream, key = _parts(raw_path.removeprefix(QUERIES), 2, f"{QUERIES}STREAM/KEY; a '/' in either", "key")
    if stream not in declared:
        known = ", ".join(sorted(declared))
        raise _no_stream(f"there is no stream {stream!r:.100}; there are: {known}")
    return stream, check_key(key, "key")


def timeout_of(headers: Mapping[str, str]) -> float:
    """Return how long the client waits, in seconds. Raises InvalidMessage."""
    if TIMEOUT not in headers:
        return TIMEOUT_S
    timeout_s = check_number(headers[TIMEOUT], TIMEOUT, 9) / 1000
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise InvalidMessage(f"{TIMEOUT} must be from 1 to {TIMEOUT_MAX_S * 1000:.0f}", TIMEOUT)
    return timeout_s


def result_body(result: bytes | None) -> tuple[bytes, str]:
    """Return a stored result as a body, and its content type."""
    if result is None:
        return b"null", JSON
    try:
        msgspec.json.decode(result, type=msgspec.Raw)
    except UNREADABLE:
        return result, RAW
    return result, JSON


def _parts(path: str, count: int, form: str, field: str) -> list[str]:
    """Return the decoded parts of a path, of which there must be ``count``."""
    parts = path.split("/")
    if len(parts) != count or not all(parts):
        raise RequestRefused(404, "no-path", "No such path", f"use {form} is written %2F")
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise InvalidMessage("the path is not UTF-8", field) from None


def _no_stream(text: str) -> RequestRefused:
    return RequestRefused(404, "no-stream", "No such stream", text)
