"""Connections, sessions and servers that end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from holdfast.errors import HoldfastError, MembershipLost, OutcomeUnknown, Retry, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Load, Member
from holdfast.services.zookeeper import claims, layout, session
from holdfast.services.zookeeper.address import ZooKeeperAddress, parse
from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator
from simulator.proxies.tcp import TcpFaults
from simulator.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.services.zookeeper.conftest import Connect

TTL_S = 10.0
SHORT_S = 1.0
PATIENCE_S = 20.0
A, B = (Member(f"member-{n}", f"node {n}", f"http://10.0.0.{i}:80") for i, n in enumerate("ab"))

T = TypeVar("T")


@pytest.fixture
async def wire(zookeeper_server: ZooKeeperServer) -> AsyncIterator[TcpFaults]:
    """Between one coordinator and the server."""
    async with TcpFaults(zookeeper_server.port) as faults:
        yield faults


@pytest.fixture
async def far(
    connect: Connect, address: ZooKeeperAddress, wire: TcpFaults
) -> AsyncIterator[ZooKeeperCoordinator]:
    """The coordinator at the end of the wire; ``coordinator`` has one of its own."""
    made = connect(replace(address, hosts=((wire.host, wire.port),)))
    yield made
    wire.thaw()
    await wire.accept()
    await made.close()


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until it is answered: until then it may fail only in ways that may be tried again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except HoldfastError as error:
                if error.retry not in (Retry.SAFE, Retry.SAME):
                    raise
                await asyncio.sleep(0.02)


async def until(
    coordinator: ZooKeeperCoordinator, after: int, last: Callable[[Change], bool]
) -> list[Change]:
    seen: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while not any(last(change) for change in seen):
            number, news = await coordinator.watch(after, PATIENCE_S)
            assert number >= after, "changes were lost"
            after, seen = number, seen + news
    return seen


def left(member: Member) -> Callable[[Change], bool]:
    return lambda change: (
        change.kind == "left" and change.member is not None and change.member.id == member.id
    )


def made(claim: Claim) -> Callable[[Change], bool]:
    return lambda change: change.claim == claim


# --- sessions


@pytest.mark.slow
async def test_who_loses_its_session_loses_its_membership(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, address: ZooKeeperAddress
) -> None:
    await coordinator.join(A, TTL_S)
    assert await coordinator.members() == [A]
    claim = await coordinator.claim("s/k", A.id)
    number, _ = await other_coordinator.watch(-1, 0)
    await asyncio.to_thread(expire, coordinator, address)
    await until(other_coordinator, number, left(A))
    assert await other_coordinator.lookup("s/k") is None
    await lost(lambda: coordinator.renew(A, TTL_S))
    with pytest.raises(MembershipLost):
        await coordinator.claim("s/k", A.id)
    assert await coordinator.release(claim) is False
    again = Member("member-again", A.name, A.address)
    await coordinator.join(again, TTL_S)
    assert (await coordinator.claim("s/k", again.id)).version > claim.version
    await coordinator.renew(again, TTL_S)


async def test_the_session_that_reads_may_be_lost_without_a_change_missed(
    coordinator: ZooKeeperCoordinator, other_coordinator: ZooKeeperCoordinator, address: ZooKeeperAddress
) -> None:
    await other_coordinator.join(A, TTL_S)
    number, _ = await coordinator.watch(-1, 0)
    before = await other_coordinator.claim("s/1", A.id)
    await asyncio.to_thread(expire, coordinator, address)
    after = await other_coordinator.claim("s/2", A.id)
    seen = await until(coordinator, number, made(after))
    assert [change.claim for change in seen] == [before, after]
    assert await insist(coordinator.claims) == [before, after]


def expire(coordinator: ZooKeeperCoordinator, address: ZooKeeperAddress) -> None:
    """End the session of a coordinator's membership, or else of the coordinator, behind its back."""
    ended = coordinator.sessions[0]
    thief = KazooClient(address.servers, client_id=ended.client_id)
    thief.start()
    thief.stop()
    thief.close()


