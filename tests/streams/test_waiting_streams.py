"""A stream that waits says for what: in the log once, in a metric, and to whoever asks."""

import asyncio
import inspect
import json
from typing import Any

import msgspec
import pytest

from examples.cameras import app as cameras
from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.common.protocol import Done, Explain, StreamChanged, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast.rules.streams.ledger import Commit
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.wait_reason import WaitReason
from holdfast.streams import operations
from holdfast.streams.waiting_streams import COMMIT_S, LINES_MAX, LOG_AFTER_S
from tests.streams.test_owners import Item, app_of, numbers
from tests.streams.town import Town, TownNode

VIRTUAL = True
GAP_S = 60.0


async def started(town: Town) -> TownNode:
    return await town.start(app_of(gap_timeout_s=GAP_S))


def lines(node: TownNode, event: str) -> list[dict[str, object]]:
    return [fields for _, known, fields in node.log.entries if known == event]


async def test_a_gap_is_told_once_while_it_lasts_and_when_it_is_skipped(town: Town) -> None:
    node = await started(town)
    await town.send(*numbers(0, 3))
    await town.until(lambda: lines(node, "stream waits"))
    (line,) = lines(node, "stream waits")
    left_s = GAP_S - LOG_AFTER_S
    assert line["key"] == "s/k"
    assert line["messages"] == 1
    assert str(line["reason"]).startswith("waits for seq 1 to 2 of run 0, ")
    assert left_s - 4 < float(str(line["reason"]).split()[-3]) <= left_s
    assert node.work.waiting_streams.counts()["gap"] == 1
    await town.until_over()
    assert len(lines(node, "stream waits")) == 1
    assert lines(node, "gap skipped") == [{"key": "s/k", "run": 0, "first": 1, "last": 2}]
    assert (node.host.stats.gaps_skipped, node.host.stats.seqs_missed) == (1, 2)
    assert sum(node.work.waiting_streams.counts().values()) == 0


async def test_a_node_tells_what_waits_and_is_behind_the_longest_first(town: Town) -> None:
    node = await started(town)
    await town.send(*numbers(0, 2, key="a"))
    await town.clock.sleep(10.0)
    await town.send(*numbers(0, 5, key="b"))
    await town.clock.sleep(10.0)
    reply = await node.peer.call(node.peer.address, Waiting(node.id, 10), 1.0)
    assert isinstance(reply, Done)
    told = msgspec.json.decode(reply.text)
    assert told["lacks"] == {}
    assert [(waits["key"], waits["text"]) for waits in told["waits"]] == [
        ("s/a", "seq 1 of run 0"),
        ("s/b", "seq 1 to 4 of run 0"),
    ]
    assert told["waits"][0]["since_s"] > 15
    assert [(lag["key"], lag["messages"]) for lag in told["lags"]] == [("s/a", 1), ("s/b", 1)]
    assert told["lags"][0]["lag_s"] > 15
    reply = await node.peer.call(node.peer.address, Waiting(node.id, 1), 1.0)
    assert isinstance(reply, Done)
    told = msgspec.json.decode(reply.text)
    assert (len(told["waits"]), len(told["lags"])) == (1, 1)
    said = await node.peer.call(node.peer.address, Explain(node.id, "s", "s/a"), 1.0)
    assert isinstance(said, Done)
    assert msgspec.json.decode(said.text)["waits"]["kind"] == "gap"


async def test_a_commit_under_way_is_no_wait_unless_it_takes_long(town: Town) -> None:
    node = await started(town)
    go_on = asyncio.Event()

    async def commit(wanted: Commit) -> None:
        await go_on.wait()
        await town.state.commit(wanted)

    node.state.instead["commit"] = commit
    await town.send(*numbers(0, 1, 2, 3))
    await town.until(lambda: node.state.called("commit"))
    (entry,) = node.work.owners
    await town.until(lambda: entry.owner.wait_reason() is not None)
    waiting_streams = node.work.waiting_streams
    waiting_streams.look()
    assert (waiting_streams.of(entry), waiting_streams.all()) == (None, [])
    assert waiting_streams.counts()["store"] == waiting_streams.longest()["store"] == 0
    await town.clock.sleep(2 * COMMIT_S)
    assert [waits.kind for waits in waiting_streams.all()] == ["store"]
    assert waiting_streams.counts()["store"] == 1
    assert 2 * COMMIT_S <= waiting_streams.longest()["store"] < 3 * COMMIT_S
    go_on.set()
    await town.until_over()


