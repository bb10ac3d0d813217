"""Tasks on SQS and Redis, and what becomes of them when those, or a node, are hurt."""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import AsyncClient
from holdfast.assembly.checks import queues_of
from holdfast.rules.tasks.task import State
from holdfast.services.aws.channel import dead_letter_name
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.sqs import EmptyAnswer, Sqs
from holdfast.system.clock import SystemClock
from simulator.servers import FauxqsServer, MotoServer, RedisServer
from simulator.servers.server import Server
from tests.nodes.cluster import until
from tests.tasks.conftest import MakeFleet
from tests.tasks.fleet import APP, Fleet, poison
from tests.tasks.hurt_app import ENDS, app

OUTAGE_S = 2.0

OnServices = Callable[[Server], Awaitable[Fleet]]


@pytest.fixture
async def keeping() -> AsyncIterator[RedisServer]:
    """A Redis that keeps what it answered, for memberships, tasks and limits."""
    async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def on_services(
    keeping: RedisServer, make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OnServices]:
    """Makes a fleet on a server of SQS, where its first node makes the queues, and on Redis."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    fleets: list[Fleet] = []

    async def make(server: Server) -> Fleet:
        for variable, value in server.environment().items():  # type: ignore[attr-defined]
            monkeypatch.setenv(variable, value)
        fleet = make_fleet(
            queue_url="sqs:///",
            coordinator_url=keeping.url,
            state_url=keeping.url,
            create_queues="true",
            receive_wait_s=1.0,
        )
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        await fleet.close()
    client = AwsClient("sqs", SystemClock())
    sqs = Sqs(client)
    for queue in queues_of(app):
        for name in (queue, dead_letter_name(queue)):
            await sqs.call("DeleteQueue", name, {"QueueUrl": await sqs.queue_url(name)}, EmptyAnswer)
    await client.close()


async def ends_as_it_should(fleet: Fleet) -> None:
    """Tasks that succeed, fail once, and fail for good."""
    good = await fleet.send("deed", *({"do": f"thing {n}"} for n in range(25)))
    (once,) = await fleet.send("tried", {"do": "fail once"})
    (failing,) = await fleet.send("tried", {"do": "fail"})
    assert {(o.state, o.attempts) for o in await fleet.until_ended(good)} == {(State.SUCCEEDED, 1)}
    (retried,) = await fleet.until_ended([once])
    assert (retried.state, retried.attempts, retried.value) == (State.SUCCEEDED, 2, {"did": "fail once"})
    (failed,) = await fleet.until_ended([failing])
    assert (failed.state, failed.attempts) == (State.FAILED, 3)
    assert "ValueError: told to fail" in failed.detail
    await fleet.check()


@pytest.mark.slow
async def test_tasks_end_in_outcomes_and_a_node_drains(
    on_services: OnServices, fauxqs_server: FauxqsServer, keeping: RedisServer
) -> None:
    fleet = await on_services(fauxqs_server)
    await fleet.start("a", "b")
    await ends_as_it_should(fleet)
    async with AsyncClient(APP, registry_url=keeping.url) as client:
        task_id = await client.send("text", "told the registry alone")
        assert (await client.wait(task_id)).value == "TOLD THE REGISTRY ALONE"
    task_ids = await fleet.send("long", *({"seconds": 0.5} for _ in range(9)))

    async def some_have_begun() -> bool:
        standing = [await fleet.producer.status(task_id) for task_id in task_ids]
        return any(task is not None and task.state is not State.QUEUED for task in standing)

    await until(some_have_begun, "some have begun")
    fleet.nodes["a"].signal(signal.SIGTERM)
    assert await fleet.nodes["a"].ended() == 0
    (drained,) = fleet.nodes["a"].said("tasks drained")
    assert drained["left"] == 0
    outcomes = await fleet.until_ended(task_ids)
    assert {(outcome.state, outcome.attempts) for outcome in outcomes} == {(State.SUCCEEDED, 1)}
    await fleet.check()


@pytest.mark.slow
async def test_what_follows_upon_tasks_runs_on_every_service(
    on_services: OnServices, fauxqs_server: FauxqsServer
) -> None:
    fleet = await on_services(fauxqs_server)
    await fleet.start("a", "b")
    following = await fleet.send_followed(5)
    assert {outcome.state for outcome in await fleet.until_ended(following)} == {State.SUCCEEDED}
    assert (await fleet.producer.wait("together", 30.0)).value == {"tasks": 5, "failed": 0}
    await fleet.check()


@pytest.mark.nightly
async def test_whatever_handlers_do_others_go_on(
    on_services: OnServices, fauxqs_server: FauxqsServer
) -> None:
    fleet = await on_services(fauxqs_server)
    await fleet.start("a", "b")
    bad = await fleet.send("deed", *({"do": deed} for deed, _, _ in ENDS))
    good = await fleet.send("deed", {}, {})
    for (_, state, said), outcome in zip(ENDS, await fleet.until_ended(bad), strict=True):
        assert (outcome.state, outcome.attempts) == (state, 1)
        assert said in outcome.detail
    assert {outcome.state for outcome in await fleet.until_ended(good)} == {State.SUCCEEDED}
    await fleet.check()


@pytest.mark.nightly
async def test_tasks_end_in_outcomes_on_another_sqs(on_services: OnServices, moto_server: MotoServer) -> None:
    fleet = await on_services(moto_server)
    await fleet.start("a")
    await ends_as_it_should(fleet)


@pytest.mark.nightly
async def test_a_killed_node_s_tasks_run_once_they_show_again(
    on_services: OnServices, fauxqs_server: FauxqsServer, tmp_path: Path
) -> None:
    fleet = await on_services(fauxqs_server)
    await fleet.start("a")
    note = tmp_path / "note"
    (task_id,) = await fleet.send("long", {"seconds": 1.5, "note": str(note)})
    await until(note.exists, "it has begun")
    fleet.nodes.pop("a").signal(signal.SIGKILL)
    await fleet.start("b")
    (outcome,) = await fleet.until_ended([task_id])
    assert (outcome.state, outcome.attempts, outcome.node) == (State.SUCCEEDED, 2, "b")
    (_, _, first), (_, attempt, second) = (line.split() for line in note.read_text().splitlines())
    assert (attempt, int(first) < int(second)) == ("2", True)
    await fleet.check()


@pytest.mark.nightly
async def test_poison_is_set_aside_with_its_reason(
    on_services: OnServices, fauxqs_server: FauxqsServer
) -> None:
    fleet = await on_services(fauxqs_server)
    await fleet.start("a")
    await poison(fleet)


async def die_and_come_back(server: Server) -> None:
    """Be killed, and started anew with what was written."""
    server.kill()
    await server.restart()


async def pause(server: Server) -> None:
    """Stand still for a while."""
    server.pause()
    began = time.monotonic()
    await until(lambda: time.monotonic() > began + OUTAGE_S, "the outage is over")
    server.resume()


async def endure(fleet: Fleet, hurt: Callable[[], Awaitable[None]]) -> None:
    """Tasks run before, during and after what hurts, and each comes to its end."""
    await fleet.start("a", "b")
    before = await fleet.send("deed", *({"seconds": 0.1} for _ in range(20)))
    (long,) = await fleet.send("long", {"seconds": 1.5})
    await fleet.until_ended(before[:3])
    await hurt()
    after = await fleet.send("deed", {}, {})
    outcomes = await fleet.until_ended([*before, long, *after])
    assert {outcome.state for outcome in outcomes} == {State.SUCCEEDED}
    await fleet.check()


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [die_and_come_back, pytest.param(pause, marks=pytest.mark.nightly)])
async def test_whatever_becomes_of_redis_no_task_is_lost(
    on_services: OnServices,
    fauxqs_server: FauxqsServer,
    keeping: RedisServer,
    hurt: Callable[[Server], Awaitable[None]],
) -> None:
    await endure(await on_services(fauxqs_server), lambda: hurt(keeping))


@pytest.mark.nightly
async def test_a_queue_that_was_away_loses_no_task(
    on_services: OnServices, fauxqs_server: FauxqsServer
) -> None:
    await endure(await on_services(fauxqs_server), lambda: pause(fauxqs_server))
