"""Queries: answered from what is committed, on any node, and charged to nobody else."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from holdfast import App, ConfigError, Context, QueryAnswer, StreamHandler
from holdfast.common.retry import Backoff
from holdfast.errors import (
    Busy,
    InvalidMessage,
    NoQuery,
    OutcomeUnknown,
    QueryFailed,
    Unavailable,
)
from holdfast.services.memory.peer import MemoryPeer
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams import asking, operations
from holdfast.streams.queries import CommittedAnswer
from holdfast.testing import node_for_tests
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEY = "s/k"


class Count(StreamHandler[dict[str, Any]]):
    """Counts, and tells how far it is."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        self.count += 1
        return self.count

    def query(self, request: Any, context: Context) -> Any:
        if request == "junk":
            raise InvalidMessage("no such question")
        if request == "raise":
            raise ValueError("told to fail")
        if request == "send":
            context.send("t", 1)
        self.count += 1000  # it has no effect
        return self.count - 1000

    def snapshot(self) -> bytes:
        return str(self.count).encode()


def app(**settings: Any) -> App:
    made = App("t")
    rules: dict[str, Any] = {"timeout_s": 5.0, "max_tries": 1, "backoff": Backoff(0.01, 0.02)}
    made.stream("s", **rules | settings)(Count)

    @made.stream("t")
    def silent(message: dict[str, Any], context: Context) -> None: ...

    return made


async def ask(
    node: TownNode, request: Any = None, *, key: str = KEY, timeout_s: float = 9.0
) -> CommittedAnswer:
    return await node.work.queries.answer("s", key, json.dumps(request).encode(), timeout_s)


async def test_a_query_tells_what_the_last_commit_left(town: Town) -> None:
    node = await town.start(app())
    await town.send({"key": "k"}, {"key": "k"})
    await town.until(lambda: town.results("k") == [1, 2])
    for _ in range(2):
        answered = await ask(node)
        assert (answered.body, answered.epoch) == (b"2", 1)
        assert answered.number == (await town.state.peek(KEY)).number  # type: ignore[union-attr]
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1, 2, 3])


async def test_a_query_does_not_see_what_is_not_committed(town: Town) -> None:
    """The message was handled, and its commit is on its way."""
    node, under_way, may = await town.start(app()), asyncio.Event(), asyncio.Event()

    async def commit(*given: Any) -> None:
        under_way.set()
        await may.wait()
        await town.state.commit(*given)

    node.state.instead["commit"] = commit
    await town.send({"key": "k"})
    await under_way.wait()
    entry = node.work.owners.get(KEY)
    assert entry is not None
    assert entry.owner.commits.state == b"1", "its handler has counted"
    assert (await ask(node)).body == b"0"
    may.set()
    await town.until(lambda: town.results("k") == [1])
    assert (await ask(node)).body == b"1"


async def test_a_query_waits_while_a_message_runs_that_the_next_death_is_blamed_on(town: Town) -> None:
    """What a query did to the node would be laid to that message."""
    node = await town.start(app())
    quarantine = node.work.quarantine
    await quarantine.enter(last=True)
    asked = asyncio.ensure_future(ask(node))
    await town.clock.sleep(1)
    assert not asked.done()
    quarantine.leave()
    assert (await asked).body == b"0"


async def test_any_node_answers_and_claims_nothing(town: Town) -> None:
    first = await town.start(app())
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1])
    second = await town.start(app(), "b")
    assert (await ask(second)).body == b"1"
    assert not second.owns(KEY)
    assert first.owns(KEY)
    assert (await ask(second, key="s/new")) == CommittedAnswer(b"0", 0, 0)
    assert await town.coordinator.lookup("s/new") is None
    assert await town.state.peek("s/new") is None
    assert second.state.called("open") == []


async def test_a_query_sees_an_operators_change_at_once(town: Town) -> None:
    node = await town.start(app())
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1])
    await operations.reset(town.state, KEY)
    assert (await ask(node)).body == b"0"


async def test_what_a_query_may_not_do_is_told(town: Town) -> None:
    node = await town.start(app())
    with pytest.raises(InvalidMessage, match="no such question"):
        await ask(node, "junk")
    with pytest.raises(QueryFailed, match="s/k: ValueError: told to fail"):
        await ask(node, "raise")
    with pytest.raises(QueryFailed, match=r"query\(\) only reads, so it can't call context.send\(\)"):
        await ask(node, "send")
    with pytest.raises(NoQuery, match=r"stream 't' answers no queries.*these do: \['s'\]"):
        await node.work.queries.answer("t", "t/k", b"null", 1.0)
    assert not town.queue("t").messages
    stats = node.host.stats
    assert (stats.queries, stats.queries_failed) == (3, 3), "one that no handler could answer isn't counted"
    await ask(node)
    assert (stats.queries, stats.queries_failed) == (4, 3)
    assert stats.query_seconds >= 0.0


async def test_the_death_of_its_slot_is_charged_to_the_query(town: Town) -> None:
    """With ``max_tries=1`` a message that was charged would be skipped."""
    node = await town.start(app(), limits=msgspec.structs.replace(LIMITS, slots=1))
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1])
    at_work, may = asyncio.Event(), asyncio.Event()

    async def die(slot: MemorySlot) -> None:
        at_work.set()
        await may.wait()
        slot.die("died of SIGSEGV")

    town.deeds[b'"die"'] = die
    asked = asyncio.create_task(ask(node, "die"))
    await at_work.wait()
    await town.send({"key": "k"})  # it waits in the slot
    await town.until(lambda: len(node.slots.slots[0].calls) == 2)
    may.set()
    with pytest.raises(QueryFailed, match=r"the query ended its slot: .*SIGSEGV"):
        await asked
    await town.until(lambda: town.results("k") == [1, 2])
    assert town.letters() == []
    assert (await ask(node)).body == b"2"


