"""What the pages show of a node on SQLite, and what their forms do to it."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from holdfast import Order
from holdfast.cluster.effect_dead_letters import dead_letter_of
from holdfast.common.acts import effect_id
from holdfast.console.audit import AuditLog
from holdfast.console.overview import Sample, TaskTotals
from holdfast.console.pages.tasks import TaskQuestion
from holdfast.console.service import Console
from holdfast.errors import Unavailable
from holdfast.operate import periodic, tasks
from holdfast.operate.dead_letters import ids_in_order
from holdfast.operate.survey import PendingEffects, QueueStatus
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.peer import Peer
from holdfast.ports.state import Risk
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.tasks.task import ReturnAttempt, StartAttempt, Task
from holdfast.streams.waiting_streams import StreamWait
from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services
from tests.console.browser import Browser
from tests.console.conftest import HOSTILE, LET_GO

PREVIEW = re.compile(r'name="preview" value="([^"]+)"')


def shown(text: str) -> str:
    """What a page says, without its tags."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text)))


# --- what is shown


@pytest.mark.slow
async def test_the_overview_tells_what_there_is_and_what_needs_somebody(reader: Browser) -> None:
    page = await reader.until("dead letter of cameras", "/")
    text = shown(page.text)
    assert "Nodes 1" in text
    assert "1 dead letter of cameras" in text
    assert "calls per message" not in text, "on SQLite nothing is paid by the call"
    assert '/dead-letters?queue=cameras"' in page.text
    assert len(page.text) < 150_000


@pytest.mark.slow
async def test_all_that_needs_somebody_has_a_next_step(console: Console, reader: Browser) -> None:
    await reader.until("dead letters", "/")
    overview, index = console.parts.overview, console.parts.index
    overview.troubles = ["node-1 does not answer"]
    overview.undeclared = ["no node runs 'x'"]
    overview.queues = {
        f"q{number}": QueueStatus(f"q{number}", dead=number, error="away" * (number == 9))
        for number in range(12)
    }
    overview.tasks = [TaskTotals("shop", {}, "away")]
    overview.risks = [("state_url", Risk("redis:1", "failed", "it may forget", "set appendonly"))]
    index.waits = {
        f"a/{number}": StreamWait(f"a/{number}", "gap", "seq 1", 90.0, 0.0, 1) for number in range(7)
    }
    index.effects = {"a/1": PendingEffects("a/1", 1, 90.0, "mail")}
    needs = overview.needs()
    labels = {"waits long", "unsent", "dead letters", "node", "queue", "no node", "tasks", "risk"}
    assert labels <= {need.label for need in needs}
    assert [need.text for need in needs if not (need.link or need.command)] == []
    overview.samples.clear()
    overview.samples.append(Sample(None, waiting=0, dead=overview.dead - 1, running=0))
    [growing] = [need.text for need in overview.needs() if need.label == "growing"]
    assert growing == "1 dead letter more than at the beginning of the chart"


@pytest.mark.slow
async def test_a_long_wait_is_told_with_its_next_step(
    console: Console, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.console.overview.LONG_S", 0.0)
    page = await reader.until("holdfast why cameras/late", "/")
    assert "waits for seq 1 to 3 of run 0" in shown(page.text)
    assert 'href="/stream?key=cameras%2Flate"' in page.text


@pytest.mark.slow
async def test_streams_are_listed_with_owner_and_what_they_wait_for(reader: Browser) -> None:
    page = await reader.until("waits for seq 1 to 3", "/streams")
    keys = ("front", "late", "broken", HOSTILE)
    assert [key for key in keys if f"cameras/{key}" not in unescape(page.text)] == []
    found = await reader.get("/streams", text="FRONT")
    assert "1 stream 1 to 1" in shown(found.text)
    waiting = await reader.get("/streams", standing="waiting")
    assert "cameras/late" in waiting.text
    assert "cameras/front" not in waiting.text
    late = await reader.until(">(1)<", "/streams", stream="cameras", standing="waiting")
    assert "cameras/late" in late.text
    await reader.until("1 message<", "/stream", key="cameras/late")


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "nonsense"},
        {"from": "-1"},
        {"from": "9" * 50},
        {"from": "٣"},
        {"standing": "x"},
        {"text": "%00\x00" * 1000},
        {"down": "yes", "stream": "../"},
    ],
    ids=str,
)
async def test_a_question_that_makes_no_sense_gets_a_page(reader: Browser, query: dict[str, Any]) -> None:
    assert (await reader.get("/streams", **query)).status == 200