async def test_each_of_many_commits_is_a_wait_of_its_own(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await started(town)
    await town.send(*numbers(0, 3))
    await town.until(lambda: lines(node, "stream waits"))
    (entry,) = node.work.owners
    waiting_streams = node.work.waiting_streams
    for _ in range(8):  # each was asked for when nobody looked
        asked_at = node.clock.monotonic() - COMMIT_S
        commit = WaitReason("store", "the state store", since=asked_at)
        monkeypatch.setattr(OwnerMachine, "wait_reason", lambda _, commit=commit: commit)
        await town.clock.sleep(COMMIT_S)
        waiting_streams.look()
        assert [waits.since_s for waits in waiting_streams.all()] == [pytest.approx(2 * COMMIT_S)]
        assert waiting_streams.all() == [waiting_streams.of(entry)]
    assert len(lines(node, "stream waits")) == 1, "no commit takes so long that it is logged"


async def test_a_stream_that_comes_to_wait_for_something_else_is_told_again(town: Town) -> None:
    def failing(message: Item, context: Context) -> None:
        if message.n == 1:
            raise ValueError("no such camera")

    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, gap_timeout_s=GAP_S, max_tries=1, on_failure="park")(
        failing
    )
    node = await town.start(app)
    await town.send(*numbers(0, 2))
    await town.until(lambda: lines(node, "stream waits"))
    await town.send(*numbers(1))
    await town.until(lambda: len(lines(node, "stream waits")) == 2)
    _, line = lines(node, "stream waits")
    assert str(line["reason"]).startswith("parked: ")
    (waits,) = node.work.waiting_streams.all()
    assert LOG_AFTER_S <= waits.since_s < 2 * LOG_AFTER_S


async def test_many_that_wait_fill_no_log(town: Town) -> None:
    node = await started(town)
    for number in range(LINES_MAX + 5):
        await town.send(*numbers(0, 2, key=f"k{number}"))
    await town.until(lambda: lines(node, "more streams wait"))
    told = sum(int(str(line["gap"])) for line in lines(node, "more streams wait"))
    assert len(lines(node, "stream waits")) + told == LINES_MAX + 5


async def test_what_is_set_aside_is_told(town: Town) -> None:
    node = await town.start(app_of(gap_timeout_s=GAP_S, max_jump=100))
    await town.send(*numbers(0, 1, 10**6, 2))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1, 2]
    (line,) = lines(node, "message set aside")
    assert str(line["reason"]).startswith("malformed: seq 1000000 is more than 100 (max_jump) beyond ")
    assert [letter.reason.partition(":")[0] for letter in town.letters()] == ["malformed"]


@pytest.mark.parametrize("set_by_s", [-86_400.0, 86_400.0])
async def test_a_host_s_clock_that_is_set_neither_begins_a_run_nor_hides_one(
    town: Town, set_by_s: float
) -> None:
    node = await town.start(app_of(gap_timeout_s=GAP_S, restart_after_s=120.0, idle_timeout_s=10.0))
    await town.send(*numbers(0, 1))
    await town.until_over()
    node.clock.set_by_s = set_by_s
    await town.clock.sleep(20.0)
    assert not node.owns("s/k"), "the next message opens the stream"
    await town.send(*numbers(0))
    await town.until_over()
    assert len(town.results("k")) == 2, "soon after it is a duplicate"
    await town.clock.sleep(121.0)
    await town.send(*numbers(0))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1, 0]


@pytest.mark.parametrize("set_by_s", [-86_400.0, 86_400.0])
async def test_nor_does_it_where_the_store_has_lost_the_stream(town: Town, set_by_s: float) -> None:
    """What the owner knows of its last commit isn't dated by the store."""
    node = await town.start(app_of(gap_timeout_s=GAP_S, restart_after_s=120.0, idle_timeout_s=1e6))
    node.clock.set_by_s = set_by_s
    await town.send(*numbers(0, 1))
    await town.until_over()
    del town.state.standing["s/k"]
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def open_(*args: Any) -> Any:
        asked.set()
        await go_on.wait()
        return await town.state.open(*args)

    node.state.instead["open"] = open_
    await town.send(*numbers(2))
    await asked.wait()
    await town.send(*numbers(0))
    await town.until(lambda: [len(entry.owner.inbox) for entry in node.work.owners] == [2])
    go_on.set()
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1, 2], "soon after it is a duplicate"


