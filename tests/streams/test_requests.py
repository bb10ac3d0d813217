"""Clients' requests: answered from the commit, once, by the owner, or told where that is."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.common.protocol import Done, Waiting
from holdfast.common.retry import Backoff
from holdfast.errors import (
    Busy,
    ConfigError,
    MembershipLost,
    NotOwner,
    OutcomeUnknown,
    SetAside,
    TargetAway,
    Unavailable,
)
from holdfast.ports.queue import DeadLetter
from holdfast.ports.target import OutgoingEffect
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.requests import RequestAnswer
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEY = "s/k"


class Count(StreamHandler[dict[str, Any]]):
    """Counts, and fails where told."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        if message.get("do") == "raise":
            raise ValueError("told to fail")
        if message.get("do") == "nothing":
            return None
        self.count += 1
        return self.count

    def snapshot(self) -> bytes:
        return str(self.count).encode()


def app(**settings: Any) -> App:
    made = App("t")
    rules: dict[str, Any] = {
        "key": "key",
        "seq": "n",
        "first_seq": 0,
        "max_tries": 2,
        "backoff": Backoff(0.01, 0.02),
    }
    made.stream("s", **rules | settings)(Count)
    return made


async def ask(node: TownNode, n: int, *, do: str = "", timeout_s: float = 5.0) -> RequestAnswer:
    body = json.dumps({"key": "k", "n": n, "do": do}).encode()
    return await node.work.requests.process("s", KEY, Place(0, n), body, {}, timeout_s)


async def test_a_request_is_answered_from_its_commit(town: Town) -> None:
    node = await town.start(app())
    assert await ask(node, 0) == RequestAnswer(b"1", 1)
    assert await ask(node, 1) == RequestAnswer(b"2", 1)
    assert town.results("k") == [1, 2]
    assert len(node.work.requests) == 0


async def test_the_same_again_gets_the_stored_result_and_runs_no_second_time(town: Town) -> None:
    node = await town.start(app())
    await ask(node, 0)
    await ask(node, 1)
    assert await ask(node, 0) == RequestAnswer(b"1", 1, duplicate=True)
    assert town.results("k") == [1, 2]


async def test_what_the_store_has_lost_is_no_answer(town: Town) -> None:
    """As after a fail-over: the client would take its message for done, and its owner go on from nothing."""
    node = await town.start(app())
    await ask(node, 0)
    await town.clock.sleep(5.0)
    await ask(node, 1)
    town.state.rewind(1.0)
    with pytest.raises(Unavailable, match="the state store has lost what was committed"):
        await ask(node, 1)
    await town.clock.sleep(1.0)
    assert await ask(node, 1) == RequestAnswer(b"2", 2)
    assert town.results("k") == [1, 2]


async def test_a_message_without_a_result_has_none_when_it_comes_again(town: Town) -> None:
    node = await town.start(app())
    await ask(node, 0, do="nothing")
    assert await ask(node, 0) == RequestAnswer(None, 1, duplicate=True)
    assert len(node.state.called("open")) == 1


async def test_the_same_at_once_runs_once_and_answers_both(town: Town) -> None:
    node = await town.start(app())
    answers = await asyncio.gather(ask(node, 0), ask(node, 0))
    assert [answer.result for answer in answers] == [b"1", b"1"]
    assert town.results("k") == [1]


async def test_requests_are_run_in_order_of_seq(town: Town) -> None:
    node = await town.start(app())
    later = asyncio.create_task(ask(node, 1))
    await town.clock.sleep(0.1)
    assert not later.done()
    assert (await ask(node, 0)).result == b"1"
    assert (await later).result == b"2"


async def test_queue_and_clients_share_a_stream(town: Town) -> None:
    node = await town.start(app())
    await town.send({"key": "k", "n": 0})
    assert (await ask(node, 1)).result == b"2"
    await town.send({"key": "k", "n": 1})
    await town.until_over()
    assert town.results("k") == [1, 2]


async def test_another_nodes_stream_is_refused_with_its_name(town: Town) -> None:
    a, b = await town.start(app(), "a"), await town.start(app(), "b")
    await ask(a, 0)
    with pytest.raises(NotOwner) as refusal:
        await ask(b, 1)
    assert (refusal.value.member, refusal.value.address) == (a.id, "sim://a")


async def test_of_many_first_requests_one_claims(town: Town) -> None:
    node = await town.start(app())
    waiting = [asyncio.create_task(ask(node, n)) for n in range(20)]
    assert [(await task).result for task in waiting] == [str(n + 1).encode() for n in range(20)]
    assert len(node.coordinator.called("claim")) == 1
    assert len(node.state.called("open")) == 1


async def test_a_coordinator_that_does_not_answer_is_waited_for_as_long_as_the_client_does(
    town: Town,
) -> None:
    node = await town.start(app())

    gone = asyncio.Event()

    async def never(*_: Any) -> Any:
        await gone.wait()
        raise Unavailable("it was away")

    async def away(*_: Any) -> Any:
        raise Unavailable("it is away")

    node.coordinator.instead["claim"] = never
    with pytest.raises(Unavailable, match="the coordinator does not answer in time"):
        await ask(node, 0, timeout_s=2.0)
    gone.set()
    await town.clock.sleep(0.1)
    node.coordinator.instead["claim"] = away
    with pytest.raises(Unavailable, match=r"the coordinator does not answer$"):
        await ask(node, 0)

    async def lost(*_: Any) -> Any:
        raise MembershipLost("it has expired")

    node.coordinator.instead["claim"] = lost
    with pytest.raises(Unavailable, match="this node isn't a member at present"):
        await ask(node, 0)
    del node.coordinator.instead["claim"]
    assert await ask(node, 0) == RequestAnswer(b"1", 1)


