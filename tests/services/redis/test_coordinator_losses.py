"""The coordinator in Redis when its server loses its data, its scripts, its subscribers or its life."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest

from holdfast.errors import Damaged, MembershipLost, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Member
from holdfast.services.redis.coordinator import RedisCoordinator
from simulator.servers import RedisCluster, RedisSentinel, RedisServer
from tests.services.redis.conftest import Connect, Coordinate, impatient

PATIENCE_S = 30.0
FAIL_OVER_S = 30.0
SENTINELS_LOOK_S = 10.0
LONG_S = 60.0
A, B = Member("a", "node a", "http://127.0.0.1:1"), Member("b", "node b", "http://127.0.0.1:2")

T = TypeVar("T")
Lose = Callable[[RedisServer], Awaitable[Any]]


async def restart(server: RedisServer) -> None:
    await server.restart(empty=True)


async def flush(server: RedisServer) -> None:
    await _ask(server, "FLUSHALL")


@pytest.mark.slow
@pytest.mark.parametrize("lose", [restart, flush])
async def test_who_is_forgotten_learns_it_and_joins_again(
    redis_server: RedisServer, coordinate: Coordinate, lose: Lose
) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, LONG_S)
    await coordinator.join(B, LONG_S)
    old = [await coordinator.claim(f"s/{i}", A.id) for i in range(3)]
    await lose(redis_server)
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, LONG_S)
    with pytest.raises(MembershipLost):
        await coordinator.claim("s/0", A.id)
    assert await coordinator.members() == []
    assert await coordinator.claims() == []
    assert await coordinator.lookup("s/0") is None
    assert not await coordinator.release(old[0])
    assert not await coordinator.evict(A.id)
    again = Member("a2", A.name, A.address)
    await coordinator.join(again, LONG_S)
    new = [await coordinator.claim(claim.key, again.id) for claim in old]
    assert all(now.version > then.version for now, then in zip(new, old, strict=True))
    assert not await coordinator.release(old[0])
    assert await coordinator.claims() == new


async def test_an_older_state_of_the_data_makes_no_version_twice(coordinate: Coordinate) -> None:
    """As when a replica takes over that had not heard the last of its master."""
    async with RedisServer() as server:
        coordinator = coordinate(server.url)
        await coordinator.join(A, LONG_S)
        first = await coordinator.claim("s/1", A.id)
        await _ask(server, "SAVE")
        await coordinator.join(B, LONG_S)
        await coordinator.release(first)
        second = await coordinator.claim("s/1", B.id)
        third = await coordinator.claim("s/2", B.id)
        await server.restart()

        await coordinator.renew(A, LONG_S)
        with pytest.raises(MembershipLost):
            await coordinator.renew(B, LONG_S)
        assert await coordinator.members() == [A]
        assert await coordinator.lookup("s/1") == first, "a route may be wrong: the owner knows better"
        assert not await coordinator.release(second)
        assert await coordinator.lookup("s/2") is None
        assert (await coordinator.claim("s/2", A.id)).version > third.version
        assert await coordinator.release(first)
        assert (await coordinator.claim("s/1", A.id)).version > second.version


async def test_forgotten_scripts_are_sent_again(redis_server: RedisServer, coordinate: Coordinate) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, LONG_S)

    async def churn(key: str) -> Claim:
        for _ in range(20):
            claim = await coordinator.claim(key, A.id)
            await coordinator.release(claim)
        return await coordinator.claim(key, A.id)

    async def forget() -> None:
        for _ in range(20):
            await _ask(redis_server, "SCRIPT", "FLUSH")

    *claims, _ = await asyncio.gather(*(churn(f"s/{i}") for i in range(9)), forget())
    assert await coordinator.claims() == claims


@pytest.mark.slow
@pytest.mark.parametrize("lose", [restart, lambda server: _ask(server, "CLIENT", "KILL", "TYPE", "PUBSUB")])
async def test_who_watches_learns_that_changes_were_missed(
    redis_server: RedisServer, coordinate: Coordinate, lose: Lose
) -> None:
    coordinator = coordinate(redis_server.url)
    number, _ = await coordinator.watch(-1, 0)
    await coordinator.join(A, LONG_S)
    heard, _ = await coordinator.watch(number, PATIENCE_S)
    watching = asyncio.create_task(coordinator.watch(heard, LONG_S))
    await asyncio.sleep(0)
    await lose(redis_server)
    async with asyncio.timeout(PATIENCE_S):
        after, changes = await _insist(watching, lambda: coordinator.watch(heard, LONG_S))
    assert after < heard
    assert changes == []
    number, _ = await coordinator.watch(-1, 0)
    await coordinator.join(B, LONG_S)
    after, [change] = await coordinator.watch(number, PATIENCE_S)
    assert change == Change("joined", member=B)
    assert after == number + 1


@pytest.mark.slow
async def test_who_watches_a_server_that_is_gone_is_told(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    number, _ = await coordinator.watch(-1, 0)
    redis_server.kill()
    for after in (number, -1):
        with pytest.raises(Unavailable):
            await coordinator.watch(after, LONG_S)
    await redis_server.start()
    assert (await coordinator.watch(number, LONG_S))[0] < number
    number, _ = await coordinator.watch(-1, LONG_S)
    assert await coordinator.watch(number, 0) == (number, [])


@pytest.mark.slow
async def test_a_server_that_stood_still_past_the_time_to_live_has_let_memberships_lapse(
    redis_server: RedisServer, connect: Connect, clock: Clock
) -> None:
    connection = connect(redis_server.url)
    coordinator = RedisCoordinator(connection, clock)
    await coordinator.join(A, LONG_S)
    await coordinator.claim("s/k", A.id)
    await coordinator.renew(A, 0.5)
    lapsed_at = asyncio.get_running_loop().time() + 0.5
    redis_server.pause()
    with impatient(connection):
        while asyncio.get_running_loop().time() < lapsed_at:
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await coordinator.lookup("s/k")
    redis_server.resume()
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, LONG_S)
    assert await coordinator.lookup("s/k") is None


async def test_an_answer_lost_after_its_effect_may_be_asked_for_again(
    redis_server: RedisServer, coordinate: Coordinate, connect: Connect, clock: Clock
) -> None:
    connection = connect(redis_server.url)
    hasty, patient = RedisCoordinator(connection, clock), coordinate(redis_server.url)
    await patient.join(A, LONG_S)
    await hasty.claim("s/known", A.id)  # now the server knows the script, and hasty has a connection
    redis_server.pause()
    with impatient(connection), pytest.raises(OutcomeUnknown):
        await hasty.claim("s/k", A.id)
    redis_server.resume()
    # A connection that stood before could be read before the claim: a new one is accepted first.
    standing = await coordinate(redis_server.url).lookup("s/k")
    assert standing is not None
    assert await hasty.claim("s/k", A.id) == standing


@pytest.mark.nightly
async def test_a_fail_over_costs_a_moment(redis_sentinel: RedisSentinel, coordinate: Coordinate) -> None:
    coordinator = coordinate(redis_sentinel.url, 1.0)
    await coordinator.join(A, LONG_S)
    number, _ = await coordinator.watch(-1, 0)
    old = await coordinator.claim("s/before", A.id)
    master = await redis_sentinel.master()
    await _replicated(master, 2)
    master.kill()
    meanwhile = asyncio.create_task(_until_claimed(coordinator, "s/after"))
    new_master = await redis_sentinel.failed_over(master)
    assert new_master is not master
    async with asyncio.timeout(FAIL_OVER_S):
        claim = await meanwhile
        assert claim.version > old.version
        assert await coordinator.lookup("s/before") == old
        await coordinator.renew(A, LONG_S)
        assert (await _insist(None, lambda: coordinator.watch(number, LONG_S)))[0] < number
        number, _ = await coordinator.watch(-1, 0)
        await coordinator.join(B, LONG_S)
        assert (await coordinator.watch(number, LONG_S))[1] == [Change("joined", member=B)]


@pytest.mark.nightly
async def test_a_master_that_was_demoted_is_left(
    redis_sentinel: RedisSentinel, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_sentinel.url)
    await coordinator.join(A, LONG_S)
    master = await redis_sentinel.master()
    await _replicated(master, 2)
    await _ask(redis_sentinel.sentinels[0], "SENTINEL", "FAILOVER", redis_sentinel.service)
    new_master = await redis_sentinel.failed_over(master)
    # The old one takes writes until the Sentinels look at it again, and then forgets them.
    async with asyncio.timeout(SENTINELS_LOOK_S / 2), new_master.client() as client:
        while not await client.hexists("{holdfast}:coordinator:claims", "s/k"):
            await _until_claimed(coordinator, "s/k")


@pytest.mark.nightly
async def test_a_cluster_that_lost_a_master_goes_on_with_its_replica(coordinate: Coordinate) -> None:
    async with RedisCluster(replicas=1) as cluster:
        coordinator = coordinate(cluster.url, 1.0)
        await coordinator.join(A, LONG_S)
        number, _ = await coordinator.watch(-1, 0)
        old = await coordinator.claim("s/before", A.id)
        [master] = [node for node in await cluster.masters() if await _ask(node, "DBSIZE")]
        await _replicated(master, 1)
        master.kill()
        async with asyncio.timeout(FAIL_OVER_S):
            claim = await _until_claimed(coordinator, "s/after")
            assert claim.version > old.version
            assert await coordinator.lookup("s/before") == old
            assert (await _insist(None, lambda: coordinator.watch(number, LONG_S)))[0] < number
            number, _ = await coordinator.watch(-1, 0)
            await coordinator.join(B, LONG_S)
            assert (await coordinator.watch(number, LONG_S))[1] == [Change("joined", member=B)]


async def _until_claimed(coordinator: RedisCoordinator, key: str) -> Claim:
    """Claim a key as soon as that goes; nothing but being unavailable may come before."""
    return await _insist(None, lambda: coordinator.claim(key, A.id))


async def _insist(first: Awaitable[T] | None, call: Callable[[], Awaitable[T]]) -> T:
    """What a call returns as soon as the service is there."""
    while True:
        try:
            return await (first or call())
        except (Unavailable, OutcomeUnknown):
            first = None
            await asyncio.sleep(0.01)


async def _replicated(master: RedisServer, replicas: int) -> None:
    """Return once that number of replicas has everything."""
    assert await _ask(master, "WAIT", str(replicas), "10000") == replicas


async def test_what_another_program_wrote_over_is_an_error_of_ours_and_hides_no_other(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, LONG_S)
    await coordinator.join(B, LONG_S)
    await coordinator.claim("s/1", A.id)
    for key in cast("list[str]", await _ask(redis_server, "KEYS", f"*member:{A.id}")):
        await _ask(redis_server, "SET", key, "\xff", "KEEPTTL")
    assert await coordinator.members() == [B]
    for key in cast("list[str]", await _ask(redis_server, "KEYS", "*")):
        if await _ask(redis_server, "TYPE", key) == "hash":
            await _ask(redis_server, "HSET", key, "s/1", f"x {A.id}")
    with pytest.raises(Damaged, match="s/1"):
        await coordinator.lookup("s/1")


async def _ask(server: RedisServer, *words: str) -> object:
    async with server.client() as client:
        answer: object = await client.execute_command(*words)  # type: ignore[no-untyped-call]
        return answer