async def test_a_stream_tells_what_it_waits_for_and_what_it_did(reader: Browser) -> None:
    page = await reader.get("/stream", key="cameras/late")
    assert "waits for seq 1 to 3 of run 0" in shown(page.text)
    front = await reader.get("/stream", key="cameras/front")
    text = shown(front.text)
    assert '"frame": 2' in text
    assert "run 0: from seq 0 to 2" in text
    [node] = reader.console.parts.overview.members
    assert f"last commit on {node.name}: number" in text


async def test_looks_at_streams_share_one_connection_to_nodes(
    reader: Browser, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Peer] = []
    peer = services.peer

    def make() -> Peer:
        made.append(peer())
        return made[-1]

    monkeypatch.setattr(services, "peer", make)
    for _ in range(3):
        reader.console.parts.cache.clear()
        assert (await reader.get("/stream", key="cameras/late")).status == 200
    assert len(made) <= 1, "each look left a connection open"


async def test_a_streams_failures_are_part_of_its_life_with_their_node(reader: Browser) -> None:
    await reader.until('href="/dead-letter?', "/dead-letters", queue="cameras", key="broken")
    page = await reader.get("/stream", key="cameras/broken")
    [node] = reader.console.parts.overview.members
    assert f"0:0 was set aside on {node.name}: ValueError: a bad frame" in shown(page.text)
    assert "/dead-letters?queue=cameras&amp;key=broken" in page.text


@pytest.mark.parametrize("key", ["", "cameras", "cameras/", "/x", "cameras/unknown", "x/" + "y" * 5000])
async def test_a_stream_that_isnt_there_is_no_failure(reader: Browser, key: str) -> None:
    assert (await reader.get("/stream", key=key)).status == 404


@pytest.mark.slow
async def test_a_hostile_key_and_its_results_run_nowhere(operator: Browser) -> None:
    key = f"cameras/{HOSTILE}"
    await operator.until(key, "/streams")
    pages = [
        await operator.get("/streams"),
        await operator.get("/streams", text=HOSTILE, stream=HOSTILE),
        await operator.get("/stream", key=key),
        await operator.get("/stream", key=f"cameras/{HOSTILE}unknown"),
        await operator.post("/stream/pause", key=key),
        await operator.post("/stream/resume", key=key),
        await operator.post("/stream/move", key=key, to=HOSTILE),
        await operator.get("/audit"),
        await operator.get("/dead-letters", queue="cameras", key=HOSTILE, text=HOSTILE),
        await operator.get("/dead-letters", queue=HOSTILE),
        await operator.get("/tasks", app=HOSTILE),
        await operator.get(f"/{HOSTILE}"),
    ]
    assert HOSTILE in unescape(pages[2].text)
    for page in pages:
        assert "<script>alert" not in page.text
        assert '"x")' not in page.text.replace("&#34;", "")


# --- what is done


async def test_a_stream_is_paused_resumed_and_reset(operator: Browser, services: Services) -> None:
    key = "cameras/front"
    assert "cameras/front is paused" in shown((await operator.post("/stream/pause", key=key)).text)
    assert "parked paused" in shown((await operator.until("paused", "/stream", key=key)).text)
    assert "goes on" in shown((await operator.post("/stream/resume", key=key)).text)
    unsure = await operator.post("/stream/reset", key=key, keep_place="yes")
    assert "tick the box" in shown(unsure.text)
    state = await services.state().peek(key)
    assert state is not None
    assert state.state == b"3"
    await operator.post("/stream/reset", key=key, keep_place="yes", confirm="yes")
    state = await services.state().peek(key)
    assert state is not None
    assert (state.state, state.log.seq if state.log else None) == (None, 2)


