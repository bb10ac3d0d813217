"""One operation of the API: what it takes and returns, and how a request becomes a call of it.

Path, parameters and body are checked against declared types first. Undeclared fields are refused, because a
misspelt one would do nothing. ``GET`` only reads; every other operation changes something, needs the right
``operate``, and is in the audit log: its intent before it begins, its outcome afterwards. A change that has
begun continues if its caller hangs up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from holdfast.common.codec import NEST_MAX, TOO_DEEP, nests_deeply
from holdfast.common.message import check_key
from holdfast.common.record import UNREADABLE
from holdfast.common.traceparent import TRACEPARENT, checked
from holdfast.console.access import caller_of
from holdfast.console.audit import AuditLog
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.http.bodies import read_body, slow_body
from holdfast.http.problem import RequestRefused
from holdfast.operate.actions import Action, NoFields, SubjectT, audited_fields
from holdfast.system.spans import called_from
from holdfast.wiring.services import Services

PREFIX = "/api/v1"
BODY_BYTES_MAX = 1 << 20
"""The most bytes of a request's body by default."""

BODY_S = 30.0
"""Seconds that a request's body may take to arrive."""

JSON = "application/json"
NO_NAME = "(no name)"
"""The caller in the audit log if the console knows no names."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")


@dataclass
class Call(Generic[QueryT, BodyT]):
    """One call of an operation.

    Attributes:
        path: the parts of the path by their names, decoded.
        query: the parameters.
        body: the body.
        outcome: the text in the audit log of a change that has succeeded.
    """

    path: Mapping[str, str]
    query: QueryT
    body: BodyT
    outcome: str = ""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation.

    Attributes:
        method: the HTTP method.
        path: its path below ``/api/v1``, with names of its parts in braces.
        name: its name for programs, such as ``pauseStream``.
        summary: what it does, in a sentence.
        act: performs it; its return value is the answer, in JSON.
        answer: the type of the answer.
        query: the parameters, as a struct.
        body: the body, as a struct; None for an operation that takes none.
        action: what the audit log calls a change, such as ``pause``.
        subject: what the audit log says is changed; the parts of the path by default.
        tag: the group of operations that it belongs to.
        status: the status of a success.
        body_bytes_max: the largest body.
        description: more than the summary says.
    """

    method: Method
    path: str
    name: str
    summary: str
    act: Callable[[Call[Any, Any]], Awaitable[Any]]
    answer: Any
    query: type[msgspec.Struct] = NoFields
    body: type[msgspec.Struct] | None = None
    action: str = ""
    subject: Callable[[Call[Any, Any]], str] | None = None
    tag: str = ""
    status: int = 200
    body_bytes_max: int = BODY_BYTES_MAX
    description: str = ""
    parts: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(re.findall(r"{(\w+)}", self.path)))

    @property
    def changes(self) -> bool:
        """True if it changes something."""
        return self.method != "GET"

    @property
    def right(self) -> Literal["read", "operate"]:
        """The right that it needs."""
        return "operate" if self.changes else "read"


def route(operation: Operation, audit: AuditLog) -> web.RouteDef:
    """Return the route of an operation."""
    names = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", f"{PREFIX}{operation.path}"))

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            call = await _call(operation, names, request)
            if operation.changes:
                with called_from(checked(request.headers.get(TRACEPARENT, ""))):
                    change = asyncio.ensure_future(_audited(operation, call, audit, caller_of(request).name))
                answer = await asyncio.shield(change)
            else:
                answer = await operation.act(call)
            body = msgspec.json.encode(answer)
        except ConfigError as error:
            raise RequestRefused(422, "setting", "A value can't be used", str(error)) from error
        return web.Response(body=body, status=operation.status, content_type=JSON)

    return web.route(operation.method, f"{PREFIX}{operation.path}", serve)


async def _audited(operation: Operation, call: Call[Any, Any], audit: AuditLog, who: str) -> Any:
    subject = operation.subject(call) if operation.subject else "/".join(call.path.values())
    details = audited_fields(call.body) if isinstance(call.body, msgspec.Struct) else {}
    name = operation.action or operation.name
    async with audit.doing(who or NO_NAME, name, subject, details) as under_way:
        answer = await operation.act(call)
        under_way.text = call.outcome
    return answer


