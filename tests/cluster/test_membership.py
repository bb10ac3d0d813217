"""A node's membership: joined, renewed, lost, found again; and that of others, ended on evidence alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.membership import SILENCE_S, Membership
from holdfast.common.protocol import Done, Reply, Request, UnknownMember
from holdfast.common.protocol_versions import OUR_VERSIONS, ProtocolVersions
from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from simulator.limits import limits_with
from simulator.loop import SimClock
from tests.cluster.fakes import Log, make_host, settle_down

VIRTUAL = True
TTL_S = 5.0
LIMITS = limits_with(ttl_s=TTL_S, renew_s=1.5, peer_timeout_s=1.0)


class Coordinator:
    """The coordinator as one node reaches it: it may be down, or answer late."""

    def __init__(self, standing: MemoryCoordinator, clock: Clock) -> None:
        self._standing = standing
        self._clock = clock
        self.down = False
        self.answers_after_s = 0.0
        self.calls: list[str] = []
        self.instead: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            self.calls.append(name)
            if self.down:
                raise Unavailable("the coordinator is down")
            answer = await self.instead.get(name, getattr(self._standing, name))(*args)
            if name == "renew":
                await self._clock.sleep(self.answers_after_s)
            return answer

        return call


class Node:
    """A membership and the peer that answers for it."""

    def __init__(self, town: "Town", name: str, address: str) -> None:
        self.town = town
        self.name = name
        self.clock = SimClock(Random(name), name)
        self.coordinator = Coordinator(town.coordinator, self.clock)
        self.peer = MemoryPeer(town.network, address)
        self.tasks = Tasks(town.crashes.append)
        self.log = Log()
        host = make_host(
            self.clock, self.tasks, limits=LIMITS, coordinator=self.coordinator, peer=self.peer, log=self.log,
            name=name,
        )  # fmt: skip
        self.stats = host.stats
        self.left: list[str] = []
        self.losses = 0
        self.claims: list[Claim] = []
        self.answer: Callable[[Request], Any] | None = None
        host.news.on_left.append(self.left.append)
        host.news.on_lost.append(self._lose)
        host.news.on_claim.append(self.claims.append)
        host.news.on_missed.append(self.claims.clear)
        self.membership = Membership(host, lambda: Load(streams=len(name)))

    def _lose(self) -> None:
        self.losses += 1

    async def handle(self, request: Request) -> Reply:
        if self.answer is not None:
            reply: Reply = await self.answer(request)
            return reply
        return Done() if request.to == self.membership.id else UnknownMember(self.membership.id)

    async def start(self) -> str:
        await self.membership.start(await self.peer.serve(self.handle))
        return self.membership.id

    def alive(self) -> bool:
        return self.membership.alive

    def crash(self) -> None:
        """The process is gone."""
        self.town.network.cut(self.peer.address)
        self.tasks.cancel()


class Town:
    """Nodes on one network and one coordinator."""

    def __init__(self, clock: Clock) -> None:
        self.coordinator = MemoryCoordinator(clock)
        self.network = MemoryNetwork(clock)
        self.crashes: list[BaseException] = []
        self.nodes: list[Node] = []

    def node(self, name: str, address: str = "") -> Node:
        self.nodes.append(Node(self, name, address or f"sim://{name}"))
        return self.nodes[-1]

    async def ids(self) -> list[str]:
        return [member.id for member in await self.coordinator.members()]


@pytest.fixture
async def town(clock: Clock) -> AsyncIterator[Town]:
    made = Town(clock)
    yield made
    for node in made.nodes:
        await node.tasks.close()
    assert made.crashes == []


async def pair(town: Town) -> tuple[Node, Node]:
    """Two that know each other; the first watches the second."""
    a, b = town.node("a"), town.node("b")
    await a.start()
    await b.start()
    await settle_down()
    assert set(a.membership.view) == set(b.membership.view) == {a.membership.id, b.membership.id}
    return a, b


# --- one's own


async def test_a_membership_is_kept_by_renewals(clock: Clock, town: Town) -> None:
    node = town.node("a")
    member = await node.start()
    assert node.membership.alive
    assert node.membership.view[member].address == "sim://a"
    await clock.sleep(10 * TTL_S)
    assert node.membership.id == member
    assert node.membership.alive
    assert await town.ids() == [member]
    renewals = node.coordinator.calls.count("renew")
    assert renewals == pytest.approx(10 * TTL_S / LIMITS.renew_s, abs=2), "once a node, and no more"


async def test_past_its_deadline_it_trusts_itself_no_more(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()
    node.coordinator.down = True
    await clock.sleep(TTL_S - 1.6)
    assert node.alive()
    await clock.sleep(1.7)
    assert not node.alive()
    assert node.losses == 0, "no node has reported it as lost"


async def test_while_the_coordinator_is_silent_it_stands_and_not_a_moment_longer(
    clock: Clock, town: Town
) -> None:
    node = town.node("a")
    await node.start()
    node.coordinator.down = True
    await clock.sleep(20 * TTL_S)
    assert (node.membership.alive, node.membership.stands) == (False, True)
    node.coordinator.instead["join"] = node.coordinator.instead["renew"] = hang
    node.coordinator.down = False  # it has forgotten the membership, and says so to the next who asks
    await clock.sleep(2 * SILENCE_S)
    assert (node.membership.alive, node.membership.stands) == (False, False)


async def test_who_learns_that_others_reach_the_coordinator_stands_no_longer(
    clock: Clock, town: Town
) -> None:
    node = town.node("a")
    await node.start()
    node.membership.cut_off()
    node.coordinator.down = True
    await clock.sleep(2 * TTL_S)
    assert (node.membership.alive, node.membership.stands) == (False, True), "notified while it was alive"
    node.membership.cut_off()
    await clock.sleep(2 * TTL_S)
    assert (node.membership.alive, node.membership.stands) == (False, False)
    node.coordinator.down = False
    await clock.sleep(2 * TTL_S)
    assert node.membership.alive
    node.coordinator.down = True
    await clock.sleep(2 * TTL_S)
    assert (node.membership.alive, node.membership.stands) == (False, True), "that was another silence"


async def hang(*args: Any) -> None:
    await asyncio.Event().wait()


async def test_who_was_told_that_its_membership_is_over_does_not_stand(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()
    node.coordinator.down = True
    await clock.sleep(2 * TTL_S)
    assert node.membership.stands
    node.coordinator.instead["join"] = hang
    node.coordinator.down = False
    await clock.sleep(TTL_S / 2)
    assert node.losses == 1
    assert not node.membership.stands


async def test_who_stood_still_past_its_deadline_stands_only_once_it_was_answered(
    clock: Clock, town: Town
) -> None:
    node = town.node("a")
    await node.start()
    node.clock.gate.close()
    await clock.sleep(2 * TTL_S)
    node.coordinator.instead["renew"] = hang
    assert not node.membership.stands
    node.clock.gate.open()
    await clock.sleep(TTL_S)
    assert not node.membership.stands


async def test_the_deadline_counts_from_before_the_renewal_was_sent(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()
    node.coordinator.answers_after_s = 3.0
    await clock.sleep(LIMITS.renew_s + 3.0)  # the answer is here
    node.coordinator.down = True
    await clock.sleep(TTL_S - 3.0 - 0.1)
    assert node.alive()
    await clock.sleep(0.2)
    assert not node.alive()


@pytest.mark.parametrize("how", ["evicted", "forgotten", "lapsed"])
async def test_a_lost_membership_is_followed_by_a_new_one(clock: Clock, town: Town, how: str) -> None:
    node = town.node("a")
    first = await node.start()
    if how == "evicted":
        await town.coordinator.evict(first)
    elif how == "forgotten":
        town.coordinator.forget()
    else:
        node.coordinator.down = True
        await clock.sleep(TTL_S + 1)
        node.coordinator.down = False
    await clock.sleep(2 * LIMITS.renew_s)
    assert node.losses == 1
    assert node.membership.id != first
    assert node.membership.alive
    assert await town.ids() == [node.membership.id]
    assert node.stats.memberships == 2


async def test_an_eviction_is_noticed_before_the_next_renewal(clock: Clock, town: Town) -> None:
    node = town.node("a")
    first = await node.start()
    await clock.sleep(0.1)
    await town.coordinator.evict(first)
    await clock.sleep(0.01)
    assert node.losses == 1
    assert node.membership.joined.is_set()


async def test_a_node_that_cannot_join_again_tries_less_often(clock: Clock, town: Town) -> None:
    node = town.node("a")
    first = await node.start()
    await town.coordinator.evict(first)
    node.coordinator.down = True
    node.coordinator.calls.clear()
    await clock.sleep(100)
    tries = node.coordinator.calls.count("join") + node.coordinator.calls.count("renew")
    assert tries < 80
    assert not node.alive()
    node.coordinator.down = False
    await clock.sleep(2 * TTL_S)
    assert node.alive()


@pytest.mark.parametrize("call", ["join", "members"])
async def test_a_join_that_breaks_off_after_it_took_effect_is_one(
    clock: Clock, town: Town, call: str
) -> None:
    node = town.node("a")
    first = await node.start()
    then, errors = getattr(town.coordinator, call), [OSError("connection reset")]

    async def break_off(*args: Any) -> Any:
        answer = await then(*args)
        if node.losses and errors:
            raise errors.pop()
        return answer

    node.coordinator.instead[call] = break_off
    await town.coordinator.evict(first)
    await clock.sleep(10 * TTL_S)
    assert errors == []
    assert node.alive()
    assert await town.ids() == [node.membership.id]
    assert node.stats.memberships == 2


async def test_what_was_given_to_a_join_without_an_answer_is_checked(clock: Clock, town: Town) -> None:
    node = town.node("a")
    ids: list[str] = []
    errors = [OutcomeUnknown("lost")]

    async def lose_one(member: Member, ttl_s: float) -> None:
        await town.coordinator.join(member, ttl_s)
        ids.append(member.id)
        if errors:
            raise errors.pop()

    node.coordinator.instead["join"] = lose_one
    await node.start()
    assert node.membership.id == ids[1] != ids[0]
    assert node.losses == 1


async def test_a_renewal_that_is_answered_after_leaving_is_no_join(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()
    node.coordinator.answers_after_s = 1.0
    await clock.sleep(LIMITS.renew_s + 0.5)
    await node.membership.leave()
    await clock.sleep(1.0)
    assert not node.membership.joined.is_set()


async def test_a_node_that_can_t_reach_itself_owns_nothing(clock: Clock, town: Town) -> None:
    node = town.node("a")
    unreachable = [True]

    async def fault(source: str, to: str, request: Request) -> None:
        if unreachable[0]:
            raise OutcomeUnknown("no answer")

    town.network.fault = fault
    starting = asyncio.create_task(node.start())
    await clock.sleep(30)
    assert await town.ids() == []
    assert any("own address sim://a" in fields["error"] for _, _, fields in node.log.entries)
    unreachable[0] = False
    await clock.sleep(TTL_S)
    await starting
    assert len(await town.ids()) == 1


async def test_an_address_where_another_answers_is_a_mistake_to_correct(town: Town) -> None:
    node = town.node("a")

    async def answer(request: Request) -> Reply:
        return UnknownMember("another")

    node.answer = answer
    with pytest.raises(ConfigError, match="another node answers at sim://a; set advertise"):
        await node.start()
    assert await town.ids() == []


@pytest.mark.parametrize("again", [False, True])
async def test_a_node_waits_until_no_member_lives_that_it_could_not_call(
    clock: Clock, town: Town, again: bool
) -> None:
    node, newer = town.node("a"), MemoryPeer(town.network, "sim://b")
    if again:
        await node.start()

    async def refuse(request: Request) -> Reply:
        raise Unavailable("this node speaks peer protocol 2-3")

    load = Load(speaks=ProtocolVersions(OUR_VERSIONS.newest + 1, OUR_VERSIONS.newest + 2))
    await town.coordinator.join(Member("b", "b", await newer.serve(refuse), load), 1e6)
    starting = asyncio.create_task(node.start()) if not again else None
    if again:
        await town.coordinator.evict(node.membership.id)
    await clock.sleep(30)
    assert await town.ids() == ["b"]
    assert "node b lives: it speaks peer protocol 2-3, this process 1" in node.membership.misfit
    assert node.log.entries[-1][2] == {"error": node.membership.misfit}
    await town.coordinator.leave("b")
    await clock.sleep(2 * TTL_S)
    if starting is not None:
        await starting
    assert node.membership.alive
    assert node.membership.misfit == ""


async def test_a_worker_of_another_program_keeps_no_node_out(town: Town) -> None:
    worker = Member("w", "w", "sim://w", Load(speaks=ProtocolVersions(0, 0)), foreign=True)
    await town.coordinator.join(worker, 1e6)
    assert await town.node("a").start() in await town.ids()


async def test_who_leaves_does_not_come_back(clock: Clock, town: Town) -> None:
    node = town.node("a")
    member = await node.start()
    await town.coordinator.claim("k", member)
    await node.membership.leave()
    assert not node.membership.alive
    assert await town.coordinator.lookup("k") is None
    await clock.sleep(10 * TTL_S)
    assert await town.ids() == []
    assert node.losses == 0


async def test_leaving_does_not_need_an_answer(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()

    async def leave(member: str) -> None:
        raise Unavailable("down")

    node.coordinator.instead["leave"] = leave
    await node.membership.leave()
    assert node.log.events("warning") == ["cannot leave"]


# --- the others


async def test_who_comes_and_goes_is_known_at_once(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    member = b.membership.id
    assert a.membership.view[member].load == Load(streams=1)
    await b.membership.leave()
    await clock.sleep(0.001)
    assert a.left == [member]
    assert member not in a.membership.view


async def test_who_joins_while_the_members_are_read_is_not_taken_for_gone(clock: Clock, town: Town) -> None:
    node = town.node("a")
    await node.start()

    async def read_and_answer_late() -> list[Member]:
        read = await town.coordinator.members()
        await clock.sleep(2.0)
        return read

    node.coordinator.instead["members"] = read_and_answer_late
    reading = asyncio.ensure_future(node.membership.refresh())
    await settle_down()
    other = await town.node("b").start()
    await reading
    assert other in node.membership.view
    assert node.left == []


async def test_changes_of_claims_are_told_until_some_may_have_been_missed(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    claim = await town.coordinator.claim("k", b.membership.id)
    moved = await town.coordinator.transfer(claim, a.membership.id)
    await clock.sleep(0.001)
    assert a.claims == b.claims == [claim, moved]
    town.coordinator.forget()
    await clock.sleep(0.001)
    assert a.claims == b.claims == []


async def test_a_dead_node_is_evicted_on_the_spot(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    member = b.membership.id
    await clock.sleep(1)
    b.crash()
    await clock.sleep(0.01)
    assert await town.ids() == [a.membership.id]
    assert a.left == [member]
    assert a.stats.evictions == 1


async def test_one_of_many_is_evicted_once(clock: Clock, town: Town) -> None:
    nodes = [town.node(name) for name in "abcd"]
    for node in nodes:
        await node.start()
    await clock.sleep(1)
    nodes[2].crash()
    await clock.sleep(0.01)
    dead = nodes.pop(2).membership.id
    assert sorted(await town.ids()) == sorted(node.membership.id for node in nodes)
    assert sum(node.stats.evictions for node in nodes) == 1
    assert [node.left for node in nodes] == [[dead]] * 3


async def refuse(request: Request) -> Reply:
    raise Unavailable("peer_secret is missing or differs")


async def fail(request: Request) -> Reply:
    raise ValueError("a bug")


async def be_silent(request: Request) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("answer", [refuse, fail, be_silent])
async def test_who_refuses_or_is_silent_is_not_evicted(clock: Clock, town: Town, answer: Any) -> None:
    a, b = await pair(town)
    b.answer = answer
    await a.membership.suspect(b.membership.id)
    await clock.sleep(10 * TTL_S)
    assert sorted(await town.ids()) == sorted([a.membership.id, b.membership.id])
    assert a.stats.evictions == 0
    assert a.left == []


async def test_another_life_at_the_address_is_evidence(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    before = b.membership.id
    b.crash()
    again = town.node("another b", b.peer.address)
    await again.start()
    await clock.sleep(0.01)
    assert sorted(await town.ids()) == sorted([a.membership.id, again.membership.id])
    assert a.left == [before]


async def test_a_connection_that_breaks_is_looked_at_once_more(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    probes = []

    async def fault(source: str, to: str, request: Request) -> None:
        if (source, to) == ("sim://a", "sim://b"):
            probes.append(request)
            if len(probes) == 1:
                raise OutcomeUnknown("it broke: the process was just ending")

    town.network.cut("sim://b")
    town.network.fault = fault
    b.tasks.cancel()
    await a.membership.suspect(b.membership.id)
    assert await town.ids() == [a.membership.id]


async def test_suspicions_of_one_member_are_looked_into_once_at_a_time(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    asked = []

    async def slow(request: Request) -> Reply:
        asked.append(request)
        await clock.sleep(0.5)
        return Done()

    b.answer = slow
    await asyncio.gather(*(a.membership.suspect(b.membership.id) for _ in range(10)))
    assert len(asked) == 1
    await a.membership.suspect(a.membership.id)
    await a.membership.suspect("missing")
    assert len(asked) == 1


async def test_an_eviction_that_fails_is_left_to_time(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    await clock.sleep(1)

    async def evict(member: str) -> bool:
        raise Unavailable("down")

    a.coordinator.instead["evict"] = evict
    member = b.membership.id
    b.crash()
    await clock.sleep(0.1)
    assert member in a.membership.view
    assert "cannot evict a dead node" in a.log.events("warning")
    await clock.sleep(TTL_S)
    assert a.left == [member]


async def test_a_watch_that_fails_is_taken_up_again(clock: Clock, town: Town) -> None:
    a, b = await pair(town)
    failing = [True]

    async def broken(after: int, wait_s: float) -> tuple[int, list[Any]]:
        if failing[0]:
            raise Unavailable("down")
        return await town.coordinator.watch(after, wait_s)

    a.coordinator.instead["watch"] = broken
    await clock.sleep(20)
    failing[0] = False
    await clock.sleep(2 * TTL_S)
    await b.membership.leave()
    await clock.sleep(0.01)
    assert a.left == [b.membership.id]


async def test_another_program_s_worker_is_never_called(clock: Clock, town: Town) -> None:
    one = town.node("one")
    await one.start()
    worker = Member("worker", "worker", "sim://worker", foreign=True)
    asked: list[Request] = []

    async def answer(request: Request) -> Reply:
        asked.append(request)
        return UnknownMember("other")

    await MemoryPeer(town.network, worker.address).serve(answer)
    await town.coordinator.join(worker, 1e6)
    await clock.sleep(2 * LIMITS.renew_s)
    assert worker.id in one.membership.view
    await one.membership.suspect(worker.id)
    assert asked == []
    assert worker.id in await town.ids()
