"""The client of a producing application, sync and async, with a node on SQLite."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, AsyncClient, Client, Order, StreamHandler
from holdfast.errors import InvalidMessage, OperationRefused
from holdfast.rules.tasks.task import State
from tests.nodes.cluster import until
from tests.tasks.conftest import MakeFleet
from tests.tasks.fleet import APP

PATIENCE_S = 120.0


def url(place: Path) -> str:
    return f"sqlite:///{place}/holdfast.db"


@pytest.mark.slow
async def test_a_program_with_a_loop_sends_and_hears(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet()
    async with AsyncClient(APP, url=url(tmp_path)) as client:
        once = await client.send("deed", {"do": "this"}, dedupe="monday")
        again = await client.send("deed", {"do": "this"}, dedupe="monday")
        assert once == again
        many = await client.send_many([Order(task_type="deed", body={"do": f"{n}"}) for n in range(12)])
        waiting = await client.status(once)
        assert waiting is not None
        assert waiting.state is State.QUEUED
        assert await client.status("unheard") is None
        cancelled = await client.send("deed", {}, delay_s=600.0)
        ended = await client.cancel(cancelled, "not wanted")
        assert ended is not None
        assert ended.detail == "cancelled: not wanted"
        fleet.spawn("a")
        outcomes = [await client.wait(task_id, PATIENCE_S) for task_id in [once, *many]]
        assert [outcome.value for outcome in outcomes] == [
            {"did": "this"},
            *({"did": f"{n}"} for n in range(12)),
        ]
        heard = set()
        async for brief in client.briefs():
            assert brief.outcome.ok
            heard.add(brief.outcome.task_id)
            brief.ack()
            if heard == {once, *many}:
                break
        with pytest.raises(OperationRefused, match="unheard"):
            await client.wait("unheard")
        with pytest.raises(TimeoutError, match="not known after 0 s"):
            await client.wait("unheard", 0.0)
        with pytest.raises(InvalidMessage, match="priority"):
            await client.send("deed", {}, priority=2**40)


async def test_a_task_that_takes_too_long_to_wait_for_goes_on(tmp_path: Path) -> None:
    async with AsyncClient(APP, url=url(tmp_path)) as client:
        task_id = await client.send("deed", {})
        with pytest.raises(TimeoutError, match="queued"):
            await client.wait(task_id, 0.0)
        task = await client.status(task_id)
        assert task is not None
        assert not task.ended


@pytest.mark.slow
async def test_a_brief_that_is_not_acknowledged_stays(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet()
    fleet.spawn("a")
    async with AsyncClient(APP, url=url(tmp_path)) as client:
        task_id = await client.send("text", "words")
        assert (await client.wait(task_id, PATIENCE_S)).value == "WORDS"
        async for brief in client.briefs():
            assert brief.outcome.task_id == task_id
            break
        depth = await fleet.services.queue(f"{APP}-briefs").depth()
        assert (depth.ready, depth.in_flight) == (0, 1)


@pytest.mark.slow
async def test_what_was_acknowledged_last_is_gone_and_what_was_not_read_is_there(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet = make_fleet()
    fleet.spawn("a")
    async with AsyncClient(APP, url=url(tmp_path)) as client:
        task_ids = await client.send_many([Order(task_type="text", body=f"{n}") for n in range(3)])
        for task_id in task_ids:
            await client.wait(task_id, PATIENCE_S)
        queue = fleet.services.queue(f"{APP}-briefs")

        async def all_told() -> bool:
            return (await queue.depth()).ready == 3

        await until(all_told, "three briefs")
        async for brief in client.briefs():
            brief.ack()
            break
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight) == (2, 0)


@pytest.mark.slow
async def test_a_program_without_a_loop_does_the_same(
    make_fleet: MakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = make_fleet()
    fleet.spawn("a")

    def produce() -> None:
        with Client(APP, url=url(tmp_path)) as client:
            found: dict[str, object] = {}

            def send(number: int) -> None:
                task_id = client.send("deed", {"do": f"{number}"})
                found[task_id] = client.wait(task_id, PATIENCE_S).value

            threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(map(str, found.values())) == [f"{{'did': '{number}'}}" for number in range(3)]
            (failing,) = client.send_many([Order(task_type="deed", body={"do": "fail"})])
            assert client.wait(failing, PATIENCE_S).state is State.FAILED
            waiting = client.send("deed", {}, delay_s=600.0)
            ended = client.cancel(waiting)
            assert ended is not None
            assert ended.state is State.FAILED
            task = client.status(failing)
            assert task is not None
            assert "told to fail" in task.detail
            heard = set[str]()
            for brief in client.briefs():
                heard.add(brief.outcome.task_id)
                brief.ack()
                if heard >= {*found, failing}:
                    break
            assert not [brief for brief in client.briefs(follow=False) if brief.outcome.task_id in heard]
            # A brief follows the letter.
            assert client.back_up("letters.jsonl", types=["deed"], task_id=failing) == 1
            assert client.back_up("letters.jsonl", error="told to fail") == 0
            assert client.redrive(types=["deed"], error="no such thing") == 0
            assert client.redrive(error="told to fail") == 1
            assert client.wait(failing, PATIENCE_S).epoch == 2
            assert client.redrive(source="letters.jsonl", task_id=failing) == 1
            assert client.wait(failing, PATIENCE_S).epoch == 3
        with pytest.raises(RuntimeError, match="closed"):
            client.send("deed", {})
        client.close()  # again

    await asyncio.to_thread(produce)


async def test_closing_ends_calls_that_wait_in_other_threads(tmp_path: Path) -> None:
    def produce() -> None:
        client = Client(APP, url=url(tmp_path))
        task_id, told = client.send("deed", {}), list[str]()
        begun = threading.Event()

        def listen() -> None:
            begun.set()
            try:
                client.wait(task_id)
            except RuntimeError as error:
                told.append(str(error))

        waiting = threading.Thread(target=listen)
        waiting.start()
        begun.wait()
        client.close()
        waiting.join(PATIENCE_S)
        assert told == ["the client is closed"]

    await asyncio.to_thread(produce)


class Readings(StreamHandler[dict[str, Any]]):
    """Messages are only sent here."""


def test_messages_are_made_in_the_thread_that_sends_them(tmp_path: Path) -> None:
    app = App("reader")
    app.stream("readings", key="key")(Readings)
    threads = []

    def messages() -> Iterator[dict[str, str]]:
        threads.append(threading.current_thread())
        yield {"key": "a"}

    with Client(app, url=url(tmp_path)) as client:
        assert len(client.stream("readings").send_many(messages())) == 1
    assert threads == [threading.current_thread()]


def test_who_interrupts_the_wait_for_a_brief_hears_of_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(timeout_s: float | None = None) -> Any:
        raise KeyboardInterrupt

    with Client(APP, url=url(tmp_path)) as client:
        begin, begun = asyncio.run_coroutine_threadsafe, []

        def begin_once(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
            begun.append(begin(work, loop))
            if len(begun) == 1:
                monkeypatch.setattr(begun[0], "result", interrupt)
            return begun[-1]

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin_once)
        with pytest.raises(KeyboardInterrupt):
            next(iter(client.briefs()))
        assert begun[0].cancelled(), "nobody waits for it any more"
