"""What only the coordinator in ZooKeeper does: other programs in its tree, sessions, what calls cost."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from holdfast.errors import ClaimLost, ConfigError, MembershipLost, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Load, Member
from holdfast.ports.meter import Meter
from holdfast.services.zookeeper import changes, layout, requests
from holdfast.services.zookeeper.address import ZooKeeperAddress
from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator
from simulator.proxies.tcp import TcpFaults
from simulator.servers.zookeeper import ZooKeeperServer
from tests.services.zookeeper.conftest import Connect

TTL_S = 30.0
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


@pytest.mark.slow
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


# --- changes that other programs make


async def next_claim(coordinator: ZooKeeperCoordinator, after: int) -> tuple[int, Claim]:
    """The next change of a claim after a number, and the number to go on from."""
    async with asyncio.timeout(20):
        while True:
            number, news = await coordinator.watch(after, 10)
            assert number >= after
            claims = [change.claim for change in news if change.claim is not None]
            if claims:
                assert len(claims) == 1
                return number, claims[0]
            after = number


async def test_a_claim_that_another_program_takes_and_releases_is_told(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await other_coordinator.join(A, TTL_S)
    path = register(stranger)
    number, _ = await coordinator.watch(-1, 0)
    stranger.create("/tasks/s%2Fk", path.encode(), ephemeral=True)
    number, taken = await next_claim(coordinator, number)
    assert taken == await coordinator.lookup("s/k")
    assert (taken.key, taken.member) == ("s/k", path)
    stranger.delete("/tasks/s%2Fk")
    number, released = await next_claim(coordinator, number)
    assert (released.key, released.member) == ("s/k", "")
    assert released.version > taken.version
    assert await next_claim(coordinator, number - 1) == (number, released)
    claim = await coordinator.claim("s/k", A.id)
    assert claim.member == A.id
    assert claim.version > released.version


async def test_who_was_refused_a_claim_hears_that_another_program_released_it(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
    await coordinator.join(A, TTL_S)
    stranger.create("/tasks/s%2Fk", register(stranger).encode(), ephemeral=True)
    assert (await coordinator.claim("s/k", A.id)).member != A.id
    number, _ = await coordinator.watch(-1, 0)
    stranger.delete("/tasks/s%2Fk")
    _, released = await next_claim(coordinator, number)
    assert (released.key, released.member) == ("s/k", "")


@pytest.mark.parametrize("how", ["deleted", "replaced", "overwritten"])
async def test_who_holds_a_claim_hears_that_it_was_taken(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient, how: str
) -> None:
    path = register(stranger)
    await coordinator.join(A, TTL_S)
    number, _ = await coordinator.watch(-1, 0)
    mine = await coordinator.claim("s/k", A.id)
    number, claim_seen = await next_claim(coordinator, number)
    assert claim_seen == mine
    if how == "overwritten":
        stranger.set("/tasks/s%2Fk", path.encode())
    else:
        transaction = stranger.transaction()
        transaction.delete("/tasks/s%2Fk")
        if how == "replaced":
            transaction.create("/tasks/s%2Fk", path.encode(), ephemeral=True)
        transaction.commit()
    number, news = await next_claim(coordinator, number)
    assert news.member == ("" if how == "deleted" else path)
    assert news.version > mine.version
    assert await coordinator.lookup("s/k") == (None if how == "deleted" else news)


@pytest.mark.slow
async def test_what_other_programs_did_while_the_connection_was_away_is_asked_for(
    address: ZooKeeperAddress, connect: Connect, zookeeper_server: ZooKeeperServer
) -> None:
    """Who follows must start again where a change may have gone by, and go on where none did."""
    async with TcpFaults(zookeeper_server.port) as wire:
        far = connect(replace(address, hosts=((wire.host, wire.port),)))
        near = connect()
        await near.join(A, LONG_S)
        number, _ = await far.watch(-1, 0)

        async def cut_off(meanwhile: Callable[[], Awaitable[object]]) -> tuple[int, list[Change]]:
            wire.refuse()
            wire.cut()
            await meanwhile()
            await wire.accept()
            async with asyncio.timeout(30):
                while True:
                    claim_seen = await far.watch(number, 1)
                    if claim_seen != (number, []):
                        return claim_seen

        async def claim() -> None:
            await near.claim("s/j", A.id)

        async def delete() -> None:
            client = KazooClient(address.servers + address.chroot)
            client.start()
            client.delete("/tasks/s%2Fj")
            client.stop()
            client.close()

        number, changes = await cut_off(claim)
        assert [change.claim.key for change in changes if change.claim] == ["s/j"]
        assert (await cut_off(delete))[0] == -1


@pytest.mark.slow
async def test_changes_that_nodes_make_are_told_once_and_read_from_the_log_alone(
    connect: Connect, coordinator: ZooKeeperCoordinator
) -> None:
    meter = Meter()
    counted = connect(meter=meter)
    await coordinator.join(A, TTL_S)
    await coordinator.join(B, TTL_S)
    number, _ = await counted.watch(-1, 0)
    before = Counter(meter.calls)
    for i in range(20):
        claim = await coordinator.claim(f"s/{i}", A.id)
        await coordinator.release(await coordinator.transfer(claim, B.id))
    await coordinator.leave(A.id)
    seen = await until(counted, number, "left")
    assert [change.kind for change in seen] == ["claim"] * 60 + ["left"]
    cost = meter.calls - before
    assert cost["zookeeper", "get"] == 61  # the log's own entries, and nothing else


@pytest.mark.slow
async def test_the_end_of_a_node_with_many_claims_is_one_change(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator
) -> None:
    await other_coordinator.join(B, TTL_S)
    await asyncio.gather(*(other_coordinator.claim(f"s/{i:03}", B.id) for i in range(100)))
    number, _ = await coordinator.watch(-1, 0)
    await other_coordinator.close()
    [left] = await until(coordinator, number, "left")
    assert left.member == B


@pytest.mark.parametrize("name", ["%ff", "50%", "a%2fb", "%%%"])
async def test_a_claim_under_a_name_that_stands_for_no_key_is_passed_over(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient, name: str
) -> None:
    await coordinator.join(A, TTL_S)
    number, _ = await coordinator.watch(-1, 0)
    stranger.create(f"/tasks/{name}", register(stranger).encode(), ephemeral=True)
    claim = await coordinator.claim("s/k", A.id)
    assert await coordinator.claims() == [claim]
    assert (await next_claim(coordinator, number))[1] == claim


# --- what other programs spoil


GARBAGE = [b"\xff", b"", b"{", b'"\xff"', b"[" * 100_000, b'{"kind": "claim", "key": 7}']


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_log_that_another_program_writes_into_ends_no_watch(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient, garbage: bytes
) -> None:
    await coordinator.join(A, TTL_S)
    number, _ = await coordinator.watch(-1, 0)
    stranger.create(f"{layout.CHANGES}/notes", b"")
    transaction = stranger.transaction()
    transaction.create(layout.CHANGE, garbage, sequence=True)
    transaction.set_data(layout.CHANGES, b"")
    transaction.commit()
    async with asyncio.timeout(20):
        while (await coordinator.watch(number, 1))[0] >= 0:
            pass
        number, _ = await coordinator.watch(-1, 0)
        while True:  # until it has begun again
            await coordinator.release(await coordinator.claim("s/k", A.id))
            after, changes = await coordinator.watch(number, 1)
            if changes:
                break
            number = after if after >= 0 else (await coordinator.watch(-1, 0))[0]
    assert changes[0].claim is not None


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_znodes_of_members_that_another_program_writes_into_are_told_as_such(
    coordinator: ZooKeeperCoordinator,
    other_coordinator: ZooKeeperCoordinator,
    stranger: KazooClient,
    garbage: bytes,
) -> None:
    await coordinator.join(A, TTL_S)
    stranger.set(layout.member(A.id), garbage)
    for call in (lambda: other_coordinator.claim("s/k", A.id), lambda: other_coordinator.evict(A.id)):
        with pytest.raises(Unavailable, match="another program wrote it"):
            await call()
    [name] = stranger.get_children("/services")
    path = f"{layout.REQUESTS}/{name}.odd"
    stranger.set(layout.member(A.id), f"/services/{name}".encode())
    stranger.create(path, garbage, ephemeral=True)
    assert (await other_coordinator.claim("s/k", A.id)).member == A.id
    assert stranger.get(path)[0] == garbage
    stranger.set(f"/services/{name}", garbage)
    assert [member.foreign for member in await other_coordinator.members()] == [True]


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


@pytest.mark.slow
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


async def test_a_closed_coordinator_leaves_no_thread_running(address: ZooKeeperAddress, clock: Clock) -> None:
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


@pytest.mark.nightly
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


@pytest.mark.nightly
async def test_many_streams_are_placed_on_others_at_once(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator
) -> None:
    await other_coordinator.join(B, TTL_S)
    made = await asyncio.gather(*(coordinator.claim(f"s/{i:03}", B.id) for i in range(200)))
    assert {claim.member for claim in made} == {B.id}
    assert await coordinator.claims(B.id) == await other_coordinator.claims(B.id) == list(made)


@pytest.mark.slow
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


async def test_keys_of_any_characters_can_be_claimed(
    coordinator: ZooKeeperCoordinator, stranger: KazooClient
) -> None:
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


@pytest.mark.slow
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
        while (await coordinator.watch(number, 1)) != (-1, []):
            pass
        number, _ = await coordinator.watch(-1, 0)
        await coordinator.release(claim)
        seen: list[Change] = []
        while not seen:
            number, seen = await coordinator.watch(number, 5)
    assert [change.claim.key for change in seen if change.claim] == ["s/2"]


# --- what calls cost


@pytest.mark.slow
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


@pytest.mark.slow
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
