"""What the API says of streams, and does to them."""

from __future__ import annotations

import asyncio
import base64
from urllib.parse import quote

import pytest

from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services
from tests.console.api.conftest import Api

LOOK_S = 0.02
PATIENCE_S = 30.0


async def indexed(api: Api, count: int, query: str) -> None:
    """Wait until the console's index has so many streams."""
    async with asyncio.timeout(PATIENCE_S):
        while (await api.get(f"/streams?{query}"))["total"] < count:
            await api.console.parts.clock.sleep(LOOK_S)


async def handled(node: NodeForTests, camera: str, *frames: int) -> None:
    """Send frames of a camera, and wait until they are handled."""
    for frame in frames:
        node.stream("frames").send({"camera": camera, "frame": frame})
    await asyncio.to_thread(node.results, "frames")


@pytest.mark.slow
async def test_streams_are_searched_sorted_and_paged(api: Api, node: NodeForTests) -> None:
    for number in range(5):
        await handled(node, f"paged-{number}", *range(number + 1))
    await indexed(api, 5, "text=PAGED-")
    keys, cursor = [], ""
    while True:
        page = await api.get(f"/streams?text=paged-&limit=2&cursor={cursor}")
        assert page["total"] == 5
        keys += [stream["key"] for stream in page["streams"]]
        cursor = page["next"]
        if not cursor:
            break
    assert keys == [f"paged-{number}" for number in range(5)]
    busiest = await api.get("/streams?text=paged-&sort=done&down=true&limit=2")
    assert [(each["key"], each["done"]) for each in busiest["streams"]] == [("paged-4", 5), ("paged-3", 4)]
    more = await api.get(f"/streams?text=paged-&sort=done&down=true&limit=2&cursor={busiest['next']}")
    assert [each["key"] for each in more["streams"]] == ["paged-2", "paged-1"]
    assert (await api.get("/streams?stream=other"))["total"] == 0


async def test_a_page_by_key_goes_on_though_the_last_stream_is_gone(api: Api, node: NodeForTests) -> None:
    from holdfast.console.api.lists import cursor

    for name in ("gone-a", "gone-c"):
        await handled(node, name, 0)
    await indexed(api, 2, "text=gone-")
    after = cursor(17, "frames/gone-b")
    page = await api.get(f"/streams?text=gone-&cursor={after}")
    assert [each["key"] for each in page["streams"]] == ["gone-c"]
    page = await api.get(f"/streams?text=gone-&down=true&cursor={after}")
    assert [each["key"] for each in page["streams"]] == ["gone-a"]


async def test_one_stream_says_where_it_is_and_what_it_waits_for(api: Api, node: NodeForTests) -> None:
    await handled(node, "shown", 0, 1)
    found = await api.get("/streams/frames/shown")
    assert (found["checkpoint"]["seq"], found["checkpoint"]["done"]) == (1, 2)
    assert found["why"]["key"] == "frames/shown"
    assert [each["result"] for each in found["results"]] == [
        {"frame": 1, "count": 2},
        {"frame": 0, "count": 1},
    ]
    assert (found["timers"], found["effects"]) == ([], [])
    [member] = api.console.parts.overview.members
    [commit] = [event for event in found["life"] if event["text"].startswith("last commit")]
    assert (commit["node"], commit["at"]) == (member.name, found["checkpoint"]["at"])
    assert found["life"][-1] == {"at": "", "text": "run 0: from seq 0 to 1", "node": ""}


