"""Dead letters by the API: what is redriven or purged is exactly what was looked at."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import Unavailable
from holdfast.operate import dead_letters
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import Commit, RunLog
from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services
from tests.console.api.conftest import Api

QUEUE = "letters"


def letter(number: int, reason: str = "broken", body: bytes = b"{}") -> DeadLetter:
    return DeadLetter(
        id=f"{QUEUE}/cam-1:0:{number:039d}",
        body=body,
        reason=reason,
        detail="Traceback\n" * 5000,
        stream=QUEUE,
        key="cam-1",
        seq=f"{number:039d}",
    )


@pytest.fixture
async def letters(services: Services) -> list[str]:
    """Five dead letters; returns their ids."""
    queue = services.queue(QUEUE)
    while old := await queue.dead_letters(1000):
        await queue.purge([each.id for each in old])
    made = [letter(number, "late" if number % 2 else "broken") for number in range(5)]
    await queue.bury(made)
    return [each.id for each in made]


async def left(services: Services) -> list[str]:
    return [each.id for each in await services.queue(QUEUE).dead_letters(1000)]


async def test_they_are_listed_by_page_and_by_reason(api: Api, letters: list[str]) -> None:
    ids, cursor = [], ""
    while True:
        page = await api.get(f"/dead-letters?queue={QUEUE}&limit=2&cursor={cursor}")
        assert [each["id"] for each in page["letters"]] == page["ids"]
        ids += page["ids"]
        cursor = page["next"]
        if not cursor:
            break
    assert ids == letters
    late = await api.get(f"/dead-letters?queue={QUEUE}&reason=late")
    assert late["ids"] == [letters[1], letters[3]]
    assert not late["hides"]
    assert (await api.get(f"/dead-letters?queue={QUEUE}&key=other"))["ids"] == []


async def test_large_bodies_and_tracebacks_are_cut(api: Api, letters: list[str], services: Services) -> None:
    await services.queue(QUEUE).bury([letter(9, "large", b"x" * 100_000)])
    (found,) = (await api.get(f"/dead-letters?queue={QUEUE}&reason=large"))["letters"]
    assert found["body_bytes"] == 100_000
    assert "body" not in found
    assert len(found["body_begins_base64"]) < 25_000
    assert len(found["detail"]) == 8_000


async def test_letters_that_would_come_back_are_named_where_they_are_looked_at(
    api: Api, letters: list[str], services: Services
) -> None:
    path = f"/dead-letters?queue={QUEUE}"
    assert (await api.get(path))["warning"] == ""
    checkpoint = await services.state().open(f"{QUEUE}/cam-1", 0, "test")
    await services.state().commit(
        Commit(checkpoint.key, checkpoint.epoch, 1, "a", RunLog(0, 0, 2), identities=("0:2",), window=9)
    )
    warning = (await api.get(path))["warning"]
    assert f"passed the places of 3 of these, such as {letters[0]}:" in warning


async def test_a_redrive_takes_exactly_what_was_previewed(
    api: Api, letters: list[str], services: Services
) -> None:
    preview = await api.get(f"/dead-letters?queue={QUEUE}&reason=late")
    await services.queue(QUEUE).bury([letter(7, "late")])  # came after the preview
    done = await api.do("POST", "/dead-letters/redrive", {"queue": QUEUE, "ids": preview["ids"][::-1]})
    assert done == {"asked": 2, "done": 2, "missing": [], "failed": []}
    assert await left(services) == [letters[0], letters[2], letters[4], letter(7).id]
    sent = await services.queue(QUEUE).receive(10, 0.0, 1.0, "test")
    assert len(sent) == 2
    again = await api.do("POST", "/dead-letters/redrive", {"queue": QUEUE, "ids": preview["ids"]})
    assert again == {"asked": 2, "done": 0, "missing": preview["ids"], "failed": []}


async def test_a_purge_removes_exactly_the_letters_it_names(
    api: Api, letters: list[str], services: Services
) -> None:
    chosen = [letters[0], letters[4]]
    done = await api.do("POST", "/dead-letters/purge", {"queue": QUEUE, "ids": [*chosen, "letters/none:0:1"]})
    assert (done["done"], done["missing"]) == (2, ["letters/none:0:1"])
    assert await left(services) == letters[1:4]
    assert (await services.queue(QUEUE).depth()).ready == 0


async def test_a_failed_task_that_is_redriven_gets_its_tries_again(api: Api, node: NodeForTests) -> None:
    sent = await api.do("POST", "/tasks/shop", {"task_type": "mail.send", "body": {"bad": True}})
    trace = sent["trace_id"]
    await asyncio.to_thread(node.outcome, trace)
    before = await api.get(f"/tasks/shop/{trace}")
    found = await api.get("/dead-letters?queue=shop-mail-send")
    (dead,) = [each["id"] for each in found["letters"] if each["key"] == trace]
    done = await api.do("POST", "/dead-letters/redrive", {"queue": "shop-mail-send", "ids": [dead]})
    assert (done["done"], done["failed"]) == (1, [])
    async with asyncio.timeout(30.0):
        while (task := await api.get(f"/tasks/shop/{trace}"))["ended_at"] <= before["ended_at"]:
            await api.console.parts.clock.sleep(0.02)
    assert (task["state"], task["attempts"]) == ("failed", 1), "it began anew, and failed as it did before"


@pytest.mark.parametrize(
    "query, told",
    [
        ("", "queue"),
        ("queue=letters&limit=0", "limit"),
        ("queue=letters&limit=100000", "limit"),
        ("queue=letters&limit=x", "limit"),
        ("queue=letters&cursor=x", "'cursor'"),
        ("queue=letters&cursor=WzFd", "'cursor'"),
        ("queue=letters&queue=others", "given twice"),
        ("queue=letters&colour=red", "unknown field `colour`"),
    ],
)
async def test_a_wrong_parameter_of_dead_letters_is_named(
    api: Api, letters: list[str], query: str, told: str
) -> None:
    said = await api.raw("GET", f"/api/v1/dead-letters?{query}")
    assert (said.status, said.kind) == (400, "application/problem+json")
    assert told in said.body["detail"]


async def test_nobody_has_an_unknown_queue_opened_by_looking(reader: Api, services: Services) -> None:
    said = await reader.raw("GET", "/api/v1/dead-letters?queue=unheard-of")
    assert said.status == 404
    assert "GET /api/v1/overview" in said.body["detail"]


async def test_without_the_task_store_letters_of_streams_are_sent_again_and_no_others(
    api: Api, letters: list[str], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: Services) -> list[str]:
        raise Unavailable("the task store is away")

    async def streams(_: Services) -> list[str]:
        return names

    monkeypatch.setattr(Services, "task_apps", away)
    monkeypatch.setattr(dead_letters, "stream_names", streams)
    wish = {"queue": QUEUE, "ids": letters[:1]}
    names: list[str] = []
    refused = await api.send("POST", "/dead-letters/redrive", wish)
    assert (refused.status, await left(services)) == (503, letters)
    names.append(QUEUE)
    assert (await api.do("POST", "/dead-letters/redrive", wish))["done"] == 1
    assert await left(services) == letters[1:]