@pytest.mark.slow
async def test_an_operator_skips_a_gap_and_the_stream_goes_on(
    operator: Browser, services: Services, node: NodeForTests
) -> None:
    node.stream("cameras").send({"camera": "gap", "frame": 0})
    node.stream("cameras").send({"camera": "gap", "frame": 3})
    await operator.until("waits for seq 1 to 2", "/streams")
    assert "must be a number" in shown(
        (await operator.post("/stream/skip", key="cameras/gap", through="x")).text
    )
    assert "give both" in shown((await operator.post("/stream/skip", key="cameras/gap", run="0")).text)
    page = await operator.post("/stream/skip", key="cameras/gap", through="2")
    assert "stands at run 0, seq 2" in shown(page.text)
    page = await operator.until('"frame": 3', "/stream", key="cameras/gap")
    assert "passed over: 1 to 2" in shown(page.text)


async def test_what_isnt_a_form_of_a_page_is_refused(operator: Browser, services: Services) -> None:
    page = await operator.post("/stream/pause", key="x" * 70_000)
    assert page.status == 413
    async with aiohttp.ClientSession(operator.console.address) as session:
        headers = {"Authorization": f"Bearer {operator.console.own_token}"}
        for body in (BytesIO(b"x" * 10_000_000), BytesIO(b"key=" + b"x" * 10_000_000)):
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = await session.post("/stream/pause", data=body, headers=headers | kind)
            assert answer.status == 413


@pytest.mark.slow
async def test_tasks_are_listed_shown_and_sent_again(operator: Browser, node: NodeForTests) -> None:
    good = node.client.send("mail.send", {"to": "alice"})
    bad = node.client.send("mail.send", {"bad": True})
    await asyncio.gather(*(asyncio.to_thread(node.outcome, trace) for trace in (good, bad)))
    page = await operator.until(bad, "/tasks")
    assert good in page.text
    assert good not in (await operator.get("/tasks", app="shop", state="failed")).text
    assert "sent to alice" in shown((await operator.get("/task", app="shop", trace=good)).text)
    failed = await operator.get("/task", app="shop", trace=bad)
    assert "no such address" in failed.text
    over = await operator.post("/task/cancel", app="shop", trace=good, reason="late")
    assert f"task '{good}' has ended already: succeed" in shown(over.text)
    again = await operator.post("/task/retry", app="shop", trace=bad)
    assert f"task {bad} was sent again" in shown(again.text)
    await asyncio.to_thread(node.outcome, bad)
    assert (await operator.get("/task", app="shop", trace="nothing")).status == 404
    assert (await operator.get("/task", app="nobody", trace=good)).status == 404


@pytest.mark.slow
async def test_tasks_are_newest_first_and_those_that_wait_say_when_they_are_due(
    operator: Browser, node: NodeForTests
) -> None:
    first = node.client.send("mail.send", {"to": "first"})
    await asyncio.to_thread(node.outcome, first)
    later = node.client.send("mail.send", {"to": "later"}, delay_s=7200)
    page = await operator.until(later, "/tasks", app="shop")
    assert page.text.index(later) < page.text.index(first)
    row = next(row for row in page.text.split("<tr>") if later in row)
    assert re.search(r'data-label="Due"><time datetime="[^"]+Z">', row)
    assert 'data-label="Runtime"></td>' in row, "it hasn't run"
    row = next(row for row in page.text.split("<tr>") if first in row)
    assert re.search(r'data-label="Runtime">\d', row)
    assert 'data-label="Due"></td>' in row
    await operator.post("/task/cancel", app="shop", trace=later, reason="ordered twice")


@pytest.mark.slow
async def test_a_cancelled_task_has_a_state_of_its_own_and_its_reason(
    operator: Browser, node: NodeForTests
) -> None:
    trace = node.client.send("mail.send", {"to": "nobody"}, delay_s=7200)
    await operator.post("/task/cancel", app="shop", trace=trace, reason="ordered <twice>")
    page = await operator.until(trace, "/tasks", app="shop", state="cancelled")
    row = shown(next(row for row in page.text.split("<tr>") if trace in row))
    assert " cancelled " in row
    assert row.rstrip().endswith("ordered <twice>")
    assert "ordered <twice>" not in page.text
    assert trace not in (await operator.get("/tasks", app="shop", state="failed")).text
    page = await operator.get("/task", app="shop", trace=trace)
    assert "State cancelled cancelled: ordered <twice>" in shown(page.text)
    assert 'data-off="cancel"' in page.text
    answer = json.loads((await operator.get(f"/api/v1/tasks/shop/{trace}")).text)
    assert (answer["state"], answer["cancelled"]) == ("failed", True)


