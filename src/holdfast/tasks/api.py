"""A node's ``/v1/tasks``: clients run a task there, retry one, read its state, and cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec
from aiohttp import web

from holdfast.common.message import check_key
from holdfast.common.record import UNREADABLE
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.http import problem
from holdfast.http.bodies import read_body, slow_body, unpacked
from holdfast.http.problem import RequestRefused
from holdfast.http.serving import Secrets
from holdfast.ports.queue import Outgoing
from holdfast.rules.tasks.task import State, Task
from holdfast.system.log import get_logger
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import stored_of, value_of
from holdfast.tasks.producer import Producer, refuse_batch

PATH = "/v1/tasks"
BODY_S = 30.0
"""Seconds within which a request's body must arrive."""

FORM_TYPES = ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
"""Content types that a page of any site may send without the browser's check. They are refused."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/tasks``: a task to run, or only the ``task_id`` of one to retry."""

    task_type: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")
    task_id: str = msgspec.field(default="", name="trace_id")
    group: str = ""
    priority: int = 0
    delay_s: float = 0.0
    at: datetime | None = None
    timeout_s: float | None = None
    tries: int | None = None
    then: list[Asked] = []
    on_failure: list[Asked] = []

    def order(self) -> Order:
        """Return the task to send. Raises InvalidMessage."""
        given = {name: getattr(self, name) for name in self.__struct_fields__} | {
            "body": _body(self.body),
            "then": [each.order() for each in self.then],
            "on_failure": [each.order() for each in self.on_failure],
        }
        return Order(**given)


class TaskStanding(msgspec.Struct):
    """The state of a task, as the API shows it. ``delayed_until`` is when a delayed task may begin.
    ``cancelled``: it was cancelled, and has failed or timed out. ``earlier`` has a line for each attempt
    before the last one."""

    task_id: str = msgspec.field(name="trace_id")
    task_type: str
    state: State
    attempts: int
    progress: float
    note: str
    node: str
    group: str
    value: Any
    value_url: str
    detail: str
    queued_at: float
    started_at: float
    ended_at: float
    pauses: int
    paused_until: float
    delayed_until: float = 0.0
    cancelled: bool = False
    earlier: str = ""


_asked = msgspec.json.Decoder(Asked)

log = get_logger(__name__)