async def test_a_camera_whose_numbers_start_anew_goes_on_after_a_quiet_time(town: Town) -> None:
    node = await town.start(app_of(gap_timeout_s=GAP_S, restart_after_s=120.0, idle_timeout_s=10.0))
    await town.send(*numbers(0, 1, 2, 3))
    await town.until_over()
    await town.send(*numbers(1))
    await town.until_over()
    assert len(town.results("k")) == 4, "soon after it is a duplicate"
    await town.clock.sleep(121.0)
    assert not node.owns("s/k"), "the stream was let go meanwhile"
    await town.send(*numbers(0, 1))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1, 2, 3, 0, 1]
    assert town.letters() == []
    assert [logged.result.name[:2] for logged in town.state.logged] == ["0:"] * 4 + ["1:"] * 2


@pytest.mark.parametrize("moves", [False, True])
async def test_timers_are_no_messages_where_numbers_start_anew_after_a_quiet_time(
    town: Town, moves: bool
) -> None:
    app = App("town")

    @app.stream("s", message=Item, seq="n", first_seq=0, gap_timeout_s=20.0, restart_after_s=60.0)
    class Watched(StreamHandler[Item]):
        def process(self, message: Item, context: Context) -> int:
            context.wake("again", after_s=5.0)
            return context.run

        def wake(self, name: str, body: Any, context: Context) -> None:
            context.wake("again", after_s=5.0)

    node = await town.start(app)
    await town.send(*numbers(0, 1))
    await town.until_over()
    await town.clock.sleep(30.0)
    if moves:
        other = await town.start(app, "b")
        await town.until(lambda: other.id in node.host.membership.view)
        assert await node.work.moves.move("s/k", other.id) == ""
        await town.until(lambda: other.owns("s/k"))
    await town.send(*numbers(0))
    await town.until_over()
    assert town.results("k") == [0, 0], "so soon it is a duplicate"
    await town.clock.sleep(31.0)
    await town.send(*numbers(0, 1))
    await town.until_over()
    assert town.results("k") == [0, 0, 1, 1]


async def test_what_an_operator_does_is_no_message_where_numbers_start_anew_after_a_quiet_time(
    town: Town,
) -> None:
    node = await town.start(app_of(gap_timeout_s=GAP_S, restart_after_s=120.0, idle_timeout_s=1e6))
    await town.send(*numbers(0, 1))
    await town.until_over()
    await town.clock.sleep(119.0)
    await operations.pause(town.state, "s/k")
    await operations.resume(town.state, town.queue("s"), "s/k")
    await node.peer.call(node.peer.address, StreamChanged(node.id, "s", "s/k"), 1.0)
    await town.until(lambda: [entry.owner.epoch for entry in node.work.owners] == [4])
    await town.send(*numbers(0))
    await town.until_over()
    assert len(town.results("k")) == 2, "so soon it is a duplicate"
    await town.clock.sleep(2.0)
    await town.send(*numbers(0))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1, 0]


async def test_cameras_of_the_example_may_start_their_numbers_anew(town: Town) -> None:
    example = cameras.streams["frames"]
    names = ("key", "seq", "seq_prefix", "run", "seq_kind", "first_seq", "start_timeout_s", "restart_after_s")
    app = App("town")
    app.stream("s", **{name: getattr(example, name) for name in names})(
        lambda message, context: [context.run, context.seq]
    )
    await town.start(app)
    assert example.restart_after_s is not None
    for pause_s in (0.0, example.restart_after_s + 1.0):
        await town.clock.sleep(pause_s)
        await town.send(*({"video_id": "k", "frame_id": f"frame-{n:06}"} for n in range(3)))
        await town.until_over()
    assert town.results("k") == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


async def test_a_handler_s_failure_is_logged_with_its_place(town: Town) -> None:
    class Failing(StreamHandler[Item]):
        def open(self, context: Context, state: bytes | None) -> None:
            if context.key == "unopenable":
                raise OSError("no licence")

        def process(self, message: Item, context: Context) -> None:
            json.loads(b"{")

    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, max_tries=1)(Failing)
    node = await town.start(app)
    await town.send(*numbers(0, key="unopenable"), *numbers(0))
    await town.until_over()
    places = [inspect.getsourcelines(function) for function in (Failing.open, Failing.process)]
    first, second = (f"{__file__}:{start + len(code) - 1}" for code, start in places)
    assert {line["key"]: line["at"] for line in lines(node, "handler failed")} == {
        "s/unopenable": first,
        "s/k": second,
    }


async def test_a_client_that_waited_in_vain_is_told_what_for(town: Town) -> None:
    node = await started(town)
    await town.send(*numbers(0))
    await town.until_over()
    with pytest.raises(OutcomeUnknown, match=r"\(it waits for seq 1 of run 0\)"):
        await node.work.requests.process("s", "s/k", Place(0, 2), b'{"key":"k","n":2}', {}, 2.0)