@pytest.mark.slow
async def test_tasks_are_found_by_when_they_changed(
    operator: Browser, node: NodeForTests, console: Console
) -> None:
    trace = node.client.send("mail.send", {"to": "alice"})
    await asyncio.to_thread(node.outcome, trace)
    assert trace in (await operator.until(trace, "/tasks", app="shop", within="900")).text
    old = replace(Task("old", "mail.send"), queued_at=1.0)
    question = TaskQuestion("shop", within="900")
    assert [question.fits(old, at) for at in (900.0, 902.0)] == [True, False]
    assert (await operator.get("/tasks", app="shop", within="nonsense")).status == 200


@pytest.mark.slow
async def test_a_failed_task_shows_its_body_and_a_delayed_one_when_it_is_due(
    operator: Browser, node: NodeForTests
) -> None:
    bad = node.client.send("mail.send", {"to": "who?", "bad": True})
    await asyncio.to_thread(node.outcome, bad)
    page = await operator.until('"to": "who?"', "/task", app="shop", trace=bad)
    assert "Body" in shown(page.text)
    far = node.client.send("mail.send", {"to": "far"}, delay_s=30 * 86400.0)
    page = await operator.get("/task", app="shop", trace=far)
    text = shown(page.text)
    assert re.search(r"Due .* in 30 d", text)
    assert 'data-off="retry"' in page.text
    await operator.post("/task/cancel", app="shop", trace=far)


async def test_a_task_shows_its_earlier_attempts(reader: Browser, services: Services) -> None:
    store = services.task_store("shop")
    for error in ("no <route>\nby its handler", "", ""):
        [begun] = await store.start([StartAttempt("tried", "ghost", "m", "node-x", 9, 600.0)])
        if error:
            await store.give_back([ReturnAttempt("tried", begun.epoch, True, error)])
    page = await reader.get("/task", app="shop", trace="tried")
    assert "<li>attempt 1 on node-x: no &lt;route&gt;</li>" in page.text
    answer = json.loads((await reader.get("/api/v1/tasks/shop/tried")).text)
    assert answer["earlier"] == "attempt 1 on node-x: no <route>\n"


@pytest.mark.slow
async def test_a_running_task_tells_where_it_is(operator: Browser, node: NodeForTests) -> None:
    trace = node.client.send("mail.hang", {})
    page = await operator.until("waits for <nobody>", "/task", app="shop", trace=trace)
    assert "Show where it is" in page.text
    page = await operator.get("/task/stack", app="shop", trace=trace)
    assert "mail.hang" in page.text.partition("<pre")[2], "the stack of the handler"
    said = shown(page.text)
    assert "40 % waits for <nobody>" in said
    assert "mails 7.0" in said
    assert "<nobody>" not in page.text
    LET_GO.set()
    await asyncio.to_thread(node.outcome, trace)
    page = await operator.get("/task/stack", app="shop", trace=trace)
    assert f"task '{trace}' doesn't run: it is " in shown(page.text)
    assert (await operator.get("/task/stack", app="nobody", trace=trace)).status == 404