async def test_a_query_that_hangs_is_killed_and_charged_alone(town: Town) -> None:
    node = await town.start(app(), limits=msgspec.structs.replace(LIMITS, slots=1))

    async def hang(slot: MemorySlot) -> None:
        await asyncio.Event().wait()

    town.deeds[b'"hang"'] = hang
    asked = asyncio.create_task(ask(node, "hang", timeout_s=60.0))
    impatient = asyncio.create_task(ask(node, "hang", timeout_s=1.0))
    with pytest.raises(OutcomeUnknown, match="within 1 s"):
        await impatient
    await town.send({"key": "k"})
    with pytest.raises(QueryFailed, match=r"no progress for 5 s \(timeout_s\)"):
        await asked
    await town.until(lambda: town.results("k") == [1])
    assert town.letters() == []


async def test_a_query_whose_slot_something_else_ended_is_asked_again(town: Town) -> None:
    node = await town.start(app(), limits=msgspec.structs.replace(LIMITS, slots=1))
    at_work, may = asyncio.Event(), asyncio.Event()

    async def die(slot: MemorySlot) -> None:
        del town.deeds[b'{"key":"k"}']
        at_work.set()
        await may.wait()
        slot.die("died of SIGSEGV")

    town.deeds[b'{"key":"k"}'] = die
    await town.send(b'{"key":"k"}')
    await at_work.wait()
    asked = asyncio.create_task(ask(node))
    await town.until(lambda: len(node.slots.slots[0].calls) == 2)
    may.set()
    assert (await asked).body == b"0"


async def test_messages_wait_for_one_query_at_most(town: Town) -> None:
    node = await town.start(app(), limits=msgspec.structs.replace(LIMITS, slots=1, max_held=4))
    at_work, may = asyncio.Event(), asyncio.Event()

    async def wait(slot: MemorySlot) -> None:
        at_work.set()
        await may.wait()

    town.deeds[b'"wait"'] = wait
    queries = [asyncio.create_task(ask(node, "wait")) for _ in range(4)]
    await at_work.wait()
    assert len(node.slots.slots[0].calls) == 1
    with pytest.raises(Busy, match="4 queries wait on this node already"):
        await ask(node)
    may.set()
    assert {(await query).body for query in queries} == {b"0"}


async def test_without_the_store_there_is_no_answer(town: Town) -> None:
    node = await town.start(app())

    async def away(*_: Any) -> Any:
        raise Unavailable("secret.example refused the connection")

    node.state.instead["peek"] = away
    with pytest.raises(Unavailable, match="the state can't be read at present"):
        await ask(node)


# --- from other programs


async def ask_any(town: Town, key: str = "k", request: Any = None, timeout_s: float = 9.0) -> QueryAnswer:
    peer = MemoryPeer(town.network, "sim://client")
    return await asking.ask(town.coordinator, peer, town.clock, "s", key, request, timeout_s)


async def test_a_query_of_a_program_reaches_the_owner(town: Town) -> None:
    nodes = [await town.start(app(), name) for name in "abc"]
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1])
    (owner,) = (node for node in nodes if node.owns(KEY))
    answer = await ask_any(town)
    assert (answer.value, answer.epoch) == (1, 1)
    assert [len(node.state.called("peek")) > 1 for node in nodes] == [node is owner for node in nodes]
    assert (await ask_any(town, "new")).value == 0


async def test_while_a_node_does_not_answer_another_one_does(town: Town) -> None:
    nodes = [await town.start(app(), name) for name in "ab"]
    await town.send({"key": "k"})
    await town.until(lambda: town.results("k") == [1])
    (owner,) = (node for node in nodes if node.owns(KEY))
    town.network.cut(owner.peer.address)
    assert (await ask_any(town)).value == 1


async def test_a_program_is_told_what_a_node_says(town: Town) -> None:
    with pytest.raises(Unavailable, match="no node that lives declares the stream 's'"):
        await ask_any(town)
    node = await town.start(app())
    with pytest.raises(QueryFailed, match="told to fail"):
        await ask_any(town, request="raise")
    with pytest.raises(InvalidMessage, match="no such question"):
        await ask_any(town, request="junk")
    with pytest.raises(InvalidMessage, match="can't be sent as JSON"):
        await ask_any(town, request=float("nan"))

    async def away(*_: Any) -> Any:
        raise Unavailable("it is away")

    node.state.instead["peek"] = away
    with pytest.raises(Unavailable, match="the state can't be read at present"):
        await ask_any(town, timeout_s=2.0)


def test_a_query_of_a_client_is_answered_by_a_whole_node() -> None:
    made = app()
    with node_for_tests(made) as node:
        assert node.client.query("s", "k") == QueryAnswer(0, 0, 0)
        node.stream("s").send({"key": "k"})
        node.results("s", 1)
        answer = node.client.query("s", "k", {"what": "count"})
        assert (answer.value, answer.epoch > 0, answer.number > 0) == (1, True, True)
        with pytest.raises(NoQuery, match="stream 't' answers no queries"):
            node.client.query("t", "k")
        with pytest.raises(ConfigError, match="declares no stream 'x'"):
            node.client.query("x", "k")