async def test_a_stream_without_seqs_shows_the_results_of_its_latest_messages(
    api: Api, node: NodeForTests
) -> None:
    for by in ("ann", "bob"):
        node.stream("visits").send({"door": "front", "by": by}, message_id=by)
    results = await asyncio.to_thread(node.results, "visits", 3)
    assert ("close", "close front") in [(result.timer, result.value) for result in results]
    found = await api.get("/streams/visits/front")
    assert sorted((each["seq"], each["result"]) for each in found["results"]) == [
        ("ann", "ann"),
        ("bob", "bob"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["a/b/c", "<script>alert(1)</script>", "ключ 1%2F?#", "../..", "%00"])
async def test_any_key_can_be_looked_at_and_paused(api: Api, node: NodeForTests, key: str) -> None:
    await handled(node, key, 0)
    path = f"/streams/frames/{quote(key, safe='')}"
    assert (await api.get(path))["checkpoint"]["key"] == key
    assert (await api.do("POST", f"{path}/pause"))["parked"] == "paused"
    await indexed(api, 1, f"standing=parked&text={quote(key, safe='')}")
    assert (await api.do("POST", f"{path}/resume", {}))["stream"]["parked"] == ""


async def test_a_skip_passes_over_what_is_missing_and_only_once(api: Api, node: NodeForTests) -> None:
    await handled(node, "skipped", 0)
    node.stream("frames").send({"camera": "skipped", "frame": 3})
    path = "/streams/frames/skipped"
    record = await api.do("POST", f"{path}/skip", {"through": 2})
    assert record["seq"] == 2
    await asyncio.to_thread(node.results, "frames")
    found = await api.get(path)
    assert (found["checkpoint"]["seq"], found["checkpoint"]["skipped"]) == (3, 2)
    said = await api.send("POST", f"{path}/skip", {"through": 2})
    assert (said.status, said.kind) == (409, "application/problem+json")
    assert "passed already" in said.body["detail"]
    said = await api.send("POST", f"{path}/skip", {"run": 2})
    assert said.status == 400
    assert "'run'" in said.body["detail"]


async def test_a_move_names_the_nodes_that_there_are(api: Api, node: NodeForTests) -> None:
    await handled(node, "moved", 0)
    said = await api.send("POST", "/streams/frames/moved/move", {"to": "nobody"})
    assert said.status == 404
    assert "no node is called 'nobody'; there are:" in said.body["detail"]
    name = (await api.get("/overview"))["nodes"][0]["name"]
    moved = await api.do("POST", "/streams/frames/moved/move", {"to": name})
    assert moved == {"key": "frames/moved", "source": name, "target": name, "was_there": True}


@pytest.mark.parametrize("act", ["pause", "resume", "skip", "reset", "drop-effects"])
async def test_what_is_done_to_a_stream_that_nobody_knows_is_refused(api: Api, act: str) -> None:
    body = {"all": True} if act == "drop-effects" else {}
    said = await api.send("POST", f"/streams/frames/unknown/{act}", body)
    assert (said.status, said.body["type"]) == (404, "urn:holdfast:not-known")


async def test_messages_are_sent_in_order_and_warn_of_a_misspelt_stream(
    api: Api, node: NodeForTests, services: Services
) -> None:
    messages = [{"body": {"camera": "sent", "frame": frame}} for frame in range(3)]
    assert await api.do("POST", "/streams/frames/messages", {"messages": messages}) == {
        "sent": 3,
        "warning": "",
    }
    found = await asyncio.to_thread(node.results, "frames")
    assert [each.seq for each in found if each.key == "sent"] == [0, 1, 2]
    raw = {"messages": [{"body_base64": base64.b64encode(b"\xff\x00").decode(), "key": "x", "seq": 7}]}
    said = await api.do("POST", "/streams/misspelt/messages", raw)
    assert "no node runs a stream 'misspelt'" in said["warning"]
    (delivery,) = await services.queue("misspelt").receive(1, 0.0, 1.0, "test")
    assert (delivery.body, delivery.attributes) == (b"\xff\x00", {"key": "x", "seq": "7"})


@pytest.mark.parametrize(
    "message, told",
    [
        ({}, "messages[0]: give either 'body' or 'body_base64'"),
        ({"body": 1, "body_base64": "AA=="}, "messages[0]: give either"),
        ({"body_base64": "AA"}, "messages[0]: field 'body_base64' isn't Base64"),
        ({"body": {}, "seq": -1}, "$.messages[0].seq"),
        ({"body": {}, "seq": "1"}, "$.messages[0].seq"),
        ({"body": {}, "colour": "red"}, "unknown field `colour`"),
        ({"body": {}, "delay_s": 1e300}, "messages[0]: field 'delay_s'"),
        ({"body": {}, "key": ""}, "'key'"),
        ({"body": {}, "key": "a\0b"}, "'key' holds U+0000"),
        ({"body": [1], "key": "a"}, "JSON object"),
    ],
)
async def test_a_wrong_message_is_named_and_none_is_sent(
    api: Api, services: Services, message: dict[str, object], told: str
) -> None:
    good = {"body": {"camera": "unsent", "frame": 0}}
    said = await api.send("POST", "/streams/wrong/messages", {"messages": [message, good]})
    assert said.status == 400
    assert told in said.body["detail"]
    assert (await services.queue("wrong").depth()).ready == 0