async def test_limits_are_set_and_the_schedule_is_shown(
    operator: Browser, node: NodeForTests, services: Services
) -> None:
    await asyncio.to_thread(node.outcome, node.client.send("mail.send", {"to": "bob"}))
    await operator.until("mail.send", "/tasks", app="shop")
    assert "the form is empty" in shown((await operator.post("/tasks/limits", app="shop")).text)
    assert "must be a number" in shown(
        (await operator.post("/tasks/limits", app="shop", type="mail.send", rate="fast")).text
    )
    page = await operator.post("/tasks/limits", app="shop", maximum="7", type="mail.send", rate="2.5")
    assert "On all nodes 7" in shown(page.text)
    assert "mail.send 2.5 per second" in shown(page.text)
    await operator.post("/tasks/limits", app="shop", maximum="0", type="mail.send", rate="")
    order = Order(task_type="mail.send", body={"to": "all"})
    await asyncio.to_thread(node.client.schedule, "nightly", "30 2 * * *", order)
    page = await operator.get("/tasks", app="shop")
    assert "nightly 30 2 * * * UTC mail.send 20" in shown(page.text)
    declared = r"every-new-year 0 0 1 1 \* Europe/Berlin declared in code 20\d\d-12-31 23:00:00"
    assert re.search(declared, shown(page.text)), "what code declares, and when it is sent next"
    assert "Remove every-new-year" not in page.text
    wish: dict[str, Any] = {
        "app": "shop",
        "name": "weekly",
        "cron": "0 6 * * 1",
        "type": "mail.send",
        "body": '{"to": "all"}',
    }
    page = await operator.post("/tasks/schedule", **wish, zone="Europe/Berlin")
    assert "weekly is sent at 0 6 * * 1 (Europe/Berlin)" in shown(page.text)
    assert "weekly 0 6 * * 1 Europe/Berlin mail.send 20" in shown(page.text)
    assert (await periodic.schedule(services, "shop"))["weekly"].body == {"to": "all"}
    for wrong, said in (
        ({"cron": "0 6 * *"}, "cron"),
        ({"zone": "Nowhere/At all"}, "zone"),
        ({"body": "{"}, "the body isn't JSON"),
        ({"name": " "}, "has no name"),
    ):
        answer = shown((await operator.post("/tasks/schedule", **wish | wrong)).text)
        assert said in answer, wrong
        assert "is sent at" not in answer, wrong
    await operator.post("/tasks/unschedule", app="shop", name="weekly")
    page = await operator.post("/tasks/unschedule", app="shop", name="nightly")
    assert "nightly is removed from the schedule" in shown(page.text)


async def letters(services: Services) -> list[str]:
    """The ids of the dead letters of the cameras."""
    return await ids_in_order(services, "cameras", None)


@pytest.mark.slow
async def test_what_was_previewed_is_sent_again_and_nothing_else(
    operator: Browser, node: NodeForTests, services: Services
) -> None:
    cameras = node.stream("cameras")
    cameras.send({"camera": "one", "frame": 0, "bad": True})
    await operator.until("cameras/one", "/streams")
    page = await operator.until("cameras/one:0:", "/dead-letters", queue="cameras", key="one")
    assert "a bad frame" in page.text
    preview = await operator.post("/dead-letters/preview", queue="cameras", key="one", do="purge", all="yes")
    assert "Remove 1 for good?" in shown(preview.text)
    assert "have passed" not in shown(preview.text)
    again = await operator.post("/dead-letters/preview", queue="cameras", key="one", do="redrive", all="yes")
    assert "Streams have passed the places of 1 of these, such as cameras/one:0:" in shown(again.text)
    [identity] = PREVIEW.findall(preview.text)
    cameras.send({"camera": "one", "frame": 1, "bad": True})
    while len([each for each in await letters(services) if "/one:" in each]) < 2:
        await operator.get("/")
    done = await operator.post("/dead-letters/confirm", preview=identity)
    assert "1 of 1 dead letters of cameras were removed" in shown(done.text)
    [left] = [each for each in await letters(services) if "/one:" in each]
    assert left.endswith("1")
    used = await operator.post("/dead-letters/confirm", preview=identity)
    assert used.status == 409


async def test_a_preview_is_its_makers_own(console: Console, operator: Browser, services: Services) -> None:
    await operator.until("broken", "/dead-letters", queue="cameras")
    preview = await operator.post(
        "/dead-letters/preview", queue="cameras", key="broken", do="purge", all="yes"
    )
    [identity] = PREVIEW.findall(preview.text)
    async with Browser(console, console.parts.tokens.make("other")) as other:
        assert (await other.post("/dead-letters/confirm", preview=identity)).status == 409
    assert any("/broken:" in each for each in await letters(services))


async def test_a_dead_letter_is_shown_without_the_secrets_of_its_target(
    operator: Browser, services: Services
) -> None:
    target = "https://hooks.example.com/a?token=s3cr3t-abc"
    refused = OutgoingEffect(effect_id("cameras/one", 1, 1, 0), target, "", b"{}", "cameras/one", "0:1")
    letter = dead_letter_of(refused, "cameras", 7.0)
    await services.queue("cameras").bury([letter])
    page = await operator.get("/dead-letter", queue="cameras", id=letter.id, key="one")
    assert "https://hooks.example.com/a?token=***" in page.text
    assert "s3cr3t" not in page.text
    await services.queue("cameras").purge([letter.id])


