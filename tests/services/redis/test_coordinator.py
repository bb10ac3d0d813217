"""The coordinator in Redis: what every coordinator does, and what it costs here."""

import asyncio

import pytest

from holdfast.errors import ClaimLost, ConfigError, MembershipLost
from holdfast.ports.coordinator import Change, Claim, Load, Member
from holdfast.ports.meter import Meter
from holdfast.services.redis import coordinator as module
from holdfast.services.redis.coordinator import RedisCoordinator
from holdfast.testing.conformance import CoordinatorConformance
from simulator.servers import RedisServer
from tests.services.redis.conftest import Connect, Coordinate
from tests.services.redis.places import Cluster, OneServer, Sentinels

PATIENCE_S = 30.0
LOOKING = ("config", "info", "hello", "client")
"""Commands of looking at a server."""

A, B = Member("a", "node a", "http://127.0.0.1:1"), Member("b", "node b", "http://127.0.0.1:2")


class OnRedis(CoordinatorConformance):
    @pytest.fixture
    async def coordinator(self, url: str, coordinate: Coordinate) -> RedisCoordinator:
        return coordinate(url)

    @pytest.fixture
    async def other_coordinator(self, url: str, coordinate: Coordinate) -> RedisCoordinator:
        return coordinate(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


@pytest.mark.nightly
class TestBySentinels(Sentinels, OnRedis):
    pass


@pytest.mark.nightly
class TestInACluster(Cluster, OnRedis):
    pass


async def test_namespaces_do_not_see_each_other(redis_server: RedisServer, coordinate: Coordinate) -> None:
    one, two = (coordinate(f"{redis_server.url}?namespace={name}") for name in ("one", "two"))
    number, _ = await two.watch(-1, 0)
    await one.join(A, 60)
    await one.claim("s/k", A.id)
    assert await two.members() == []
    assert await two.claims() == []
    assert await two.watch(number, 0) == (number, [])


async def test_a_renewal_is_one_command_however_many_claims_there_are(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, 60)
    await _ask(redis_server, "CONFIG", "RESETSTAT")
    await coordinator.renew(A, 60)
    alone = await _calls(redis_server)
    await asyncio.gather(*(coordinator.claim(f"s/{i}", A.id) for i in range(3000)))
    await _ask(redis_server, "CONFIG", "RESETSTAT")
    await coordinator.renew(A, 60)
    assert alone == await _calls(redis_server) == {"set": 1}


async def test_each_call_is_one_round_trip(
    redis_server: RedisServer, coordinate: Coordinate, meter: Meter
) -> None:
    coordinator = coordinate(redis_server.url)
    for member in (A, B):
        await coordinator.join(member, 60)
    first = await coordinator.claim("s/0", A.id)
    await coordinator.release(await coordinator.transfer(first, B.id))
    await coordinator.lookup("s/0")
    await coordinator.members()
    await coordinator.evict(B.id)
    meter.calls.clear()
    claim = await coordinator.claim("s/k", A.id)
    await coordinator.lookup("s/k")
    await coordinator.release(claim)
    await coordinator.renew(A, 60)
    await coordinator.members()
    assert meter.calls == {("redis", name): 1 for name in ("claim", "lookup", "release", "SET", "members")}


@pytest.mark.slow
async def test_the_claims_of_one_are_read_without_those_of_others(
    redis_server: RedisServer, coordinate: Coordinate, meter: Meter
) -> None:
    coordinator = coordinate(redis_server.url)
    for member in (A, B):
        await coordinator.join(member, 60)
    await asyncio.gather(*(coordinator.claim(f"s/{i}", A.id) for i in range(5000)))
    mine = [await coordinator.claim(f"t/{i}", B.id) for i in range(3)]
    await coordinator.claims(B.id)  # the server knows the script from then on
    meter.calls.clear()
    assert await coordinator.claims(B.id) == mine
    assert meter.calls["redis", "claims"] == 1
    everything = await coordinator.claims()
    assert len(everything) == 5003
    assert everything == sorted(everything, key=lambda claim: claim.key)
    assert 5 < meter.calls["redis", "claims"] < 50, "some at a time"


async def test_what_was_given_away_leaves_nothing_behind(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    for member in (A, B):
        await coordinator.join(member, 60)
    for i in range(10):
        claim = await coordinator.claim(f"s/{i}", A.id)
        await coordinator.release(await coordinator.transfer(claim, B.id))
    keys = await _ask(redis_server, "KEYS", "*")
    assert isinstance(keys, list)
    names = {key.removeprefix("{holdfast}:coordinator:") for key in keys}
    assert names == {"member:a", "member:b", "members", "version"}


async def test_claims_of_the_ended_are_removed_some_at_a_time(
    redis_server: RedisServer, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP", 10)
    coordinator = coordinate(redis_server.url)
    for member in (A, B):
        await coordinator.join(member, 60)
    for i in range(35):
        await coordinator.claim(f"s/{i}", A.id)
    await coordinator.evict(A.id)
    taken = await coordinator.claim("s/7", B.id)
    left = []
    for _ in range(5):
        left.append(await _ask(redis_server, "HLEN", "{holdfast}:coordinator:claims"))
        await coordinator.members()
    assert left == [35, 25, 15, 5, 1]
    assert await coordinator.claims() == [taken]
    await coordinator.evict(B.id)
    for _ in range(3):
        await coordinator.members()
    assert await _ask(redis_server, "KEYS", "*") == ["{holdfast}:coordinator:version"], "nothing is left over"


async def test_a_lost_part_of_the_data_costs_nobody_a_claim(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    for member in (A, B):
        await coordinator.join(member, 60)
    await coordinator.claim("s/k", A.id)
    await _ask(redis_server, "DEL", "{holdfast}:coordinator:claims")
    taken = await coordinator.claim("s/k", B.id)
    await coordinator.evict(A.id)
    await coordinator.members()
    assert await coordinator.claims() == [taken]


async def test_a_membership_that_lapses_wakes_who_watches(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    watching, coordinator = coordinate(redis_server.url), coordinate(redis_server.url)
    number, _ = await watching.watch(-1, 0)
    await coordinator.join(B, 60)
    await watching.members()  # none lapses for long, as far as it knows
    await coordinator.join(A, 0.2)
    begun_at = asyncio.get_running_loop().time()
    changes: list[Change] = []
    while len(changes) < 3:
        number, new = await watching.watch(number, 6 * PATIENCE_S)
        changes += new
    assert [(change.kind, change.member) for change in changes] == [("joined", B), ("joined", A), ("left", A)]
    assert asyncio.get_running_loop().time() - begun_at < PATIENCE_S


async def test_a_lapse_is_reported_once_to_each_watcher(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinators = [coordinate(redis_server.url) for _ in range(4)]
    numbers = [(await coordinator.watch(-1, 0))[0] for coordinator in coordinators]
    await coordinators[0].join(A, 0.1)

    async def until_left(coordinator: RedisCoordinator, number: int) -> None:
        kinds: list[str] = []
        while "left" not in kinds:
            number, changes = await coordinator.watch(number, PATIENCE_S)
            kinds += [change.kind for change in changes]
        assert kinds == ["joined", "left"]
        assert await coordinator.watch(number, 0) == (number, [])

    await asyncio.gather(*map(until_left, coordinators, numbers))


async def test_who_is_slow_to_ask_starts_again(
    redis_server: RedisServer, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.feed.KEPT", 20)
    coordinator = coordinate(redis_server.url)
    begin, _ = await coordinator.watch(-1, 0)
    await coordinator.join(A, 60)
    for i in range(30):
        await coordinator.claim(f"s/{i}", A.id)
    await _until_heard(coordinator, begin + 31)
    assert await coordinator.watch(begin, PATIENCE_S) == (-1, [])
    now, _ = await coordinator.watch(-1, PATIENCE_S)
    _, changes = await coordinator.watch(now - 2, PATIENCE_S)
    assert [change.claim.key for change in changes if change.claim] == ["s/28", "s/29"]


async def test_what_is_not_understood_is_passed_over(
    redis_server: RedisServer, coordinate: Coordinate, connect: Connect
) -> None:
    coordinator = coordinate(redis_server.url)
    number, _ = await coordinator.watch(-1, 0)
    channel = "{holdfast}:coordinator:changes"
    for message in ("", "moon full", "claim", "claim x y z", "joined {", 'left {"id": 1}', b"claim 1 \xff k"):
        await connect(redis_server.url).command(channel, "PUBLISH", channel, message)
    await coordinator.join(A, 60)
    await _until_heard(coordinator, number + 8)
    _, [change] = await coordinator.watch(number, PATIENCE_S)
    assert change.member == A


async def test_closing_ends_a_waiting_watch(redis_server: RedisServer, coordinate: Coordinate) -> None:
    coordinator = coordinate(redis_server.url)
    number, _ = await coordinator.watch(-1, 0)
    watching = asyncio.create_task(coordinator.watch(number, 60))
    await asyncio.sleep(0)
    await coordinator.close()
    async with asyncio.timeout(PATIENCE_S):
        await watching


async def test_a_user_with_little_leave_is_enough(coordinate: Coordinate) -> None:
    rule = (
        "user node on >geheim ~{holdfast}:* resetchannels &{holdfast}:* -@all +evalsha +eval +subscribe"
        " +publish +ping +time +@string +@hash +@set +exists +del +pttl"
    )
    async with RedisServer(users=[rule]) as server:
        coordinator = coordinate(server.url_as("node", "geheim"))
        number, _ = await coordinator.watch(-1, 0)
        await coordinator.join(A, 60)
        await coordinator.join(B, 60)
        claim = await coordinator.transfer(await coordinator.claim("s/k", A.id), B.id)
        assert await coordinator.claims() == [claim]
        assert await coordinator.release(claim)
        assert await coordinator.evict(A.id)
        assert await coordinator.members() == [B]
        await coordinator.renew(B, 60)
        await _until_heard(coordinator, number + 6)
        elsewhere = coordinate(server.url_as("node", "geheim") + "?namespace=other")
        with pytest.raises(ConfigError, match="ACL"):
            await elsewhere.join(A, 60)


async def test_errors_name_the_lost_membership_or_claim(
    redis_server: RedisServer, coordinate: Coordinate
) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, 60)
    with pytest.raises(MembershipLost, match="membership nobody is not known"):
        await coordinator.claim("s/k", "nobody")
    with pytest.raises(ClaimLost, match="s/k: the claim of a, version 7"):
        await coordinator.transfer(Claim("s/k", A.id, 7), A.id)


async def test_versions_above_2_to_53_are_exact(redis_server: RedisServer, coordinate: Coordinate) -> None:
    coordinator = coordinate(redis_server.url)
    await coordinator.join(A, 60)
    far = 2**53 - 100
    await _ask(redis_server, "SET", "{holdfast}:coordinator:version", str(far))
    claims = [await coordinator.claim(f"s/{i}", A.id) for i in range(5)]
    assert [claim.version for claim in claims] == [far + 1 + i for i in range(5)]
    assert await coordinator.claims() == claims


async def test_names_and_loads_may_hold_any_text(redis_server: RedisServer, coordinate: Coordinate) -> None:
    coordinator = coordinate(redis_server.url)
    number, _ = await coordinator.watch(-1, 0)
    odd = Member("id-1", 'käse "\N{SNOWMAN}" \\ \n\t%', "http://[::1]:1/?a=b c", Load(handled=2**60))
    await coordinator.join(odd, 60)
    assert await coordinator.members() == [odd]
    _, [change] = await coordinator.watch(number, PATIENCE_S)
    assert change.member == odd


async def _until_heard(coordinator: RedisCoordinator, number: int) -> None:
    """Return once that number of messages was published, without reading them."""
    async with asyncio.timeout(PATIENCE_S):
        now, _ = await coordinator.watch(-1, 0)
        while now < number:
            now, _ = await coordinator.watch(now, PATIENCE_S)


async def _ask(server: RedisServer, *words: str) -> object:
    async with server.client() as client:
        answer: object = await client.execute_command(*words)  # type: ignore[no-untyped-call]
        return answer


async def _calls(server: RedisServer) -> dict[str, int]:
    """Commands that the server ran since its counts were reset, without the reading of the counts."""
    async with server.client() as client:
        stats = await client.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    return {name: calls for name, calls in counts.items() if name.partition("|")[0] not in LOOKING}
