"""Raw messages that clients bring, that are set aside, and that are sent to the queue again."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from holdfast import App, Context, StreamHandler
from holdfast.gateway.node_routes import NodeRoutes
from holdfast.streams.operations import pause, resume
from simulator.loop import SimClock
from tests.streams.town import Town

KEY = "käse/1"
PATH = "/process/k%C3%A4se%2F1"


class Strict(StreamHandler[bytes]):
    """Refuses what ``refused`` names."""

    refused = b""

    def process(self, message: bytes, context: Context) -> Any:
        assert message != Strict.refused, "it must fail"
        return message.decode()


def app(**settings: Any) -> App:
    made = App("t")
    made.stream("s", key=("camera", "key"), message=bytes, max_tries=1, **settings)(Strict)
    return made


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    made = Town(SimClock(Random(0), "town"))
    yield made
    await made.close()


async def client(town: Town, streams: App) -> TestClient[web.Request, web.Application]:
    """A client of the door of the town's only node."""
    node = await town.start(streams)
    served = web.Application()
    served.add_routes(
        NodeRoutes(
            streams.streams,
            node.clock,
            requests=node.work.requests,
            queries=node.work.queries,
            member=lambda: node.id,
            max_body_bytes=1000,
        ).routes()
    )
    return TestClient(TestServer(served))


async def test_what_failed_is_run_under_its_own_key_once_it_is_redriven(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strict, "refused", b"bad")
    async with await client(town, app()) as door:
        async with door.post(PATH, data=b"bad") as response:
            assert response.status == 422
        await town.until(lambda: len(town.letters()) == 1)
        monkeypatch.setattr(Strict, "refused", b"")
        assert await town.queue().redrive([letter.id for letter in town.letters()]) == 1
        await town.until(lambda: town.results(KEY) == ["bad"])
    assert town.letters() == []


async def test_what_a_parked_stream_had_no_room_for_comes_back_in_its_place(town: Town) -> None:
    async with await client(town, app(seq="n", run="film", first_seq=0, inbox_limit=2)) as door:

        async def send(n: int) -> int:
            headers = {"X-Seq": str(n), "X-Run": "3"}
            async with door.post(PATH, data=b"%d" % n, headers=headers) as response:
                return response.status

        assert await send(0) == 200
        await pause(town.state, f"s/{KEY}")
        sending = [asyncio.create_task(send(n)) for n in range(1, 6)]
        await town.until(lambda: len(town.letters()) == 3)
        await resume(town.state, town.queue(), f"s/{KEY}")
        town.nodes[0].work.owners.poke(f"s/{KEY}")
        await town.until(lambda: len(town.results(KEY)) == 6)
        assert sorted(await asyncio.gather(*sending)) == [200, 200, 422, 422, 422]
    assert town.results(KEY) == [str(n) for n in range(6)]
    assert town.letters() == []
