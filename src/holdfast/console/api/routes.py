"""All operations of the API, and their routes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from holdfast.assembly.products import operator_parts
from holdfast.console.access import Group
from holdfast.console.api.dead_letters import DeadLetterOperations
from holdfast.console.api.openapi import describe
from holdfast.console.api.operations import JSON, PREFIX, Operation, route
from holdfast.console.api.overview import ClusterOperations
from holdfast.console.api.streams import StreamOperations
from holdfast.console.api.tasks import TaskOperations
from holdfast.console.parts import ConsoleParts
from holdfast.console.products import ConsolePart

DESCRIPTION = f"{PREFIX}/openapi.json"


def operations(parts: ConsoleParts) -> list[Operation]:
    """Return all operations: Holdfast's own, and the products'."""
    return [
        *ClusterOperations(parts).all(),
        *StreamOperations(parts).all(),
        *DeadLetterOperations(parts).all(),
        *TaskOperations(parts).all(),
        *(each for _, part in operator_parts(ConsolePart) for each in part.operations(parts.services)),
    ]


def groups(parts: ConsoleParts) -> list[Group]:
    """Return the routes of the API, with the right that each needs."""
    all_of_them = operations(parts)
    page = msgspec.json.encode(describe(all_of_them))

    async def show(request: web.Request) -> web.Response:
        return web.Response(body=page, content_type=JSON)

    return [
        ("read", [web.get(DESCRIPTION, show, allow_head=False), *_routes(parts, all_of_them, "read")]),
        ("operate", _routes(parts, all_of_them, "operate")),
    ]


def _routes(parts: ConsoleParts, all_of_them: Sequence[Operation], right: str) -> list[web.RouteDef]:
    return [route(each, parts.audit) for each in all_of_them if each.right == right]