async def lost(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(MembershipLost):
        await insist(call)


# --- connections


async def test_a_membership_survives_a_broken_connection(
    far: ZooKeeperCoordinator, coordinator: ZooKeeperCoordinator, wire: TcpFaults
) -> None:
    await far.join(A, TTL_S)
    claim = await far.claim("s/k", A.id)
    number, _ = await far.watch(-1, 0)
    wire.cut()
    busy = Member(A.id, A.name, A.address, Load(streams=7))
    await insist(lambda: far.renew(busy, TTL_S))
    assert await coordinator.members() == [busy]
    assert await insist(lambda: far.claim("s/k", A.id)) == claim
    # what others ask of it is heard again, and what they do is seen
    asked = await coordinator.claim("s/asked", A.id)
    assert [change.claim for change in await until(far, number, made(asked))] == [asked]


@pytest.mark.slow
async def test_nothing_new_is_started_while_the_connection_is_interrupted(
    far: ZooKeeperCoordinator, wire: TcpFaults
) -> None:
    await far.join(A, TTL_S)
    claim = await far.claim("s/k", A.id)
    assert await far.members() == [A]
    wire.refuse()
    await failing(lambda: far.renew(A, TTL_S))
    await failing(far.members)
    for call in (
        lambda: far.renew(A, TTL_S),
        lambda: far.claim("s/j", A.id),
        lambda: far.release(claim),
        lambda: far.transfer(claim, A.id),
        far.members,
        lambda: far.lookup("s/k"),
    ):
        with pytest.raises(Unavailable):
            await call()
    await wire.accept()
    await insist(lambda: far.renew(A, TTL_S))
    assert await insist(lambda: far.claims(A.id)) == [claim]


@pytest.mark.slow
async def test_who_is_cut_off_for_longer_than_its_ttl_is_out(
    far: ZooKeeperCoordinator, coordinator: ZooKeeperCoordinator, wire: TcpFaults
) -> None:
    number, _ = await coordinator.watch(-1, 0)
    await far.members()
    await insist(partial(far.join, A, SHORT_S))
    with contextlib.suppress(MembershipLost):  # a machine so slow is cut off, too
        await insist(partial(far.claim, "s/k", A.id))
    wire.refuse()
    await until(coordinator, number, left(A))
    await coordinator.join(B, 6 * TTL_S)
    claim = await coordinator.claim("s/k", B.id)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await far.renew(A, SHORT_S)
    await wire.accept()
    with pytest.raises(MembershipLost):
        await insist(lambda: far.renew(A, SHORT_S))
    assert await insist(lambda: far.lookup("s/k")) == claim
    assert await insist(far.members) == [B]


@pytest.mark.slow
async def test_a_frozen_connection_is_given_up(
    far: ZooKeeperCoordinator,
    coordinator: ZooKeeperCoordinator,
    wire: TcpFaults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CALL_S", 0.5)
    await far.join(A, TTL_S)
    assert await far.members() == [A]
    wire.freeze()
    with pytest.raises(OutcomeUnknown):
        await far.renew(A, TTL_S)
    with pytest.raises(Unavailable):
        await far.lookup("s/k")
    wire.thaw()
    await insist(lambda: far.renew(A, TTL_S))
    assert await coordinator.members() == [A]


@pytest.mark.nightly
async def test_a_server_that_never_answers_is_left_for_another(
    connect: Connect, address: ZooKeeperAddress, wire: TcpFaults, coordinator: ZooKeeperCoordinator
) -> None:
    here = connect(replace(address, hosts=((wire.host, wire.port), *address.hosts)))
    wire.freeze()
    await here.join(A, 3 * SHORT_S)
    assert await coordinator.members() == [A]
    wire.cut()


@pytest.mark.slow
async def test_a_lost_answer_leaves_the_outcome_open_and_asking_again_settles_it(
    far: ZooKeeperCoordinator, coordinator: ZooKeeperCoordinator, wire: TcpFaults
) -> None:
    await far.join(A, TTL_S)
    await coordinator.join(B, TTL_S)
    for key in ("s/1", "s/2", "s/3"):
        wire.lose_replies()
        with pytest.raises(OutcomeUnknown):
            await far.claim(key, A.id)
        claim = await insist(partial(far.claim, key, A.id))
        assert claim == await coordinator.lookup(key)
        wire.lose_replies(2)  # somewhere between looking and taking
        with contextlib.suppress(OutcomeUnknown, Unavailable):
            await far.transfer(claim, B.id)
        found = await insist(partial(far.lookup, key))
        assert found is not None
        moved = await insist(partial(coordinator.transfer, found, B.id))
        assert await insist(partial(far.release, moved)) is True
        assert await coordinator.lookup(key) is None


@pytest.mark.slow
@pytest.mark.parametrize("call", ["create", "commit"])
async def test_who_gets_no_answer_to_its_joining_has_not_joined(
    far: ZooKeeperCoordinator,
    coordinator: ZooKeeperCoordinator,
    wire: TcpFaults,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    number, _ = await coordinator.watch(-1, 0)
    answered = getattr(session.ZooKeeperSession, call)

    async def unanswered(*arguments: object, **named: object) -> object:
        wire.lose_replies()
        return await answered(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(session.ZooKeeperSession, call, unanswered)
        with pytest.raises(Unavailable):
            await far.join(A, SHORT_S)
    with pytest.raises(MembershipLost):
        await far.renew(A, SHORT_S)
    async with asyncio.timeout(PATIENCE_S):
        while await coordinator.members():  # who never appeared isn't said to have left
            number, _ = await coordinator.watch(number, 0.1)
    await far.join(B, TTL_S)
    assert await coordinator.members() == [B]


@pytest.mark.slow
async def test_a_key_that_another_keeps_locked_is_busy(
    coordinator: ZooKeeperCoordinator, address: ZooKeeperAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT_S", 0.1)
    await coordinator.join(A, TTL_S)
    claim = await coordinator.claim("s/k", A.id)
    other = KazooClient(address.servers + address.chroot)
    other.start()
    for key in ("s/k", "s/free"):
        other.create(layout.lock(key), ephemeral=True)
    assert await coordinator.claim("s/k", A.id) == claim  # stands, whatever comes of it
    for call in (partial(coordinator.claim, "s/free", A.id), partial(coordinator.transfer, claim, A.id)):
        with pytest.raises(Unavailable, match="another process has held this lock"):
            await call()
    other.stop()  # and with its session, the locks
    other.close()
    assert (await coordinator.claim("s/free", A.id)).member == A.id
    assert await coordinator.release(claim) is True


async def failing(call: Callable[[], Awaitable[object]]) -> None:
    """Call until it isn't answered any more."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            while True:
                await call()


# --- servers


@pytest.mark.slow
async def test_a_membership_that_lapsed_while_no_server_could_be_asked_is_not_said_to_be_lost(
    far: ZooKeeperCoordinator, wire: TcpFaults
) -> None:
    """Nothing shows that anything was taken from it. Servers that are back decide."""
    await far.members()
    await far.join(A, SHORT_S)
    wire.refuse()
    begun = time.monotonic()
    while time.monotonic() < begun + 2 * SHORT_S:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await far.renew(A, SHORT_S)
    await wire.accept()
    with pytest.raises(MembershipLost):
        await insist(lambda: far.renew(A, SHORT_S))


@pytest.mark.slow
async def test_a_restarted_server_knows_sessions_and_claims(
    coordinator: ZooKeeperCoordinator,
    other_coordinator: ZooKeeperCoordinator,
    zookeeper_server: ZooKeeperServer,
) -> None:
    await coordinator.join(A, TTL_S)
    claim = await coordinator.claim("s/k", A.id)
    number, _ = await other_coordinator.watch(-1, 0)
    await zookeeper_server.restart()
    await insist(lambda: coordinator.renew(A, TTL_S))
    assert await insist(lambda: other_coordinator.lookup("s/k")) == claim
    moved = await insist(lambda: other_coordinator.transfer(claim, A.id))
    assert [change.claim for change in await until(other_coordinator, number, made(moved))] == [moved]


@pytest.mark.nightly
async def test_a_server_that_forgot_everything_is_joined_anew(
    coordinator: ZooKeeperCoordinator, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PAST_S", 0.2)
    await coordinator.join(A, TTL_S)
    claim = await coordinator.claim("s/k", A.id)
    number, _ = await coordinator.watch(-1, 0)
    await zookeeper_server.restart(empty=True)
    async with asyncio.timeout(PATIENCE_S):
        while (await coordinator.watch(number, PATIENCE_S))[0] >= 0:
            pass
    assert await insist(coordinator.members) == []
    assert await insist(coordinator.claims) == []
    assert await coordinator.lookup("s/k") is None
    assert await coordinator.evict(B.id) is False
    with pytest.raises(Unavailable, match="NoNode"):
        await coordinator.release(claim)
    await lost(lambda: coordinator.renew(A, TTL_S))
    await insist(lambda: coordinator.join(B, TTL_S))
    assert await coordinator.members() == [B]
    seen: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while not seen:  # it may have to begin again once more, now that there is something to watch
            number, _ = await coordinator.watch(-1, 0)
            assert await coordinator.release(await coordinator.claim("s/k", B.id)) is True
            _, seen = await coordinator.watch(number, 1.0)
    assert {change.claim.key for change in seen if change.claim} == {"s/k"}


@pytest.mark.nightly
async def test_operations_go_on_without_the_leader(
    connect: Connect, zookeeper_ensemble: ZooKeeperEnsemble, clock: Clock
) -> None:
    address = parse(f"{zookeeper_ensemble.url}/{clock.new_id()}")
    one, other = connect(address), connect(address)
    await one.join(A, TTL_S)
    await other.join(B, TTL_S)
    claims = [await one.claim(f"s/{i}", (A, B)[i % 2].id) for i in range(6)]
    number, _ = await other.watch(-1, 0)
    leader = await zookeeper_ensemble.led()
    leader.kill()
    begun_at = clock.monotonic()
    for client, member in ((one, A), (other, B)):
        await insist(partial(client.renew, member, TTL_S))
    last = await insist(lambda: one.claim("s/last", B.id))
    assert clock.monotonic() - begun_at < TTL_S
    assert await insist(other.members) == [A, B]
    assert await insist(other.claims) == [*claims, last]
    await until(other, number, made(last))
    await zookeeper_ensemble.heal()
    await insist(lambda: one.renew(A, TTL_S))


@pytest.mark.nightly
async def test_without_a_majority_nothing_is_answered_and_then_all_is_as_before(
    connect: Connect, zookeeper_ensemble: ZooKeeperEnsemble, clock: Clock
) -> None:
    address = parse(f"{zookeeper_ensemble.url}/{clock.new_id()}")
    one = connect(address)
    await one.join(A, 20.0)
    claim = await one.claim("s/k", A.id)
    for server in zookeeper_ensemble.members[1:]:
        server.kill()
    await failing(lambda: one.renew(A, 20.0))
    await failing(lambda: one.claim("s/j", A.id))
    await zookeeper_ensemble.heal()
    await insist(lambda: one.renew(A, 20.0))
    assert await insist(lambda: one.lookup("s/k")) == claim


@pytest.mark.slow
async def test_no_server_at_all_is_unavailable(
    connect: Connect, wire: TcpFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_S", 0.3)
    nowhere = connect(ZooKeeperAddress(((wire.host, wire.port),)))
    wire.refuse()
    for call in (nowhere.members, lambda: nowhere.join(A, TTL_S), lambda: nowhere.watch(-1, 0)):
        with pytest.raises(Unavailable, match=r"no server of .* lets us in .*refused"):
            await call()
