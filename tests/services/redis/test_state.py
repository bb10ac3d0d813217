"""The state store in Redis: its promises on every kind of server, and what is its own."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.common.acts import RefusedEffect
from holdfast.errors import ConfigError, Fenced, OutcomeUnknown, TooLarge, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.state import Logged, StateStore
from holdfast.rules.streams.ledger import Checkpoint, Result, RunLog
from holdfast.services.redis import state as module
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.replicas import Replicas
from holdfast.services.redis.script import Script
from holdfast.services.redis.state import RedisState
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import StateConformance, StateTransferConformance
from holdfast.testing.conformance.oracle import StateMachine
from holdfast.testing.conformance.state import TIMERS, effect, next_commit
from simulator.servers import RedisSentinel, RedisServer
from simulator.servers.server import until
from tests.services.redis.conftest import Connect, shard_of
from tests.services.redis.places import Cluster, OneServer, Sentinels, Shards

KEY = "s/k"
LARGE = bytes(range(256)) * 5000  # more than goes with a commit, and than one piece
PATIENCE_S = 30.0

MakeState = Callable[..., RedisState]


def new_state(url: str, meter: Meter | None = None) -> RedisState:
    return RedisState(RedisConnection(parse(url), meter or Meter()), SystemClock(), max_state_bytes=2 << 20)


@pytest.fixture
async def make_state() -> AsyncIterator[MakeState]:
    """Makes state stores at URLs; they end with the test."""
    made = []

    def make(url: str, meter: Meter | None = None) -> RedisState:
        made.append(new_state(url, meter))
        return made[-1]

    yield make
    for state in made:
        await state.close()


class OnRedis(StateConformance, StateTransferConformance):
    @pytest.fixture
    def state(self, url: str, make_state: MakeState) -> StateStore:
        return make_state(url)

    @pytest.fixture
    def other_state(self, url: str, state: StateStore, make_state: MakeState) -> StateStore:
        return make_state(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


class TestInShards(Shards, OnRedis):
    pass


@pytest.mark.nightly
class TestWithSentinels(Sentinels, OnRedis):
    pass


@pytest.mark.nightly
class TestInACluster(Cluster, OnRedis):
    pass


@pytest.mark.nightly
@pytest.mark.parametrize("shards", [1, 3])
def test_it_decides_as_the_ledger_does(kept_redis: RedisServer, shards: int) -> None:
    numbers = itertools.count()

    class RedisMachine(StateMachine):
        async def make(self) -> StateStore:
            self.url = f"{kept_redis.url}?namespace=machine-{shards}-{next(numbers)}&shards={shards}"
            return new_state(self.url)

        async def reopen(self, store: StateStore) -> StateStore:
            await store.close()
            return new_state(self.url)

    asyncio.run(kept_redis.heal())
    run_state_machine_as_test(
        RedisMachine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )


@contextlib.contextmanager
def before_next(
    monkeypatch: pytest.MonkeyPatch, watched: Script, act: Callable[[], Awaitable[None]]
) -> Iterator[None]:
    """Do something before the connection that runs a script next does so."""
    script, begun = RedisConnection.script, list[tuple[RedisConnection, asyncio.Future[None]]]()

    async def act_and_run(self: RedisConnection, called: Script, *arguments: Any) -> Any:
        if called is watched:
            if not begun:
                begun.append((self, asyncio.ensure_future(act())))
            [(running, acting)] = begun
            if running is self:
                await acting
        return await script(self, called, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RedisConnection, "script", act_and_run)
        yield


@pytest.fixture
def state(redis_server: RedisServer, make_state: MakeState) -> RedisState:
    return make_state(redis_server.url)


async def committed(store: StateStore, key: str = KEY, **changes: object) -> Checkpoint:
    """Open a new stream and commit once."""
    await store.commit(next_commit(await store.open(key, 0, "member-a"), **changes))
    return await standing(store, key)


async def standing(state: StateStore, key: str = KEY) -> Checkpoint:
    checkpoint = await state.peek(key)
    assert checkpoint is not None
    return checkpoint


# --- servers that lose writes


async def test_an_emptied_server_accepts_nothing_of_openings_it_forgot(
    state: RedisState, redis_server: RedisServer
) -> None:
    zombie = await state.open(KEY, 0, "member-a")
    await redis_server.reset()
    with pytest.raises(Fenced) as refusal:
        await state.commit(next_commit(zombie))
    assert refusal.value.epoch == 0
    opened = await state.open(KEY, 0, "member-b")
    assert opened.epoch > zombie.epoch
    assert opened.number == zombie.number == 0
    with pytest.raises(Fenced):  # its number is the next one, and its id free
        await state.commit(next_commit(zombie, state=b"zombie"))
    with pytest.raises(Fenced):
        await state.start(KEY, zombie.epoch, "0:1")
    assert await state.peek(KEY) == opened


async def test_a_server_that_lost_the_last_openings_accepts_nothing_of_them(
    state: RedisState, redis_server: RedisServer
) -> None:
    """As a replica does that is promoted before it has heard of them."""
    first = await state.open(KEY, 0, "member-a")
    async with redis_server.client() as redis:
        await redis.copy("{holdfast:0}:checkpoint:" + KEY, "replica")
        lost = await state.open(KEY, first.epoch, "member-b")
        await redis.copy("replica", "{holdfast:0}:checkpoint:" + KEY, replace=True)
    opened = await state.open(KEY, first.epoch, "member-c")
    assert opened.epoch != lost.epoch
    with pytest.raises(Fenced):
        await state.commit(next_commit(lost, state=b"zombie"))
    await state.commit(next_commit(opened, state=b"right"))


async def test_epochs_differ_on_servers_whose_clocks_are_behind(
    state: RedisState, redis_server: RedisServer
) -> None:
    epochs = set()
    async with redis_server.client() as redis:
        for i in range(5):
            key, ahead = f"s/{i}", 4 * 10**15
            await redis.hset(f"{{holdfast:0}}:checkpoint:{key}", "epoch", str(ahead))
            await state.start(key, ahead, "0:1")  # the shard is known from here on
            epochs.add((await state.open(key, ahead, "member")).epoch)
    assert len(epochs) == 5
    assert min(epochs) > 4 * 10**15


async def test_a_reader_goes_on_after_results_were_lost(state: RedisState, redis_server: RedisServer) -> None:
    await committed(state, results=(Result("0:1", b"lost"), Result("0:2", b"lost")))
    last = (await state.results(0, 10))[-1]
    await redis_server.reset()
    await committed(state, results=(Result("0:1", b"new"),))
    [logged] = await state.results(last.cursor, 10)
    assert logged.result.body == b"new"
    assert [logged] == await state.results(0, 10, stream="s") == await state.results(0, 10)


async def test_a_listener_that_failed_leaves_no_connection_open(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, closed = asyncio.Event(), asyncio.Event()

    class Failing(RedisConnection):
        async def command(self, key: str, *words: Any) -> Any:
            failed.set()
            raise Unavailable("the server is away")

        async def close(self) -> None:
            closed.set()

    def apart(self: RedisConnection, timeout_s: float) -> RedisConnection:
        return Failing(self.address, self.meter, timeout_s=timeout_s)

    monkeypatch.setattr(RedisConnection, "apart", apart)
    state = new_state(redis_server.url)
    reading = asyncio.create_task(state.results(0, 1, wait_s=PATIENCE_S))
    await failed.wait()
    await state.close()
    assert closed.is_set()
    with contextlib.suppress(Unavailable):
        await reading


async def test_a_restarted_server_learns_the_scripts_again(
    state: RedisState, redis_server: RedisServer
) -> None:
    checkpoint = await committed(state)
    async with redis_server.client() as redis:
        await redis.script_flush()
    await state.commit(next_commit(checkpoint))
    redis_server.kill()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await state.open(KEY, 0, "member-b")
    await redis_server.start()
    assert (await state.open(KEY, 0, "member-b")).number == 0


# --- large states


async def test_a_large_state_goes_before_its_commit(state: RedisState, redis_server: RedisServer) -> None:
    opened = await state.open(KEY, 0, "member-a")
    await state.commit(next_commit(opened, state=LARGE, state_version=3))
    await state.commit(next_commit(await standing(state)))
    peeked = await standing(state)
    assert (peeked.number, peeked.state, peeked.state_version) == (2, LARGE, 3)
    assert (await state.open(KEY, peeked.epoch, "member-b")).state == LARGE
    assert len(await blobs(redis_server)) == 1


async def test_a_state_that_is_replaced_leaves_nothing_behind(
    state: RedisState, redis_server: RedisServer
) -> None:
    await state.open(KEY, 0, "member-a")
    for content in (LARGE, b"small", LARGE, LARGE[::-1]):
        await state.commit(next_commit(await standing(state), state=content))
        assert (await standing(state)).state == content
        assert len(await blobs(redis_server)) == (len(content) > 100)
    await state.commit(next_commit(await standing(state), clear_state=True))
    assert (await standing(state)).state is None
    await state.commit(next_commit(await standing(state), state=LARGE))
    assert await state.expire(0.0, 1e11) == (0, 1)
    assert await blobs(redis_server) == []


async def test_a_refused_or_repeated_commit_leaves_no_state(
    state: RedisState, redis_server: RedisServer
) -> None:
    opened = await state.open(KEY, 0, "member-a")
    commit = next_commit(opened, state=LARGE)
    await state.commit(commit)
    await state.commit(commit)
    for wrong in (msgspec.structs.replace(commit, id="other"), msgspec.structs.replace(commit, epoch=1)):
        with pytest.raises(Fenced):
            await state.commit(wrong)
    assert (await standing(state)).state == LARGE
    assert len(await blobs(redis_server)) == 1


async def test_a_state_never_named_goes_by_itself(
    state: RedisState, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await state.open(KEY, 0, "member-a")

    async def lose() -> None:
        raise OutcomeUnknown("the server was lost")

    with before_next(monkeypatch, module.COMMIT, lose), pytest.raises(OutcomeUnknown):
        await state.commit(next_commit(opened, state=LARGE))
    (name,) = await blobs(redis_server)
    async with redis_server.client() as redis:
        assert 0 < await redis.ttl(name) <= module.UNNAMED_S
    await state.commit(next_commit(opened, state=LARGE))
    [kept] = set(await blobs(redis_server)) - {name}
    async with redis_server.client() as redis:
        assert await redis.ttl(kept) == -1


async def test_a_state_whose_pieces_were_lost_is_not_committed(
    state: RedisState, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await state.open(KEY, 0, "member-a")

    async def lose() -> None:
        async with redis_server.client() as redis:
            await redis.delete(*await blobs(redis_server))

    with (
        before_next(monkeypatch, module.COMMIT, lose),
        pytest.raises(Unavailable, match="pieces"),
    ):
        await state.commit(next_commit(opened, state=LARGE))
    assert await standing(state) == opened


async def test_a_state_replaced_while_it_is_fetched_is_fetched_again(
    state: RedisState, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = await committed(state, state=LARGE)
    command, newer = RedisConnection.command, next_commit(checkpoint, state=LARGE[::-1])

    async def replace(self: RedisConnection, key: str, *words: Any) -> Any:
        if words[0] == "GET":
            monkeypatch.undo()
            await state.commit(newer)
        return await command(self, key, *words)

    monkeypatch.setattr(RedisConnection, "command", replace)
    peeked = await standing(state)
    assert (peeked.number, peeked.state) == (2, LARGE[::-1])
    monkeypatch.setattr(RedisConnection, "command", replace)
    newer = next_commit(peeked, state=LARGE)
    with pytest.raises(OutcomeUnknown):  # it can only be that of another opening, which stands
        await state.open(KEY, peeked.epoch, "member-b")


async def test_a_state_over_the_limit_names_the_setting(state: RedisState) -> None:
    opened = await state.open(KEY, 0, "member-a")
    with pytest.raises(TooLarge, match="max_state_bytes"):
        await state.commit(next_commit(opened, state=bytes(state.max_state_bytes + 1)))


async def blobs(server: RedisServer) -> list[str]:
    async with server.client() as redis:
        return [key async for key in redis.scan_iter("*:blob:*")]


async def test_a_full_server_changes_nothing_and_can_be_relieved(
    state: RedisState, redis_server: RedisServer
) -> None:
    before = await committed(state, state=LARGE, results=(Result("0:1", b"r"),), identities=("a",), window=5)
    acting = await committed(state, "s/acting", effects=(effect(1, 0),), timers=TIMERS, due=5.0)
    async with redis_server.client() as redis:
        await redis.config_set("maxmemory", 1)
        try:
            for content in (None, b"small", LARGE):
                with pytest.raises(Unavailable, match="memory"):
                    await state.commit(
                        next_commit(before, state=content, clear_state=True, results=(Result("0:2", b"r"),))
                    )
            with pytest.raises(Unavailable, match="memory"):
                await state.open(KEY, before.epoch, "member-b")
            assert await standing(state) == before
            assert len(await state.results(0, 10)) == 1
            with pytest.raises(Unavailable, match="memory"):
                await state.commit(
                    next_commit(acting, effects=(effect(2, 0),), dropped=("id-1.0",), timers=())
                )
            with pytest.raises(Unavailable, match="memory"):
                await state.due(6.0, 10, 5.0)
            assert await standing(state, "s/acting") == acting
            assert await state.expire(1e11, 1e11) == (1, 1)
        finally:
            await redis.config_set("maxmemory", 0)
    after = await standing(state)
    assert (after.epoch, after.number, after.state) == (before.epoch, 1, None)


# --- streams that act


async def test_a_stream_that_doesn_t_act_takes_no_call_more(
    redis_server: RedisServer, make_state: MakeState
) -> None:
    meter = Meter()
    state = make_state(redis_server.url, meter)
    await committed(state, "s/other", effects=(effect(1, 0),))
    meter.calls.clear()
    opened = await state.open(KEY, 0, "member-a")
    await state.commit(next_commit(opened, state=b"s", results=(Result("0:1", b"r"),)))
    await standing(state)
    assert meter.calls == {("redis", "open"): 1, ("redis", "commit"): 1, ("redis", "HGETALL"): 1}
    async with redis_server.client() as redis:
        assert {"due", "timers", "acts"}.isdisjoint(await redis.hkeys("{holdfast:0}:checkpoint:" + KEY))
        assert await redis.keys("*effects*") == ["{holdfast:0}:effects:s/other"]


@pytest.mark.parametrize("shards", [1, 5])
async def test_to_ask_what_is_due_is_one_command_a_shard_if_nothing_is(
    redis_server: RedisServer, make_state: MakeState, shards: int
) -> None:
    meter = Meter()
    state = make_state(f"{redis_server.url}?shards={shards}", meter)
    await committed(state, due=300.0)
    meter.calls.clear()
    assert await state.due(300.0, 10, 5.0) == []
    assert meter.calls == {("redis", "ZRANGEBYSCORE"): shards}


async def test_what_acts_no_more_leaves_nothing(state: RedisState, redis_server: RedisServer) -> None:
    opened = await committed(state)
    async with redis_server.client() as redis:
        keys, fields = await redis.keys(), await redis.hkeys("{holdfast:0}:checkpoint:" + KEY)
        await state.commit(next_commit(opened, effects=(effect(2, 0), effect(2, 1)), timers=TIMERS, due=5.0))
        refused = (RefusedEffect("id-2.0", "no such target"), RefusedEffect("unknown", "no such target"))
        await state.commit(next_commit(await standing(state), refused=refused))
        await state.commit(next_commit(await standing(state), dropped=("id-2.0", "id-2.1"), timers=()))
        assert sorted(await redis.keys()) == sorted(keys)
        assert set(await redis.hkeys("{holdfast:0}:checkpoint:" + KEY)) == set(fields)


async def test_a_key_that_others_took_since_it_was_seen_is_not_handed_out(
    redis_server: RedisServer, make_state: MakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (make_state(redis_server.url + "?shards=3") for _ in range(2))
    for number, key in enumerate(("s/leased", "s/committed", "s/first", "s/second")):
        await committed(one, key, due=10.0 + number)

    async def take_meanwhile() -> None:
        assert await other.due(100.0, 1, 1000.0) == ["s/leased"]
        await other.commit(next_commit(await standing(other, "s/committed"), due=500.0))

    with before_next(monkeypatch, module.LEASE, take_meanwhile):
        due = await one.due(100.0, 3, 1000.0)
    assert due == ["s/first", "s/second"]
    assert (await standing(one, "s/leased")).due == 1100.0
    assert (await standing(one, "s/committed")).due == 500.0


@pytest.mark.parametrize("away", ["command", "script"])
async def test_keys_of_a_server_that_is_away_don_t_hold_up_others(
    redis_server: RedisServer, make_state: MakeState, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """To look what is due is a command, and to hand it out a script."""
    state = make_state(redis_server.url + "?shards=5")
    keys = {shard_of(f"s/{number}", 5): f"s/{number}" for number in range(100)}
    for shard, key in keys.items():
        await committed(state, key, due=5.0 + shard)
    call = getattr(RedisConnection, away)

    async def call_others(self: RedisConnection, first: Any, second: Any, *words: Any) -> Any:
        name = first if away == "command" else second[0]
        if name.startswith("{holdfast:0}"):
            raise Unavailable("this server is away")
        return await call(self, first, second, *words)

    monkeypatch.setattr(RedisConnection, away, call_others)
    assert await state.due(100.0, 10, 1000.0) == [keys[shard] for shard in range(1, 5)]
    with pytest.raises(Unavailable, match="away"):
        await state.due(100.0, 10, 1000.0)
    monkeypatch.undo()
    assert await state.due(100.0, 10, 1000.0) == [keys[0]]


async def test_a_node_of_an_older_version_takes_nothing_from_what_acts(
    state: RedisState, redis_server: RedisServer
) -> None:
    """Its commits know nothing of effects and timers, and list the key as one that may expire."""
    acting = await committed(state, effects=(effect(1, 0),), timers=TIMERS, due=5.0)
    async with redis_server.client() as redis:
        assert await redis.zscore("{holdfast:0}:idle", KEY) is None, "where it would look what may expire"
        await redis.hset("{holdfast:0}:checkpoint:" + KEY, mapping={"number": 2, "id": "older", "at": 1})
        await redis.zadd("{holdfast:0}:idle", {KEY: 1})
    await committed(state, "s/idle")
    assert await state.expire(0.0, 1e11) == (0, 1)
    after = await standing(state)
    assert after == msgspec.structs.replace(acting, number=2, commit_id="older", at=1e-6)
    await state.commit(next_commit(after, dropped=("id-1.0",), timers=()))
    assert await state.expire(0.0, 1e11) == (0, 1), "it is listed again"


async def test_a_namespace_from_before_there_were_effects_is_read(
    state: RedisState, redis_server: RedisServer
) -> None:
    fields: dict[Any, Any] = {
        "epoch": 7,
        "member": "m",
        "number": 3,
        "id": "c",
        "at": 5000000,
        "detail": '[[0,0,2],[],""]',
        "window": 0,
        "done": 3,
        "skipped": 0,
    }
    await state.open("s/other", 0, "m")
    async with redis_server.client() as redis:
        await redis.hset("{holdfast:0}:checkpoint:" + KEY, mapping=fields)
        await redis.zadd("{holdfast:0}:idle", {KEY: 5000000})
        await redis.zadd("{holdfast:0}:keys", {KEY: 0})
    before = await standing(state)
    assert before == Checkpoint(KEY, 7, 3, "c", RunLog(0, 0, 2), started=None, done=3, member="m", at=5.0)
    assert before in await state.checkpoints()
    opened = await state.open(KEY, 7, "m")
    await state.commit(next_commit(opened, effects=(effect(4, 0),), due=6.5))
    assert await state.due(7.0, 10, 5.0) == [KEY]
    assert (await state.open(KEY, opened.epoch, "m")).effects == (effect(4, 0),)


# --- shards


async def test_a_namespace_has_one_number_of_shards(redis_server: RedisServer, make_state: MakeState) -> None:
    few, many = make_state(redis_server.url + "?shards=2"), make_state(redis_server.url + "?shards=7")
    await few.open(KEY, 0, "member-a")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"2 shards.*7"):
            await many.open(KEY, 0, "member-b")
    with pytest.raises(ConfigError, match="shards=2"):
        await many.results(0, 10)
    await make_state(redis_server.url + "?shards=7&namespace=other").open(KEY, 0, "member-b")


async def test_an_emptied_server_takes_the_first_number_of_shards(
    redis_server: RedisServer, make_state: MakeState
) -> None:
    few, many = make_state(redis_server.url + "?shards=2"), make_state(redis_server.url + "?shards=7")
    await few.open(KEY, 0, "member-a")
    await redis_server.reset()
    await many.open(KEY, 0, "member-a")
    with pytest.raises(ConfigError, match=r"7 shards.*2"):
        await few.open(KEY, 0, "member-b")


async def test_a_reader_passes_no_shard_whose_clock_is_behind(
    redis_server: RedisServer, make_state: MakeState
) -> None:
    state = make_state(redis_server.url + "?shards=2")
    ahead, behind = (next(f"s/{i}" for i in range(99) if shard_of(f"s/{i}", 2) == n) for n in (0, 1))
    await committed(state, behind, results=(Result("0:1", b"first"),))
    await state.open(ahead, 0, "member")
    async with redis_server.client() as redis:
        await redis.hset("{holdfast:0}:shard", "last", str(4 * 10**15))
    await state.commit(next_commit(await standing(state, ahead), results=(Result("0:1", b"second"),)))
    first, second = await state.results(0, 10)
    await state.commit(next_commit(await standing(state, behind), results=(Result("0:2", b"third"),)))
    assert [r.result.body for r in (first, second)] == [b"first", b"second"]
    [third] = await state.results(second.cursor, 10)
    assert third.result.body == b"third"
    assert [third] == await state.results(second.cursor, 10, stream="s")
    assert third == await state.result(behind, "0:2")


# --- results, waiting and expiry


async def test_a_waiting_reader_makes_one_call(redis_server: RedisServer, make_state: MakeState) -> None:
    meter = Meter()
    reader, writer = make_state(redis_server.url, meter), make_state(redis_server.url)
    opened = await writer.open(KEY, 0, "member-a")
    readers = [asyncio.create_task(reader.results(0, 10, PATIENCE_S, stream)) for stream in ("s", "s", "")]
    await blocked(redis_server, 2)
    await writer.commit(next_commit(opened, results=(Result("0:1", b"r"),)))
    assert [len(found) for found in await asyncio.gather(*readers)] == [1, 1, 1]
    assert meter.calls["redis", "XREAD"] == 2, "readers of one stream share it"
    assert meter.calls["redis", "XRANGE"] == 4


async def test_a_reader_of_all_streams_hears_of_a_new_one(
    redis_server: RedisServer, make_state: MakeState
) -> None:
    state = make_state(redis_server.url + "?shards=3")
    await committed(state, "s/1", results=(Result("0:1", b"r"),))
    [first] = await state.results(0, 10)
    reader = asyncio.create_task(state.results(first.cursor, 10, PATIENCE_S))
    await blocked(redis_server, 3)
    await committed(state, "new/1", results=(Result("0:1", b"r"),))
    [second] = await asyncio.wait_for(reader, PATIENCE_S)
    assert second.key == "new/1"


async def test_closing_ends_a_waiting_reader(redis_server: RedisServer, make_state: MakeState) -> None:
    state = make_state(redis_server.url)
    reader = asyncio.create_task(state.results(0, 10, 1e9))
    await blocked(redis_server, 1)
    await state.close()
    assert await asyncio.wait_for(reader, PATIENCE_S) == []
    await blocked(redis_server, 0)


async def blocked(server: RedisServer, clients: int) -> None:
    """Wait until ``clients`` clients are blocked at the server."""
    async with server.client() as redis:

        async def are_blocked() -> bool:
            return int((await redis.info("clients"))["blocked_clients"]) == clients

        await until(are_blocked, f"{clients} clients wait")


async def test_expiry_in_small_batches_drops_all_that_is_old(
    redis_server: RedisServer, make_state: MakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPIRE_BATCH", 3)
    monkeypatch.setattr("holdfast.services.redis.results.EXPIRE_BATCH", 3)
    state = make_state(redis_server.url + "?shards=2")
    for i in range(8):
        await committed(
            state,
            f"s{i % 2}/{i}",
            results=(Result("0:1", b"r"), Result("0:2", b"r")),
            identities=("a",),
            window=1,
        )
    middle = (await state.results(0, 16))[7]
    assert await state.expire(middle.at, 0.0) == (7, 0)
    assert await state.expire(1e11, 1e11) == (9, 8)
    assert await state.expire(1e11, 1e11) == (0, 0)
    async with redis_server.client() as redis:
        kinds = {key.split(":")[2] async for key in redis.scan_iter("{*")}
    assert kinds == {"shard", "checkpoint", "keys", "log", "logs"}, "what fences, and what is empty"


async def test_a_name_used_again_outlives_its_first_result(state: RedisState) -> None:
    await committed(state, results=(Result("0:1", b"old"),))
    await state.commit(next_commit(await standing(state), results=(Result("0:1", b"new"),)))
    _, newer = await state.results(0, 10)
    assert await state.expire(newer.at, 0.0) == (1, 0)
    assert await state.result(KEY, "0:1") == newer


# --- replicas


async def test_a_commit_is_on_all_replicas_when_it_is_answered(
    redis_sentinel: RedisSentinel, make_state: MakeState
) -> None:
    state = make_state(redis_sentinel.url + "?wait_replicas=2")
    opened = {f"s/{i}": await state.open(f"s/{i}", 0, "member") for i in range(20)}
    await asyncio.gather(
        *(state.commit(next_commit(c, results=(Result("0:1", b"r"),))) for c in opened.values())
    )
    for server in redis_sentinel.redis:
        async with server.client() as redis:
            assert await redis.xlen("{holdfast:0}:log:s") == 20


@pytest.mark.slow
async def test_a_commit_that_replicas_lack_is_of_unknown_outcome(
    redis_server: RedisServer, make_state: MakeState
) -> None:
    state = make_state(redis_server.url + "?wait_replicas=1")
    opened = await state.open(KEY, 0, "member-a")
    commit = next_commit(opened, results=(Result("0:1", b"r"),))
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="wait_replicas"):
            await state.commit(commit)
    assert len(await state.results(0, 10)) == 1
    without = make_state(redis_server.url)
    await without.commit(commit)


async def test_a_wait_for_a_commit_that_stands_no_more_is_of_unknown_outcome(
    redis_sentinel: RedisSentinel, make_state: MakeState, connect: Connect
) -> None:
    url = redis_sentinel.url + "?wait_replicas=1"
    state = make_state(url)
    first = next_commit(await state.open(KEY, 0, "member-a"))
    await state.commit(first)
    await state.commit(next_commit(await standing(state)))
    replicas = Replicas(connect(url))
    with pytest.raises(OutcomeUnknown, match="another"):
        await replicas.confirm(0, "{holdfast:0}:checkpoint:" + KEY, first)
    await replicas.close()


@pytest.mark.slow
async def test_what_is_restored_waits_for_replicas(redis_server: RedisServer, make_state: MakeState) -> None:
    state = make_state(redis_server.url + "?wait_replicas=1")
    with pytest.raises(OutcomeUnknown, match="wait_replicas"):
        await state.restore([Checkpoint(KEY, epoch=1)])
    with pytest.raises(OutcomeUnknown, match="wait_replicas"):
        await state.restore_results([Logged(1, KEY, 1, Result("0:1", b""), 1.0)])
