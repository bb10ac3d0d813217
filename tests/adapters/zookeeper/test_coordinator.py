"""What only the coordinator in ZooKeeper does: other programs in its tree, sessions, what calls cost."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from kazoo.client import KazooClient
from tests.adapters.zookeeper.conftest import Connect

from holdfast.adapters.zookeeper import changes, layout, requests
from holdfast.adapters.zookeeper.address import ZooKeeperAddress
from holdfast.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from holdfast.errors import ClaimLost, ConfigError, MembershipLost, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Load, Member
from holdfast.ports.meter import Meter

TTL_S = 5.0
LONG_S = 60.0
A, B, C = (Member(f"member-{n}", f"node {n}", f"http://10.0.0.{i}:80") for i, n in enumerate("abc"))


@pytest.fixture
async def stranger(
    coordinator: ZooKeeperCoordinator, address: ZooKeeperAddress
) -> AsyncIterator[KazooClient]:
    """Another program, which knows only /services and /tasks."""
    await coordinator.members()  # makes the directories
    client = KazooClient(address.servers + address.chroot, timeout=TTL_S)
    client.start()
    yield client
    client.stop()
    client.close()


def register(stranger: KazooClient, data: bytes = b'{"host": "10.0.0.9", "port": 90, "timestamp": 1}') -> str:
    return str(stranger.create("/services/worker-", data, ephemeral=True, sequence=True))


async def until(
    coordinator: ZooKeeperCoordinator, after: int, kind: str, member: str | None = None
) -> list[Change]:
    """All changes after a number, up to the first of a kind (of a member)."""
    seen: list[Change] = []
    async with asyncio.timeout(20):
        while not any(c.kind == kind and member in (None, c.member and c.member.id) for c in seen):
            number, news = await coordinator.watch(after, 10)
            assert number >= after
            after = number
            seen += news
    return seen


# --- other programs


async def test_another_program_finds_members_and_owners(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    claim = await coordinator.claim("s/k", A.id)
    [name] = stranger.get_children("/services")
    assert name.startswith("worker-")
    data, service = stranger.get(f"/services/{name}")
    assert (json.loads(data)["host"], json.loads(data)["port"]) == ("10.0.0.0", 80)
    data, task = stranger.get("/tasks/s%2Fk")
    assert data.decode() == f"/services/{name}"
    assert task.ephemeralOwner == service.ephemeralOwner != 0
    assert task.czxid == claim.version
    await coordinator.leave(A.id)
    assert stranger.get_children("/services") == stranger.get_children("/tasks") == []


async def test_a_claim_made_for_another_member_ends_with_that_one(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    await other_coordinator.join(B, TTL_S)
    claim = await coordinator.claim("s/k", B.id)
    moved = await other_coordinator.transfer(claim, A.id)
    for key, member in (("s/k", A.id), ("s/j", B.id)):
        await other_coordinator.claim(key, member)
    services = {
        json.loads(stranger.get(f"/services/{name}")[0])["id"]: stranger.get(f"/services/{name}")[1]
        for name in stranger.get_children("/services")
    }
    _, task = stranger.get("/tasks/s%2Fk")
    assert (task.ephemeralOwner, task.czxid) == (services[A.id].ephemeralOwner, moved.version)
    assert stranger.get("/tasks/s%2Fj")[1].ephemeralOwner == services[B.id].ephemeralOwner
    await coordinator.leave(A.id)
    assert stranger.get_children("/tasks") == ["s%2Fj"]


async def test_the_claim_of_another_program_is_respected(
    coordinator: ZooKeeperCoordinator,
    other_coordinator: ZooKeeperCoordinator,
    stranger: KazooClient,
) -> None:
    await coordinator.join(A, TTL_S)
    path = register(stranger)
    stranger.create("/tasks/s%2Fk", path.encode(), ephemeral=True)
    number, _ = await coordinator.watch(-1, 0)
    claim = await coordinator.claim("s/k", A.id)
    assert (claim.key, claim.member) == ("s/k", path)
    assert claim == await other_coordinator.claim("s/k", A.id) == await other_coordinator.lookup("s/k")
    assert await coordinator.claims() == [claim]
    stranger.stop()
    [left] = await until(coordinator, number, "left")
    assert left.member is not None
    assert left.member.id == path
    assert (await coordinator.claim("s/k", A.id)).member == A.id


async def test_a_node_of_another_program_is_a_member_without_room(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    number, _ = await coordinator.watch(-1, 0)
    path = register(stranger)
    other = Member(path, layout.basename(path), "http://10.0.0.9:90", Load(room=0), foreign=True)
    assert await coordinator.members() == [other]
    assert [change.member for change in await until(coordinator, number, "joined")] == [other]
    with pytest.raises(MembershipLost):
        await coordinator.claim("s/k", path)
    assert await coordinator.evict(path) is False
    assert await coordinator.members() == [other]


async def test_another_program_may_give_a_stream_to_a_member(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    await other_coordinator.join(B, TTL_S)
    [path] = [
        f"/services/{name}"
        for name in stranger.get_children("/services")
        if json.loads(stranger.get(f"/services/{name}")[0])["id"] == A.id
    ]
    for key, owner in (("s%2Fk", path), ("s%2Fchroot", f"/some/where{path}")):
        stranger.create(f"/tasks/{key}", owner.encode(), ephemeral=True)
    claim = await other_coordinator.claim("s/k", B.id)
    assert claim.member == A.id
    assert await coordinator.lookup("s/k") == claim
    assert await coordinator.claims(A.id) == [claim]
    assert (await other_coordinator.lookup("s/chroot") or claim).key == "s/chroot"
    assert (await coordinator.transfer(claim, B.id)).member == B.id
    assert stranger.get("/tasks/s%2Fk")[0] != path.encode()


@pytest.mark.parametrize("data", [b"", b"nowhere", b"/services/..", b"/services/worker-9999999999", b"\xff"])
async def test_a_claim_of_nobody_is_no_claim(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient, data: bytes
) -> None:
    stranger.create("/tasks/s%2Fk", data, ephemeral=True)
    await coordinator.join(A, TTL_S)
    assert await coordinator.lookup("s/k") is None
    assert await coordinator.claims() == []
    claim = await coordinator.claim("s/k", A.id)
    assert claim == await coordinator.lookup("s/k")


async def test_what_an_evicted_session_that_lives_on_leaves_behind_blocks_nobody(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    path = register(stranger, json.dumps({"id": "zombie", "name": "z", "address": "http://z:1"}).encode())
    stranger.ensure_path(layout.MEMBERS)
    stranger.create(layout.member("zombie"), path.encode(), ephemeral=True)
    stranger.create("/tasks/s%2Fk", path.encode(), ephemeral=True)
    await coordinator.join(A, TTL_S)
    claim = await coordinator.claim("s/k", A.id)
    assert claim.member == "zombie"
    assert await coordinator.evict("zombie") is True
    assert await coordinator.lookup("s/k") is None
    assert stranger.exists("/tasks/s%2Fk").czxid == claim.version  # still there
    assert await coordinator.release(claim) is False
    with pytest.raises(ClaimLost):
        await coordinator.transfer(claim, A.id)
    mine = await coordinator.claim("s/k", A.id)
    assert (mine.member, mine.version > claim.version) == (A.id, True)
    stranger.stop()
    assert await coordinator.lookup("s/k") == mine


async def test_a_znode_of_an_older_session_is_not_trusted_for_the_new_one_at_its_path(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    stranger.create("/tasks/s%2Fk", b"/services/worker-0000000000", ephemeral=True)
    await coordinator.join(A, TTL_S)  # has just that path
    assert stranger.exists("/services/worker-0000000000")
    assert await coordinator.lookup("s/k") is None


# --- memberships


async def test_a_member_that_was_evicted_ends_its_session(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    await coordinator.claim("s/k", A.id)
    gone = threading.Event()
    stranger.exists("/tasks/s%2Fk", watch=lambda _: gone.set())
    assert await other_coordinator.evict(A.id) is True
    assert await asyncio.to_thread(gone.wait, TTL_S / 2)
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, TTL_S)
    with pytest.raises(MembershipLost):
        await coordinator.claim("s/k", A.id)


async def test_a_membership_lapses_though_the_loop_is_stuck(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, 1.0)
    [name] = stranger.get_children("/services")
    gone = threading.Event()
    assert stranger.exists(f"/services/{name}", watch=lambda _: gone.set())
    assert gone.wait(10)  # in the loop's own thread
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, 1.0)


async def test_a_ttl_that_the_servers_do_not_give_is_refused(coordinator: ZooKeeperCoordinator) -> None:
    with pytest.raises(ConfigError, match=r"no less than 0.4 s.*minSessionTimeout"):
        await coordinator.join(A, 0.1)
    with pytest.raises(ConfigError, match=r"no more than 60 s.*maxSessionTimeout"):
        await coordinator.join(A, 600)
    assert await coordinator.members() == []


async def test_joining_twice_under_one_id_is_refused(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator
) -> None:
    await coordinator.join(A, TTL_S)
    with pytest.raises(Unavailable, match="under a new id"):
        await other_coordinator.join(A, TTL_S)
    await coordinator.renew(A, TTL_S)
    assert await other_coordinator.members() == [A]


async def test_nothing_runs_on_after_close(address: ZooKeeperAddress, clock: Clock) -> None:
    before = set(threading.enumerate())
    coordinator = ZooKeeperCoordinator(address, clock, Meter())
    await coordinator.join(A, TTL_S)
    waiting = asyncio.create_task(coordinator.watch((await coordinator.watch(-1, 0))[0], 60))
    await asyncio.sleep(0)  # it begins to wait
    await coordinator.close()
    await coordinator.close()
    assert (await waiting)[1] == []
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert all(name.startswith("asyncio") for name in left), left
    with pytest.raises(Unavailable):
        await coordinator.members()
    again = ZooKeeperCoordinator(address, clock, Meter())
    assert await again.members() == []
    await again.close()


async def test_closing_what_was_never_used_needs_no_server(clock: Clock) -> None:
    await ZooKeeperCoordinator(ZooKeeperAddress((("127.0.0.1", 1),)), clock, Meter()).close()


# --- claims


async def test_every_claim_is_handed_on_once(connect: Connect, clock: Clock) -> None:
    """Several processes claim, transfer and release the same few keys as fast as they can."""
    chance = random.Random(7)
    members = [Member(f"m{i}", f"n{i}", f"http://10.0.0.{i}:80") for i in range(4)]
    clients = [connect() for _ in members]
    for client, member in zip(clients, members, strict=True):
        await client.join(member, LONG_S)
    number, _ = await clients[0].watch(-1, 0)
    ended: Counter[tuple[str, int]] = Counter()

    async def work(client: ZooKeeperCoordinator) -> None:
        for _ in range(15):
            claim = await client.claim(f"s/{chance.randrange(3)}", chance.choice(members).id)
            for _ in range(2):
                try:
                    if chance.random() < 0.3:
                        ended[claim.key, claim.version] += await client.release(claim)
                    else:
                        moved = await client.transfer(claim, chance.choice(members).id)
                        ended[claim.key, claim.version] += 1
                        claim = moved
                except ClaimLost:
                    break

    await asyncio.gather(*(work(client) for client in clients * 2))
    await clients[0].leave(members[0].id)
    seen = [change.claim for change in await until(clients[0], number, "left") if change.claim]
    assert ended
    assert set(ended.values()) <= {0, 1}
    for key in ("s/0", "s/1", "s/2"):
        versions = [claim.version for claim in seen if claim.key == key]
        assert versions == sorted(set(versions))
        made = {claim.version for claim in seen if claim.key == key and claim.member}
        assert {version for (k, version), count in ended.items() if k == key and count} <= made


async def test_many_streams_are_placed_on_others_at_once(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator
) -> None:
    await other_coordinator.join(B, TTL_S)
    made = await asyncio.gather(*(coordinator.claim(f"s/{i:03}", B.id) for i in range(200)))
    assert {claim.member for claim in made} == {B.id}
    assert await coordinator.claims(B.id) == await other_coordinator.claims(B.id) == list(made)


async def test_a_member_that_does_not_answer_is_asked_in_vain(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ANSWER_S", 0.2)
    path = register(stranger, json.dumps({"id": "mute", "name": "m", "address": "http://m:1"}).encode())
    stranger.ensure_path(layout.MEMBERS)
    stranger.create(layout.member("mute"), path.encode(), ephemeral=True)
    with pytest.raises(Unavailable, match="doesn't answer"):
        await coordinator.claim("s/k", "mute")
    assert stranger.get_children(layout.REQUESTS) == []
    asked = asyncio.create_task(coordinator.claim("s/k", "mute"))
    monkeypatch.setattr(requests, "ANSWER_S", 60)
    asked = asyncio.create_task(coordinator.claim("s/k", "mute"))
    await coordinator.members()
    stranger.stop()
    with pytest.raises(MembershipLost):
        await asyncio.wait_for(asked, 10)


async def test_odd_ids_are_names(coordinator: ZooKeeperCoordinator, stranger: KazooClient) -> None:
    keys = [
        ".",
        "..",
        "zookeeper",
        "a/../b",
        "nul\0",
        "\x1f\x7f\x9f",
        "\ue000\ufffe",
        "\U0001f600",
        "%2F",
        "x" * 10_000,
    ]
    await coordinator.join(Member("../m/1", "n", ""), TTL_S)
    claims = [await coordinator.claim(key, "../m/1") for key in keys]
    assert [await coordinator.lookup(key) for key in keys] == claims
    assert {claim.key for claim in await coordinator.claims()} == set(keys)
    assert len(stranger.get_children("/tasks")) == len(keys)


# --- changes


async def test_who_lags_behind_the_log_starts_again(
    connect: Connect,
    coordinator: ZooKeeperCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    stranger: KazooClient,
) -> None:
    monkeypatch.setattr(changes, "LOGGED", 20)
    monkeypatch.setattr(changes, "PRUNE_EVERY", 10)
    monkeypatch.setattr(changes, "KEPT", 10)
    watcher = connect()
    await coordinator.join(A, TTL_S)
    begin, _ = await watcher.watch(-1, 0)
    for i in range(40):
        await coordinator.release(await coordinator.claim(f"s/{i}", A.id))
    async with asyncio.timeout(10):
        while (await watcher.watch(begin, 5))[0] >= 0:
            pass
    number, _ = await watcher.watch(-1, 0)
    await coordinator.claim("s/last", A.id)
    await until(watcher, number, "claim")
    assert len(stranger.get_children(layout.CHANGES)) <= 40


async def test_a_log_that_was_deleted_begins_anew(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    await coordinator.claim("s/1", A.id)
    number, _ = await coordinator.watch(-1, 0)
    stranger.delete(layout.CHANGES, recursive=True)
    with pytest.raises(Unavailable):
        await coordinator.claim("s/2", A.id)
    stranger.create(layout.CHANGES)
    claim = await coordinator.claim("s/2", A.id)
    async with asyncio.timeout(10):
        while (await coordinator.watch(number, 1)) != (-1, []):
            pass
        number, _ = await coordinator.watch(-1, 0)
        await coordinator.release(claim)
        seen: list[Change] = []
        while not seen:
            number, seen = await coordinator.watch(number, 5)
    assert [change.claim.key for change in seen if change.claim] == ["s/2"]


# --- what calls cost


async def test_calls_cost_the_same_however_many_claims_there_are(connect: Connect, clock: Clock) -> None:
    coordinator, meter = connect(), Meter()
    counted = connect(meter=meter)
    await coordinator.join(A, TTL_S)
    await counted.join(B, TTL_S)

    async def cost(work: str) -> Counter[tuple[str, str]]:
        before = Counter(meter.calls)
        if work == "claim":
            await counted.claim(clock.new_id(), B.id)
        elif work == "renew":
            await counted.renew(B, TTL_S)
        elif work == "lookup":
            await counted.lookup("s/0")
        else:
            await counted.members()
        return meter.calls - before

    works = ("claim", "renew", "lookup", "members")
    await coordinator.claim("s/0", A.id)
    for work in works * 2:
        await cost(work)  # what is needed once
    few = {work: await cost(work) for work in works}
    await asyncio.gather(*(coordinator.claim(f"s/{i}", A.id) for i in range(300)))
    assert {work: await cost(work) for work in works} == few
    assert few["renew"].total() == 1
    assert few["claim"].total() == 2
    assert few["lookup"].total() == 3


async def test_claims_of_a_member_joined_here_are_read_without_a_list(connect: Connect) -> None:
    coordinator, meter = connect(), Meter()
    counted = connect(meter=meter)
    await coordinator.join(A, TTL_S)
    await counted.join(B, TTL_S)
    await asyncio.gather(*(coordinator.claim(f"s/{i}", A.id) for i in range(300)))
    mine = [await counted.claim(f"t/{i}", B.id) for i in range(3)]
    moved = await counted.transfer(mine.pop(), A.id)
    meter.calls.clear()
    assert await counted.claims(B.id) == mine
    assert meter.calls["zookeeper", "getChildren"] == 0
    assert meter.calls.total() <= 5
    assert moved in await counted.claims(A.id)


async def test_a_claim_is_released_by_its_exact_version_only(coordinator: ZooKeeperCoordinator) -> None:
    await coordinator.join(A, TTL_S)
    first = await coordinator.claim("s/k", A.id)
    outcomes = await asyncio.gather(
        *(coordinator.release(first) for _ in range(5)), coordinator.claim("s/k", A.id)
    )
    assert sum(outcome is True for outcome in outcomes) == 1
    assert isinstance(outcomes[-1], Claim)