async def test_a_dead_letter_is_shown_and_sent_again(operator: Browser, services: Services) -> None:
    page = await operator.until('href="/dead-letter?', "/dead-letters", queue="cameras", key="broken")
    [path] = re.findall(r'href="(/dead-letter\?[^"]*broken[^"]*)"', page.text)
    letter = await operator.get(unescape(path))
    assert "ValueError" in letter.text
    assert '"bad": true' in shown(letter.text)
    [identity] = [each for each in await letters(services) if "/broken:" in each]
    preview = await operator.post(
        "/dead-letters/preview", queue="cameras", key="broken", id=identity, do="redrive"
    )
    done = await operator.post("/dead-letters/confirm", preview=PREVIEW.findall(preview.text)[0])
    assert "1 of 1 dead letters of cameras were sent again" in shown(done.text)


async def test_a_queue_that_hides_its_letters_isnt_read_unless_asked(
    operator: Browser, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator.until("cameras", "/dead-letters")
    queue = services.queue("cameras")
    monkeypatch.setattr(queue, "hides_dead_letters", True)
    read: list[str] = []
    reading = queue.dead_letters

    async def noted(*given: object) -> object:
        read.append("read")
        return await reading(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "dead_letters", noted)
    page = await operator.get("/dead-letters", queue="cameras")
    assert "only a sample" in shown(page.text)
    assert read == []
    await operator.get("/dead-letters", queue="cameras", look="1")
    assert read != []


async def test_every_action_is_audited_with_who_and_what_came_of_it(operator: Browser) -> None:
    await operator.post("/stream/skip", key="cameras/front", through="1")
    text = shown((await operator.get("/audit")).text)
    assert "local skip through: 1 cameras/front failed cameras/front: seq 1 is passed already" in text


async def test_the_audit_log_names_tasks_and_entries_as_other_ways_to_change_them_do(
    operator: Browser, services: Services
) -> None:
    task: dict[str, Any] = {"app": "shop", "trace": "none"}
    entry: dict[str, Any] = {"app": "shop", "name": "nightly"}
    for path, form in (
        ("/task/cancel", task),
        ("/task/retry", task),
        ("/tasks/schedule", entry),
        ("/tasks/unschedule", entry),
    ):
        await operator.post(path, **form)
    entries = await AuditLog(services.registry(), services.clock, None).entries()
    assert {(each.action, each.subject) for each in entries} >= {
        (tasks.CANCEL_ACTION, "shop/none"),
        (tasks.RETRY_ACTION, "shop/none"),
        (periodic.SET_ACTION, "shop/nightly"),
        (periodic.REMOVE_ACTION, "shop/nightly"),
    }


async def test_what_cant_be_audited_isnt_done(
    operator: Browser, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*given: object) -> None:
        raise Unavailable("the registry does not answer")

    monkeypatch.setattr(services.registry(), "put", gone)
    page = await operator.post("/stream/pause", key="cameras/front")
    assert "the registry does not answer" in shown(page.text)
    state = await services.state().peek("cameras/front")
    assert state is not None
    assert state.parked == ""


async def test_an_action_ends_though_its_browser_hangs_up(
    operator: Browser, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    opening = services.state().open

    async def slow(*given: Any) -> Any:
        began.set()
        await go_on.wait()
        return await opening(*given)

    monkeypatch.setattr(services.state(), "open", slow)
    asking = asyncio.create_task(operator.post("/stream/pause", key="cameras/front"))
    await began.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    go_on.set()
    text = ""
    async with asyncio.timeout(20):
        while "cameras/front is paused" not in text:
            text = shown((await operator.get("/audit")).text)
    await operator.post("/stream/resume", key="cameras/front")


async def test_a_node_that_was_killed_stays_in_the_overview_as_lost(
    reader: Browser, services: Services
) -> None:
    killed = Member("killed", "node-killed", "http://127.0.0.1:1", Load(serves=("nothing",)))
    await services.coordinator().join(killed, 600.0)
    await reader.until("node-killed", "/")
    await services.coordinator().evict("killed")
    page = await reader.until("node-killed ended without a drain", "/")
    assert "it had no streams lost" in shown(page.text)
    answer = await reader.get("/api/v1/overview")
    (lost,) = json.loads(answer.text)["lost"]
    assert (lost["name"], lost["streams"]) == ("node-killed", 0)