async def test_a_move_sends_waiting_requests_to_the_next_owner(town: Town) -> None:
    a, b = await town.start(app(), "a"), await town.start(app(), "b")
    await ask(a, 0)
    waiting = asyncio.create_task(ask(a, 2))
    await town.clock.sleep(0.1)
    assert await a.work.moves.move(KEY, b.id) == ""
    with pytest.raises(NotOwner) as refusal:
        await waiting
    assert (refusal.value.member, refusal.value.epoch) == (b.id, 2)
    assert (await ask(b, 1)).result == b"2"


async def test_a_draining_node_tells_where_its_streams_went(town: Town) -> None:
    a, b = await town.start(app(), "a"), await town.start(app(), "b")
    await ask(a, 0)
    assert await a.work.moves.move(KEY, b.id) == ""
    await a.work.owners.gone(KEY)
    a.host.draining = True
    with pytest.raises(NotOwner) as refusal:
        await ask(a, 1)
    assert refusal.value.member == b.id


async def test_what_the_handler_fails_on_is_set_aside_and_said(town: Town) -> None:
    node = await town.start(app())
    with pytest.raises(SetAside, match="told to fail"):
        await ask(node, 0, do="raise")
    await town.until(lambda: len(town.letters()) == 1)
    with pytest.raises(SetAside, match="skipped before"):
        await ask(node, 0)


async def test_what_can_t_be_set_aside_is_not_said_to_be_until_it_is(town: Town) -> None:
    node = await town.start(app())

    async def refuse(letters: Sequence[DeadLetter]) -> None:
        raise ConfigError("access to the dead letters is denied")

    node.queues["s"].instead["bury"] = refuse
    for _ in range(2):
        with pytest.raises(Unavailable, match="can't be set aside at present"):
            await ask(node, 0, do="raise")
    assert town.letters() == []
    del node.queues["s"].instead["bury"]
    with pytest.raises(SetAside, match="skipped before"):
        await ask(node, 0, do="raise")
    assert len(town.letters()) == 1


async def test_a_request_to_a_full_inbox_is_told_busy(town: Town) -> None:
    node = await town.start(app(inbox_limit=2))
    waiting = [asyncio.create_task(ask(node, n)) for n in (5, 6)]
    await town.clock.sleep(1)
    with pytest.raises(Busy) as refusal:
        await ask(node, 7)
    assert refusal.value.retry_after_s > 0
    for task in waiting:
        task.cancel()


async def test_who_does_not_wait_long_enough_hears_that_it_may_come(town: Town) -> None:
    node = await town.start(app())

    async def slow(slot: MemorySlot) -> None:
        await town.clock.sleep(2)

    town.deeds[b'{"key": "k", "n": 0, "do": ""}'] = slow
    with pytest.raises(OutcomeUnknown, match="ask again with the same seq"):
        await ask(node, 0, timeout_s=1.0)
    assert await ask(node, 0) == RequestAnswer(b"1", 1)
    assert town.results("k") == [1]


async def test_a_draining_node_takes_no_new_stream(town: Town) -> None:
    node = await town.start(app())
    node.host.draining = True
    with pytest.raises(Unavailable, match="draining"):
        await ask(node, 0)


async def test_a_dead_owner_answers_nothing_and_the_next_one_runs_it_once(town: Town) -> None:
    a = await town.start(app(), "a")
    b = await town.start(app(), "b", LIMITS)
    await ask(a, 0)
    waiting = asyncio.create_task(ask(a, 2))
    await town.clock.sleep(0.1)
    await town.crash(a)
    waiting.cancel()
    await town.until(lambda: a.id not in b.host.membership.view)
    assert (await ask(b, 1)).result == b"2"
    assert await ask(b, 0) == RequestAnswer(b"1", 2, duplicate=True)


class Hook:
    """A target that takes everything."""

    max_batch, ordered = 10, True

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        pass


async def test_while_a_target_is_away_clients_are_told_so_at_once_and_lose_nothing(
    town: Town,
) -> None:
    made = App("t")

    @made.stream("s", key="key", seq="n", first_seq=0, max_pending_effects=1)
    def alarm(message: dict[str, Any], context: Context) -> int:
        context.send("https://hooks.example.com/a-secret-path", {"n": message["n"]})
        return int(message["n"]) * 10

    node = await town.start(made)  # which is set up for no webhooks
    assert (await ask(node, 0)).result == b"0"
    began_at = town.clock.monotonic()
    with pytest.raises(TargetAway, match=r"'https://hooks\.example\.com', which takes nothing") as refusal:
        await ask(node, 1)
    assert town.clock.monotonic() - began_at < 0.1
    assert refusal.value.retry_after_s >= 1.0
    reply = await node.peer.call(node.peer.address, Waiting(node.id, 10), 1.0)
    assert isinstance(reply, Done)
    report = msgspec.json.decode(reply.text)
    [told] = report["effects"]
    assert (told["key"], told["count"], told["failures"] > 0) == (KEY, 1, True)
    assert report["targets"] == {"https://hooks.example.com/a-secret-path": told["error"]}
    assert told["error"].startswith("it is not set up")
    gauges = {name: number for name, _, number in node.work.gauges({})}
    assert gauges["pending_effects"] == 1
    assert await ask(node, 0) == RequestAnswer(b"0", 1, duplicate=True), "what is done has its result"
    town.hooks["https://hooks.example.com/a-secret-path"] = Hook()
    await town.until(lambda: not town.state.standing[KEY].effects)
    reply = await node.peer.call(node.peer.address, Waiting(node.id, 10), 1.0)
    assert isinstance(reply, Done)
    assert msgspec.json.decode(reply.text)["targets"] == {}
    assert (await ask(node, 1)).result == b"10"
    assert town.results("k") == [0, 10]
