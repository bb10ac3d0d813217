"""The pages that list models."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from holdfast.gateway import models
from holdfast.rules.cluster.placement import Load, Member
from holdfast.streams.models import ModelSpec
from holdfast.streams.work import StreamWork


async def page(route: web.RouteDef) -> Any:
    app = web.Application()
    app.add_routes([route])
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/v1/models")
        assert response.status == 200
        return await response.json()


async def test_a_node_lists_what_it_declares() -> None:
    specs = {
        "people": ModelSpec(name="people", load=list, memory_mb=400),
        "cars": ModelSpec(name="cars", load=list),
    }
    owners = [SimpleNamespace(spec=SimpleNamespace(models=used)) for used in (("people",), ("people",), ())]
    obstacles = SimpleNamespace(streams={"frames": SimpleNamespace(model="cars", reason="no file")})
    pool = SimpleNamespace(models=Counter(people=2), loading=Counter(people=1))
    work = cast("StreamWork", SimpleNamespace(owners=owners, pool=pool, obstacles=obstacles))
    assert await page(models.of_node(specs, work)) == {
        "models": [
            {"name": "cars", "memory_mb": 0, "slots": 0, "loading": 0, "streams": 0, "error": "no file"},
            {"name": "people", "memory_mb": 400, "slots": 2, "loading": 1, "streams": 2, "error": ""},
        ]
    }


async def test_a_gateway_lists_who_has_what() -> None:
    members = [
        Member("3", "node-b", "", Load(models=("people", "cars"))),
        Member("1", "node-a", "", Load(models=("people",))),
        Member("2", "node-c", ""),
    ]
    assert await page(models.of_members(lambda: members)) == {
        "models": [
            {"name": "cars", "nodes": ["node-b"]},
            {"name": "people", "nodes": ["node-a", "node-b"]},
        ]
    }
