"""``GET /v1/models``: the models of one node, or, at a gateway, which nodes have which models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from holdfast.ports.coordinator import Member
from holdfast.streams.models import ModelSpec
from holdfast.streams.work import StreamWork

PATH = "/v1/models"


def of_node(specs: Mapping[str, ModelSpec], work: StreamWork) -> web.RouteDef:
    """Return the route of a node that declares ``specs``. It shows each model's memory, the number of slots
    that have loaded it or load it now, the number of owned streams that use it, and the error if it doesn't
    load."""

    async def show(request: web.Request) -> web.Response:
        pool = work.pool
        loaded, loading = pool.models, pool.loading
        streams = Counter(model for entry in work.owners for model in entry.spec.models)
        errors = {known.model: known.reason for known in work.obstacles.streams.values()}
        return _page(
            {
                "name": name,
                "memory_mb": spec.memory_mb,
                "slots": loaded[name],
                "loading": loading[name],
                "streams": streams[name],
                "error": errors.get(name, ""),
            }
            for name, spec in sorted(specs.items())
        )

    return web.get(PATH, show)


def of_members(members: Callable[[], Iterable[Member]]) -> web.RouteDef:
    """Return the route of a gateway. It shows the names of the nodes that have each model loaded."""

    async def show(request: web.Request) -> web.Response:
        nodes: dict[str, list[str]] = {}
        for member in members():
            for model in member.load.models:
                nodes.setdefault(model, []).append(member.name)
        return _page({"name": name, "nodes": sorted(where)} for name, where in sorted(nodes.items()))

    return web.get(PATH, show)


def _page(models: Iterable[dict[str, Any]]) -> web.Response:
    return web.Response(body=msgspec.json.encode({"models": list(models)}), content_type="application/json")