def described(
    act: Callable[[Call[Any, Any]], Awaitable[Any]], method: Method, path: str, name: str, **more: Any
) -> Operation:
    """Return the operation of a function. Its signature has the types of parameters, body and answer, and its
    docstring the summary and the description. ``more`` are further attributes."""
    hints = get_type_hints(act, include_extras=True)
    query, body = get_args(hints["call"])
    summary, _, description = (" ".join(each.split()) for each in (act.__doc__ or "").partition("\n\n"))
    return Operation(
        method=method,
        path=path,
        name=name,
        summary=summary,
        description=description,
        act=act,
        answer=hints["return"],
        query=query,
        body=None if body is NoneType else body,
        **more,
    )


def derived(
    action: Action[SubjectT],
    path: str,
    subject: Callable[[Mapping[str, str]], SubjectT],
    services: Services,
) -> Operation:
    """Return the operation of an action. ``subject`` finds its subject by the parts of the path."""

    async def act(call: Call[NoFields, Any]) -> Any:
        done = await action.act(services, subject(call.path), call.body)
        call.outcome = done.text
        return done.answer

    return Operation(
        method="POST",
        path=f"{path}/{action.verb}",
        name=action.name,
        action=action.audit or action.verb,
        summary=action.summary,
        act=act,
        answer=action.answer,
        body=action.input,
        status=action.status,
    )


# --- requests


async def _call(operation: Operation, names: re.Pattern[str], request: web.Request) -> Call[Any, Any]:
    return Call(_path(names, request), _query(operation, request), await _body(operation, request))


def _path(names: re.Pattern[str], request: web.Request) -> dict[str, str]:
    found = names.fullmatch(request.rel_url.raw_path)
    if found is None:
        raise RequestRefused(404, "no-path", "No such path", "/ in a part of the path is written as %2F")
    parts = {}
    for name, raw in found.groupdict().items():
        try:
            parts[name] = check_key(unquote_to_bytes(raw).decode(), name)
        except UnicodeDecodeError:
            raise InvalidMessage(f"{name!r} in the path isn't UTF-8", name) from None
        if name in ("stream", "app") and "/" in parts[name]:
            raise InvalidMessage(f"{name!r} in the path holds '/', which no such name has", name)
    return parts


def _query(operation: Operation, request: web.Request) -> msgspec.Struct:
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name in given:
            raise InvalidMessage(f"parameter {name!r} is given twice; give it once", name)
        given[name] = value
    try:
        return msgspec.convert(given, operation.query, strict=False)
    except UNREADABLE as error:
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(operation.query)) or "none"
        raise InvalidMessage(f"the parameters are wrong: {error}. There are: {known}") from None


async def _body(operation: Operation, request: web.Request) -> Any:
    if operation.body is None:
        if request.body_exists and await _read(request, 0):
            raise InvalidMessage(f"{operation.name} takes no body")
        return None
    data = await _read(request, operation.body_bytes_max)
    if data and "Content-Type" in request.headers and request.content_type != JSON:
        text = f"Content-Type is {request.content_type[:100]!r}; send {JSON}"
        raise RequestRefused(415, "type", "Unknown content type", text)
    try:
        if nests_deeply(data):
            raise ValueError(f"{TOO_DEEP} ({NEST_MAX})")
        return msgspec.json.decode(data or b"{}", type=operation.body)
    except UNREADABLE as error:
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(operation.body))
        raise InvalidMessage(f"the body is wrong: {error}. It is a JSON object with: {known}") from None


async def _read(request: web.Request, limit: int) -> bytes:
    if "Content-Encoding" in request.headers:
        text = "Content-Encoding is set; send the body as it is"
        raise RequestRefused(415, "type", "Unknown content encoding", text)
    try:
        async with asyncio.timeout(BODY_S):
            return await read_body(request, limit)
    except TimeoutError:
        raise slow_body() from None
    except TooLarge:
        raise TooLarge(f"the body is over {limit} bytes, the most that this takes") from None
