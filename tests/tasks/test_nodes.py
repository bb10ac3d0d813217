"""Tasks on real nodes: whatever a handler does, and whatever becomes of a node, each task has one outcome."""

import base64
import signal
from pathlib import Path

import pytest

from holdfast.rules.tasks.task import State
from tests.nodes.cluster import until
from tests.tasks.conftest import MakeFleet
from tests.tasks.fleet import poison
from tests.tasks.hurt_app import ENDS, TIMEOUT_S
from tests.tasks.plain import plain

LIMIT_S = 1.0
"""What bringing a hung task to its end may take beyond its timeout."""


@pytest.mark.slow
async def test_every_task_ends_in_an_outcome_with_its_attempts(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a", "b")
    good = await fleet.send("deed", *({"do": f"thing {n}"} for n in range(40)))
    (once,) = await fleet.send("tried", {"do": "fail once"})
    (failing,) = await fleet.send("tried", {"do": "fail"})
    given = [await fleet.give("a", "tried", {"do": do}) for do in ("this", "that", "fail once")]
    assert {(o.state, o.attempts) for o in await fleet.until_ended(good)} == {(State.SUCCEEDED, 1)}
    (retried,) = await fleet.until_ended([once])
    assert (retried.state, retried.attempts, retried.value) == (State.SUCCEEDED, 2, {"did": "fail once"})
    (failed,) = await fleet.until_ended([failing])
    assert (failed.state, failed.attempts) == (State.FAILED, 3)
    assert "ValueError: told to fail" in failed.detail
    assert [(o.state, o.attempts) for o in await fleet.until_ended(given)] == [
        (State.SUCCEEDED, 1),
        (State.SUCCEEDED, 1),
        (State.SUCCEEDED, 2),
    ]
    assert {fleet.outcomes[task_id][0].node for task_id in given[:2]} == {"a"}
    await fleet.check()
    assert {len(fleet.outcomes[task_id]) for task_id in given} == {1}, "none is called a duplicate"


@pytest.mark.nightly
@pytest.mark.parametrize("deed, state, said", ENDS)
async def test_whatever_a_handler_does_others_go_on(
    make_fleet: MakeFleet, deed: str, state: State, said: str
) -> None:
    fleet = make_fleet(task_slots=1)
    await fleet.start("a")
    (bad,) = await fleet.send("deed", {"do": deed})
    good = await fleet.send("deed", {}, {})
    (outcome,) = await fleet.until_ended([bad])
    assert (outcome.state, outcome.attempts) == (state, 1)
    assert said in outcome.detail
    if state is State.TIMEOUT:
        took_s = outcome.ended_at - outcome.started_at
        assert took_s >= TIMEOUT_S - 0.05
    assert {o.state for o in await fleet.until_ended(good)} == {State.SUCCEEDED}
    await fleet.check()


@pytest.mark.nightly
async def test_how_long_tasks_wait_and_run_is_told(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    await fleet.until_ended(await fleet.send("deed", {"do": "this"}, {"do": "that"}))
    node = fleet.nodes["a"]
    assert await node.metric('holdfast_task_run_seconds_count{type="deed"}') == 2
    assert await node.metric('holdfast_task_wait_seconds_count{type="deed"}') == 2
    assert await node.metric('holdfast_task_wait_seconds_sum{type="deed"}') > 0
    assert await node.metric('holdfast_task_run_seconds_count{type="long"}') == 0, (
        "it is there before it runs"
    )
    assert await node.metric('holdfast_queue_messages{queue="hurt-deed",state="dead"}') == 0
    assert await node.metric('holdfast_slots_busy{work="tasks"}') == 0


@pytest.mark.slow
async def test_a_killed_node_s_tasks_run_elsewhere(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    note = tmp_path / "note"
    (task_id,) = await fleet.send("long", {"do": "hang once", "note": str(note)})
    await until(note.exists, "it has begun")
    fleet.nodes["a"].signal(signal.SIGKILL)  # before its attempt, which makes no progress, is over its time
    await fleet.start("b")
    (outcome,) = await fleet.until_ended([task_id])
    assert (outcome.state, outcome.attempts, outcome.node) == (State.SUCCEEDED, 2, "b")
    assert [line.split()[1:] for line in note.read_text().splitlines()] == [["1", "1"], ["2", "2"]]
    del fleet.nodes["a"]
    await fleet.check()


@pytest.mark.slow
async def test_what_follows_runs_though_nodes_are_killed(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    following = await fleet.send_followed(15)
    await fleet.until_ended(fleet.sent[:3])
    fleet.nodes.pop("a").signal(signal.SIGKILL)
    await fleet.start("b")
    outcomes = await fleet.until_ended(following)
    assert {(outcome.state, outcome.value) for outcome in outcomes} == {
        (State.SUCCEEDED, "ALL" if task_id == "after-all" else task_id.upper()) for task_id in following
    }
    assert (await fleet.producer.wait("together", 30.0)).value == {"tasks": 15, "failed": 0}
    await fleet.check()


@pytest.mark.nightly
async def test_a_node_that_stood_still_too_long_says_nothing(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet(ttl_s=3.0)
    await fleet.start("a")
    note = tmp_path / "note"
    (task_id,) = await fleet.send("long", {"do": "hang once", "note": str(note)})
    await until(note.exists, "it has begun")
    fleet.nodes["a"].signal(signal.SIGSTOP)
    await fleet.start("b")
    (outcome,) = await fleet.until_ended([task_id])
    assert (outcome.state, outcome.node) == (State.SUCCEEDED, "b")
    fleet.nodes["a"].signal(signal.SIGCONT)
    await fleet.nodes["a"].until_said("joined", times=2)
    await fleet.check()
    assert len(fleet.outcomes[task_id]) == 1


@pytest.mark.slow
async def test_a_drained_node_gives_back_what_waits_and_ends_what_runs(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(task_slots=1)
    await fleet.start("a")
    task_ids = await fleet.send("long", *({"seconds": 0.5} for _ in range(5)))
    await fleet.until_running(task_ids[0])
    fleet.nodes["a"].signal(signal.SIGTERM)
    assert await fleet.nodes["a"].ended() == 0
    (drained,) = fleet.nodes["a"].said("tasks drained")
    assert drained["left"] == 0
    await fleet.start("b")
    outcomes = await fleet.until_ended(task_ids)
    assert {outcome.state for outcome in outcomes} == {State.SUCCEEDED}
    assert {outcome.attempts for outcome in outcomes} == {1}
    await fleet.check()


@pytest.mark.slow
async def test_what_is_cancelled_ends_at_once(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(task_slots=1)
    await fleet.start("a")
    running, waiting = await fleet.send("long", {"seconds": 50.0}, {"seconds": 50.0})
    await fleet.until_running(running)
    await fleet.producer.cancel(waiting, "not wanted")
    await fleet.producer.cancel(running, "not wanted")
    for outcome in await fleet.until_ended([running, waiting]):
        assert (outcome.state, outcome.detail) == (State.FAILED, "cancelled: not wanted")
    await fleet.check()


@pytest.mark.slow
async def test_an_independent_program_sends_and_reads(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    wire = plain().TaskMessage()
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = "hurt", "theirs", "text"
    wire.Body.Pack(plain().Order(customer="acme"))
    await fleet.send_raw("text", b"plain words", base64.b64encode(wire.SerializeToString()))
    await fleet.until_ended(["theirs"])
    await until(lambda: len(fleet.outcomes) == 2, "both")
    theirs = fleet.outcomes.pop("theirs")[0]
    assert theirs.state is State.FAILED
    assert "plain.Order" in theirs.detail
    ((words,),) = fleet.outcomes.values()
    assert (words.state, words.value) == (State.SUCCEEDED, "PLAIN WORDS")


@pytest.mark.nightly
async def test_no_secret_in_an_error_is_kept_or_told(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    (task_id,) = await fleet.send("deed", {"do": "tell secrets"})
    (brief,) = await fleet.until_ended([task_id])
    task = await fleet.producer.status(task_id)
    letters = await fleet.queue("deed").dead_letters(10)
    assert "ValueError: redis://user:***@host" in brief.detail
    assert len(letters) == 1
    for kept in (brief, task, letters):
        assert "hunter2" not in repr(kept)
    assert "hunter2" not in repr(fleet.nodes["a"].events)


@pytest.mark.slow
async def test_poison_is_set_aside_with_its_reason(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    await fleet.start("a")
    await poison(fleet)


@pytest.mark.nightly
async def test_large_bodies_and_results_pass_through_real_processes(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet = make_fleet(values_url=f"file:{tmp_path}/values", max_message_bytes=200_000)
    await fleet.start("a", "b")
    texts = [letter * 1_000_000 for letter in "abc"]
    task_ids = await fleet.send("text", *texts)
    outcomes = await fleet.until_ended(task_ids)
    assert [(outcome.state, outcome.value) for outcome in outcomes] == [
        (State.SUCCEEDED, text.upper()) for text in texts
    ]
    waited = await fleet.producer.wait(task_ids[0], 10.0)
    assert waited.value == "A" * 1_000_000
    await fleet.check()