class TaskApi:
    """Answers requests about the tasks of one app. ``run_here`` lets this node begin a task whose message is
    sent; ``stop_here`` ends a task that runs on it."""

    def __init__(
        self,
        types: Iterable[str],
        producer: Producer,
        *,
        run_here: Callable[[str, Outgoing], None],
        stop_here: Callable[[str, str], bool],
        max_body_bytes: int,
        secret: str | None = None,
        also: str | None = None,
    ) -> None:
        self._types = sorted(types)
        self._producer = producer
        self._run_here = run_here
        self._stop_here = stop_here
        self._max_body_bytes = max_body_bytes
        self._secrets = Secrets(secret, also if secret else None)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes for the node's server."""
        page = files(__package__).joinpath("openapi.json").read_bytes()

        async def describe(request: web.Request) -> web.Response:
            return web.Response(body=page, content_type="application/json")

        return [
            web.post(PATH, self._guarded(self._on_send)),
            web.get(f"{PATH}/{{trace}}", self._guarded(self._on_status)),
            web.post(f"{PATH}/{{trace}}/cancel", self._guarded(self._on_cancel)),
            web.get("/v1/openapi.json", describe),
        ]

    def _guarded(
        self, handle: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            try:
                if not self._secrets.admit(request):
                    raise RequestRefused(
                        401, "unauthorized", "Unauthorized", "the secret is missing or wrong"
                    )
                return await handle(request)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("task request failed", error=str(error))  # for operators only
                known = OutcomeUnknown if isinstance(error, OutcomeUnknown) else Unavailable
                return problem.response(known("the queue or the task store does not answer"))
            except HoldfastError as error:
                return problem.response(error)

        return guarded

    async def _on_send(self, request: web.Request) -> web.Response:
        order = await self._read(request)
        known = await self._producer.status(order.task_id) if order.task_id else None
        if known is not None and known.state is State.SUCCEEDED:
            return _duplicate(known)
        if known is not None and known.state is State.RUNNING:
            raise RequestRefused(
                409, "running", "It is running", f"task {known.task_id!r} runs on node {known.node}"
            )
        if known is None and order.task_id and not order.task_type:
            raise _unknown(order.task_id)
        if known is not None and not order.task_type:
            refuse_batch(known)
        task_type = order.task_type or (known.type if known else "")
        for name in (task_type, *sorted(order.types - {order.task_type})):
            if name not in self._types:
                names = ", ".join(self._types)
                raise RequestRefused(
                    404,
                    "no-task-type",
                    "No such task type",
                    f"field 'task_type' is {name!r}; it is one of: {names}",
                )
        delay_s = self._producer.delay_s(order)
        if known is not None and not order.task_type:
            message = await self._producer.retry_stand_in(known, delay_s)
        else:
            message = await self._producer.send_stand_in(order, delay_s, request.headers.get(TRACEPARENT, ""))
        if message is None:  # the task has succeeded meanwhile
            succeeded = await self._producer.status(order.task_id)
            assert succeeded is not None
            return _duplicate(succeeded)
        if not delay_s:
            self._run_here(task_type, message)
        return _sent(message)

    async def _read(self, request: web.Request) -> Order:
        if request.content_type in FORM_TYPES and "Content-Type" in request.headers:
            text = f"Content-Type is {request.content_type}; send application/json"
            raise RequestRefused(415, "type", "Unknown content type", text)
        try:
            async with asyncio.timeout(BODY_S):
                sent = await read_body(request, self._max_body_bytes)
        except TimeoutError:
            raise slow_body() from None
        data = await unpacked(sent, request.headers, self._max_body_bytes)
        try:
            asked = _asked.decode(data)
        except UNREADABLE as error:
            raise _no_task(error) from None
        if asked.task_id:
            check_key(asked.task_id, "trace_id")
        return asked.order()

    async def _on_status(self, request: web.Request) -> web.Response:
        return _answer(shown(await self._known(request)))

    async def _on_cancel(self, request: web.Request) -> web.Response:
        task = await self._known(request)
        if task.ended:
            raise RequestRefused(
                409, "ended", "It has ended", f"task {task.task_id!r} is {task.state.value} already"
            )
        why = request.query.get("reason", "") or "over HTTP"
        cancelled = await self._producer.cancel(task.task_id, why)
        self._stop_here(task.task_id, why)
        return _answer(shown(cancelled or task), 202)

    async def _known(self, request: web.Request) -> Task:
        raw = request.rel_url.raw_path.removeprefix(f"{PATH}/").removesuffix("/cancel")
        try:
            task_id = check_key(unquote_to_bytes(raw).decode(), "trace")
        except UnicodeDecodeError:
            raise InvalidMessage("field 'trace' isn't UTF-8", "trace") from None
        task = await self._producer.status(task_id)
        if task is None:
            raise _unknown(task_id)
        return task


def follow_up(text: str) -> Order:
    """Return the task that a JSON object describes as ``POST /v1/tasks`` takes it. Raises InvalidMessage."""
    try:
        return _asked.decode(text).order()
    except UNREADABLE as error:
        raise _no_task(error) from None


def _unknown(task_id: str) -> RequestRefused:
    return RequestRefused(404, "no-task", "Task not found", f"no task {task_id!r} is known, or not any more")


def _body(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE as error:
        raise _no_task(error) from None


def _no_task(error: Exception) -> InvalidMessage:
    return InvalidMessage(f"it must be a JSON object with a task to send: {error}")


def shown(task: Task) -> TaskStanding:
    """Return a task's state as the API and the command line show it."""
    is_queued, stored = task.state is State.QUEUED, stored_of(task)
    same = {name: getattr(task, name) for name in TaskStanding.__struct_fields__ if hasattr(task, name)}
    changed = {
        "task_type": task.type,
        "progress": task.progress or _counted(task.members),
        "value": value_of(task),
        "value_url": "" if stored is None else stored.url,
        "paused_until": task.until if is_queued else 0.0,
        "delayed_until": task.send_at if is_queued else 0.0,
    }
    return TaskStanding(**same | changed)


def _counted(members: str) -> float:
    """Return how much of a batch has ended."""
    return 1.0 - members.count("0") / len(members) if members else 0.0


def _sent(message: Outgoing) -> web.Response:
    return _answer({"trace_id": message.key}, 202, {"Location": f"{PATH}/{quote(message.key, safe='')}"})


def _duplicate(task: Task) -> web.Response:
    """Answer a repeated request for a task that has succeeded with its outcome."""
    return _answer(shown(task), headers={"X-Duplicate": "true"})


def _answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=headers
    )
