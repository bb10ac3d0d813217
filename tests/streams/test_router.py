"""The router: every message reaches its owner, and nobody lets go of one before that owner says so."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.limits import Limits
from holdfast.common.held import Held, Receipt
from holdfast.common.protocol import (
    Answers,
    Done,
    Explain,
    Forward,
    ForwardAnswer,
    ForwardedDelivery,
    Move,
    Reply,
    Request,
    SettleReport,
    UnknownMember,
    WakeUp,
)
from holdfast.common.retry import Backoff
from holdfast.errors import NobodyThere, OutcomeUnknown, TooLarge, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.ports.queue import Outgoing
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.queue import MemoryQueue
from holdfast.streams.forwarding import FORWARDS_MAX
from holdfast.streams.placing import LOG_EVERY_S, Placing
from holdfast.streams.reservations import Reservations
from holdfast.streams.router import Router
from holdfast.streams.waiting_room import LINE_SHARE
from simulator.limits import limits_with
from tests.cluster.fakes import Log, StandingMembership, held, make_host, settle_down

VIRTUAL = True
VISIBILITY_S = 30.0
GIVE_BACK_S = 5.0
GAP_TIMEOUT_S = 45.0
LIMITS = limits_with(
    visibility_s=VISIBILITY_S,
    custody_check_s=12.0,
    defer=Backoff(0.05, 1.0),
    give_back_after=6,
    give_back_s=GIVE_BACK_S,
    custody_limit=50,
)
KEY = "s/k"

Verdict = Literal["accepted", "full", "no", "unknown"]
Judge = Callable[[ForwardedDelivery], ForwardAnswer]


def member(name: str, streams: int = 0, room: int = 100) -> Member:
    return Member(name, name, f"sim://{name}", Load(streams=streams, room=room))


class LocalOwners:
    """The owners on the router's own node."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.reserved: set[str] = set()
        self.gapped: set[str] = set()
        self.declared = True
        self.offered: list[tuple[str, Held]] = []
        self.adopted: list[Claim] = []

    def offer(self, key: str, held: Held) -> Verdict:
        verdict = self.verdicts.get(key, "unknown")
        if verdict != "unknown":
            self.offered.append((key, held))
        return verdict

    def adopt(self, stream: str, key: str, claim: Claim) -> bool:
        if self.declared:
            self.adopted.append(claim)
            self.verdicts.setdefault(key, "accepted")
        return self.declared

    def is_reserved(self, key: str) -> bool:
        return key in self.reserved

    def waits_for_gap(self, key: str) -> bool:
        return key in self.gapped

    def nudge(self, key: str) -> bool:
        return any(claim.key == key for claim in self.adopted)


class Peers:
    """Other nodes, which answer as the test says: by default they accept everything."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.forwards: dict[str, list[Forward]] = defaultdict(list)
        self.others: list[Request] = []
        self.refused: set[type] = set()
        self.judges: dict[str, Judge] = {}
        self.failing: dict[str, Exception] = {}
        self.strange: set[str] = set()
        self.delay_s = 0.0
        self.at_once: dict[str, int] = defaultdict(int)

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        name = address.removeprefix("sim://")
        assert request.to == name
        if not isinstance(request, Forward):
            self.others.append(request)
            return Done(type(request) not in self.refused)
        self.forwards[name].append(request)
        self.at_once[name] += 1
        assert self.at_once[name] == 1, "one call at a time to one peer"
        await self._clock.sleep(self.delay_s)
        self.at_once[name] -= 1
        if name in self.failing:
            raise self.failing[name]
        if name in self.strange:
            return UnknownMember("somebody")
        judge = self.judges.get(name, say("accepted"))
        return Answers([judge(forwarded) for forwarded in request.deliveries])

    def deliveries(self, name: str) -> list[ForwardedDelivery]:
        return [forwarded for forward in self.forwards[name] for forwarded in forward.deliveries]


class Rig:
    """One router, alone on its node."""

    def __init__(self, clock: Clock, tasks: Tasks, limits: Limits = LIMITS) -> None:
        self.clock = clock
        self.coordinator = MemoryCoordinator(clock)
        self.queue = MemoryQueue(clock)
        self.owners = LocalOwners()
        self.peers = Peers(clock)
        self.membership = StandingMembership()
        self.log = Log()
        self.host = host = make_host(
            clock, tasks, limits=limits, coordinator=self.coordinator, peer=self.peers, log=self.log,
            membership=self.membership,
        )  # fmt: skip
        self.stats, self.news = host.stats, host.news
        self.returned: list[Receipt] = []
        queues = {"s": self.queue}
        self.router = Router(
            host, queues, self._report, Reservations(host, queues, 10.0), {"s": GAP_TIMEOUT_S}, self.owners
        )
        self.news.on_claim.append(self.router.placing.claim_changed)
        self.router.start("sim://me")

    async def _report(self, receipts: list[Receipt], settled: bool) -> None:
        assert not settled
        self.returned += receipts

    async def live(self, *others: Member) -> None:
        """Let these nodes live beside this one."""
        for one in (member("me"), *others):
            self.membership.view[one.id] = one
            await self.coordinator.join(one, 1e6)

    async def owned_by(self, name: str) -> None:
        """Let the key have that owner."""
        claim = await self.coordinator.claim(KEY, name)
        assert claim.member == name

    async def dispatch(self, *messages: Held) -> None:
        for message in messages:
            self.router.dispatch("s", KEY, message)
        await settle_down()

    async def receive(self, count: int = 1) -> list[Held]:
        """Messages with real deliveries."""
        await self.queue.send([Outgoing(b"%d" % n) for n in range(count)])
        expires_at = self.clock.monotonic() + VISIBILITY_S
        deliveries = await self.queue.receive(count, 0, VISIBILITY_S, "me")
        return [held(n, d.receipt, expires_at=expires_at) for n, d in enumerate(deliveries)]

    def events(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.queue.log)


@pytest.fixture
async def rig(clock: Clock, tasks: Tasks) -> Rig:
    return Rig(clock, tasks)


def say(verdict: Literal["accepted", "full", "no"], owner: str = "", epoch: int = 0) -> Judge:
    return lambda forwarded: ForwardAnswer(forwarded.number, verdict, owner, epoch)


# --- to whom


async def test_a_message_of_an_own_stream_needs_no_custody(rig: Rig) -> None:
    await rig.live()
    rig.owners.verdicts[KEY] = "accepted"
    await rig.dispatch(held(1))
    assert [key for key, _ in rig.owners.offered] == [KEY]
    assert len(rig.router.forwards) == 0


async def test_a_new_key_is_claimed_and_adopted_once(rig: Rig) -> None:
    await rig.live()
    await rig.dispatch(held(1), held(2), held(3))
    assert [claim.member for claim in rig.owners.adopted] == ["me"]
    assert [message.place.seq for _, message in rig.owners.offered] == [1, 2, 3]
    assert len(rig.router.forwards) == 0


async def test_a_new_key_goes_to_the_node_with_most_room(rig: Rig) -> None:
    rig.membership.view["me"] = member("me", streams=9)
    await rig.live(member("a", streams=5), member("b", streams=1))
    rig.membership.view["me"] = member("me", streams=9)
    await rig.dispatch(held(1), held(2))
    assert [forwarded.seq for forwarded in rig.peers.deliveries("b")] == [1, 2]
    claim = await rig.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == "b"
    assert rig.owners.adopted == []


async def test_an_owned_key_goes_to_its_owner_whatever_the_load(rig: Rig) -> None:
    await rig.live(member("a", streams=99), member("b"))
    await rig.owned_by("a")
    await rig.dispatch(held(1))
    (forward,) = rig.peers.forwards["a"]
    assert (forward.sender, forward.reply_to) == ("me", "sim://me")
    (forwarded,) = forward.deliveries
    assert (forwarded.receipt, forwarded.body, forwarded.key, forwarded.stream) == ("r1", b"body 1", KEY, "s")
    await rig.dispatch(held(2))
    assert len(rig.peers.deliveries("a")) == 2, "the route is known now"


async def test_nobody_with_room_is_no_reason_to_lose_a_message(rig: Rig) -> None:
    await rig.live()
    rig.membership.view["me"] = member("me", room=0)
    await rig.dispatch(held(1))
    assert len(rig.router.forwards) == 1
    assert "cannot place stream" in rig.log.events("warning")
    rig.membership.view["me"] = member("me")
    await rig.clock.sleep(1)
    assert len(rig.router.forwards) == 0
    assert len(rig.owners.offered) == 1


async def test_that_nobody_has_room_is_told_once_for_all_keys_of_a_stream_and_again_later(rig: Rig) -> None:
    await rig.live()
    rig.membership.view["me"] = member("me", room=0)
    for number in range(20):
        rig.router.dispatch("s", f"s/k{number}", held(number))
    await rig.clock.sleep(LOG_EVERY_S - 0.5)
    assert rig.log.events("warning").count("cannot place stream") == 1
    await rig.clock.sleep(0.5)
    rig.router.dispatch("s", "s/later", held(20))
    await settle_down()
    assert rig.log.events("warning").count("cannot place stream") == 2


async def test_without_a_membership_nothing_is_placed_or_given_back(rig: Rig) -> None:
    await rig.live()
    rig.membership.alive = False
    await rig.dispatch(held(1))
    await rig.clock.sleep(100)
    assert len(rig.router.forwards) == 1
    assert await rig.coordinator.claims() == []
    assert rig.stats.given_back == 0
    rig.membership.alive = True
    await rig.clock.sleep(2)
    assert len(rig.router.forwards) == 0


async def test_a_claim_on_a_stream_that_is_not_declared_here_is_not_adopted(rig: Rig) -> None:
    await rig.live()
    rig.owners.declared = False
    await rig.dispatch(*await rig.receive())
    assert rig.owners.offered == []
    await rig.clock.sleep(30)
    assert len(rig.router.forwards) == 0
    assert rig.events("given back") == 1, "to a node that declares it"


# --- custody


async def test_custody_lasts_until_the_owner_reports_the_commit(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(held(1), held(2))
    assert len(rig.router.forwards) == 2
    assert list(rig.router.holding("s")) == [], "the owner keeps them alive"
    first, second = rig.peers.deliveries("a")
    rig.router.reported(SettleReport("me", "a", [first.number], []))
    assert len(rig.router.forwards) == 1
    rig.router.reported(SettleReport("me", "a", [second.number, 999], [998]))
    assert len(rig.router.forwards) == 0


async def test_what_nobody_has_accepted_is_kept_alive_from_here(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")
    await rig.dispatch(held(1))
    assert [receipt.receipt for _, held in rig.router.holding("s") for receipt in held.receipts] == ["r1"]
    assert list(rig.router.holding("other")) == []


async def test_a_lost_owner_s_messages_go_to_the_next_at_once(rig: Rig) -> None:
    await rig.live(member("a"), member("b"))
    await rig.owned_by("a")
    await rig.dispatch(held(1), held(2))
    await rig.clock.sleep(5)
    del rig.membership.view["a"], rig.membership.view["me"]
    await rig.coordinator.evict("a")
    now = rig.clock.monotonic()
    rig.router.left("a")
    await settle_down()
    assert [forwarded.seq for forwarded in rig.peers.deliveries("b")] == [1, 2]
    assert [forwarded.receives for forwarded in rig.peers.deliveries("b")] == [2, 2], (
        "it may have died of them"
    )
    assert rig.clock.monotonic() == now
    rig.router.reported(
        SettleReport("me", "b", [forwarded.number for forwarded in rig.peers.deliveries("b")], [])
    )
    assert len(rig.router.forwards) == 0


async def test_a_lost_owner_s_messages_may_come_home(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(held(1))
    del rig.membership.view["a"]
    await rig.coordinator.evict("a")
    rig.router.left("a")
    await settle_down()
    assert [message.place.seq for _, message in rig.owners.offered] == [1]
    assert len(rig.router.forwards) == 0


async def test_what_its_owner_kept_alive_is_not_taken_for_lapsed(rig: Rig) -> None:
    """The owner has extended it for minutes; this node could not see that."""
    await rig.live(member("a"))
    await rig.owned_by("a")
    (message,) = await rig.receive()
    await rig.dispatch(message)
    for _ in range(20):
        await rig.clock.sleep(10)
        await rig.queue.extend([message.receipts[0].receipt], VISIBILITY_S)
    rig.peers.judges["a"] = say("full")
    (number,) = {forwarded.number for forwarded in rig.peers.deliveries("a")}
    rig.router.reported(SettleReport("me", "a", [], [number]))
    assert message.receipts[0].expires_at > rig.clock.monotonic()


async def test_a_report_that_was_lost_costs_another_offer(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(held(1))
    await rig.clock.sleep(2 * LIMITS.custody_check_s)
    offers = rig.peers.deliveries("a")
    assert len(offers) == 2
    assert offers[0].number == offers[1].number, "the owner knows it by that"


async def test_what_lapsed_in_nobody_s_hands_is_the_queue_s(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.failing["a"] = OutcomeUnknown("lost")
    rig.membership.alive = False  # so that nothing is given back
    await rig.dispatch(held(1, expires_at=rig.clock.monotonic() + VISIBILITY_S))
    await rig.clock.sleep(VISIBILITY_S - 1)
    assert len(rig.router.forwards) == 1
    await rig.clock.sleep(LIMITS.custody_check_s)
    assert len(rig.router.forwards) == 0


async def test_what_comes_back_from_an_owner_is_sorted(rig: Rig) -> None:
    await rig.live(member("b"))
    message = held(1, "foreign", sender="x")
    message.receipts += held(1, "own").receipts
    message.receipts += held(1, "stale").receipts
    message.receipts[2].stale = True
    rig.router.take_back("s", KEY, [message], "b")
    await settle_down()
    assert [receipt.receipt for receipt in rig.returned] == ["foreign"]
    assert [forwarded.receipt for forwarded in rig.peers.deliveries("b")] == ["own"]


async def test_batches_are_bounded_and_one_call_at_a_time(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.delay_s = 0.5
    await rig.dispatch(*(held(n) for n in range(2 * FORWARDS_MAX + 50)))
    await rig.clock.sleep(10)
    sizes = [len(forward.deliveries) for forward in rig.peers.forwards["a"]]
    assert max(sizes) <= FORWARDS_MAX
    assert sum(sizes) == 2 * FORWARDS_MAX + 50
    assert len(sizes) <= 4
    assert [forwarded.seq for forwarded in rig.peers.deliveries("a")] == list(range(sum(sizes)))


async def test_a_call_carries_only_so_many_bytes(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    body = bytes(LIMITS.forward_bytes_max // 2)
    await rig.dispatch(*(held(n, body=body) for n in range(5)), held(5, body=3 * body))
    await rig.clock.sleep(1)
    assert [len(forward.deliveries) for forward in rig.peers.forwards["a"]] == [2, 2, 1, 1]


# --- redirects


async def test_a_redirect_is_followed_to_a_higher_epoch_only(rig: Rig) -> None:
    await rig.live(member("a"), member("b"), member("c"))
    await rig.owned_by("c")
    rig.router.placing.departed(KEY, "a", 6)  # as far as is known: a, from epoch 7 on
    rig.peers.judges["a"] = say("no", "b", 8)
    rig.peers.judges["b"] = say("no", "a", 8)
    await rig.dispatch(held(1))
    assert len(rig.peers.deliveries("a")) == 1
    assert len(rig.peers.deliveries("b")) == 1, "8 is above 7"
    assert rig.stats.redirected == 1, "8 is not above 8: the coordinator was asked"
    assert [forwarded.seq for forwarded in rig.peers.deliveries("c")] == [1]


async def test_nodes_that_send_one_another_in_circles_end_at_the_queue(rig: Rig) -> None:
    """Each names the other at the same epoch for ever."""
    await rig.live(member("a"), member("b"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("no", "b", 5)
    rig.peers.judges["b"] = say("no", "a", 5)
    await rig.dispatch(*await rig.receive())
    await rig.clock.sleep(60)
    assert rig.events("given back") == 1
    assert len(rig.peers.deliveries("a") + rig.peers.deliveries("b")) < 4 * LIMITS.give_back_after


async def test_a_redirect_to_this_node_is_looked_into_here(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("me")
    rig.router.placing.departed(KEY, "a", 1)
    rig.peers.judges["a"] = say("no", "me", 9)
    await rig.dispatch(held(1))
    await rig.clock.sleep(1)
    assert [message.place.seq for _, message in rig.owners.offered] == [1]


async def test_who_took_over_a_stream_from_here_is_told(rig: Rig) -> None:
    assert rig.router.placing.hint(KEY).member == ""
    rig.router.placing.departed(KEY, "a", 6)
    assert (rig.router.placing.hint(KEY).member, rig.router.placing.hint(KEY).epoch) == ("a", 7)


# --- troubles


@pytest.mark.parametrize(
    "error", [NobodyThere("refused"), Unavailable("peer_secret differs"), OutcomeUnknown("lost")]
)
async def test_a_call_that_fails_is_made_again_and_its_node_looked_at(rig: Rig, error: Exception) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.failing["a"] = error
    await rig.dispatch(held(1))
    assert rig.membership.suspected == ["a"]
    assert len(rig.router.forwards) == 1
    del rig.peers.failing["a"]
    await rig.clock.sleep(1)
    assert list(rig.router.holding("s")) == [], "accepted"
    assert len(rig.router.forwards) == 1


async def test_a_stranger_at_the_address_is_looked_at(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.strange.add("a")
    await rig.dispatch(held(1))
    assert rig.membership.suspected == ["a"]
    assert len(rig.router.forwards) == 1


async def test_a_full_owner_is_asked_ever_more_rarely_then_the_queue(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")
    began = rig.clock.monotonic()
    await rig.dispatch(*await rig.receive())
    await rig.clock.sleep(VISIBILITY_S / 3)
    assert LIMITS.give_back_after <= len(rig.peers.deliveries("a")) <= LIMITS.give_back_after + 1
    assert len(rig.router.forwards) == 0
    (given_back,) = [event for event in rig.queue.log if event.kind == "given back"]
    assert given_back.at - began > 0.5, "not in a hot loop"


async def test_a_stream_of_another_program_is_left_to_it(rig: Rig) -> None:
    """It is never called. What it received by itself is its own; what came here goes back to the queue."""
    stranger = Member("/services/w", "w", "sim://w", Load(room=0), foreign=True)
    await rig.live(stranger)
    await rig.owned_by(stranger.id)
    await rig.dispatch(*await rig.receive(3))
    assert (len(rig.router.forwards), rig.events("given back")) == (0, 3)
    await rig.dispatch(held(3))  # by the route that is known now
    assert len(rig.router.forwards) == 0
    assert rig.peers.forwards == {}
    assert rig.membership.suspected == []
    assert rig.log.events("warning") == ["stream owned by another program"]


@pytest.mark.parametrize("seen", [True, False])
async def test_what_another_program_released_is_not_left_to_it(rig: Rig, seen: bool) -> None:
    stranger = Member("/services/w", "w", "sim://w", Load(room=0), foreign=True)
    await rig.live(stranger)
    await rig.owned_by(stranger.id)
    await rig.dispatch(held(1))
    claim = await rig.coordinator.lookup(KEY)
    assert claim is not None
    await rig.coordinator.release(claim)
    if seen:
        rig.router.placing.claim_changed(Claim(KEY, "", claim.version + 1))
    else:
        rig.router.placing.missed()
    await rig.dispatch(held(2))
    assert [claim.key for claim in rig.owners.adopted] == [KEY]
    assert len(rig.owners.offered) == 1


async def test_an_answer_that_news_have_overtaken_leads_to_no_other_program(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Member("/services/w", "w", "sim://w", Load(room=0), foreign=True)
    await rig.live(stranger)
    await rig.owned_by(stranger.id)
    claims = rig.coordinator.claim

    async def overtaken(key: str, member: str) -> Claim:
        monkeypatch.setattr(rig.coordinator, "claim", claims)
        answer = await claims(key, member)
        await rig.coordinator.release(answer)
        rig.news.claimed(Claim(KEY, "", answer.version + 1))
        return answer

    monkeypatch.setattr(rig.coordinator, "claim", overtaken)
    await rig.dispatch(held(1))
    await rig.clock.sleep(5)
    await rig.dispatch(held(2))
    assert [message.place.seq for _, message in rig.owners.offered] == [1, 2]


def refusing(*seqs: int) -> Judge:
    """An owner that refuses these, and takes all others."""
    return lambda forwarded: ForwardAnswer(
        forwarded.number, "no" if int(forwarded.seq) in seqs else "accepted"
    )


@pytest.mark.parametrize("fifo, given_back", [(True, ["m2", "m3"]), (False, ["m2"])])
@pytest.mark.parametrize("stops", [False, True])
async def test_what_follows_a_message_goes_back_with_it_where_the_queue_keeps_order(
    rig: Rig, fifo: bool, given_back: list[str], stops: bool
) -> None:
    """The queue delivers the one before only once the later one is no longer in flight."""
    rig.queue.fifo = fifo
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = refusing(1)
    await rig.dispatch(*await rig.receive(3))
    if stops:
        assert await rig.router.waiting.give_back_all() == len(given_back)
    else:
        await rig.clock.sleep(VISIBILITY_S / 3)
    assert sorted(event.id for event in rig.queue.log if event.kind == "given back") == given_back
    assert len(rig.router.forwards) == 3 - len(given_back), "an owner has the others"


async def test_messages_of_a_lost_owner_go_back_once_where_the_first_takes_the_others_along(rig: Rig) -> None:
    rig.queue.fifo = True
    stranger = Member("/services/w", "w", "sim://w", Load(room=0), foreign=True)
    await rig.live(member("a"), stranger)
    await rig.owned_by("a")
    await rig.dispatch(*await rig.receive(3))
    rig.router.placing.claim_changed(Claim(KEY, stranger.id, 9))
    del rig.membership.view["a"]
    rig.router.left("a")
    await settle_down()
    assert sorted(event.id for event in rig.queue.log if event.kind == "given back") == ["m1", "m2", "m3"]
    assert len(rig.router.forwards) == 0


async def test_another_stream_keeps_its_messages_when_one_of_a_fifo_queue_goes_back(rig: Rig) -> None:
    rig.queue.fifo = True
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = refusing(0)
    first, other = await rig.receive(2)
    await rig.dispatch(first)
    rig.router.dispatch("s", "s/other", other)
    await rig.clock.sleep(VISIBILITY_S / 3)
    assert [event.id for event in rig.queue.log if event.kind == "given back"] == ["m1"]


async def test_messages_given_back_return_at_different_times(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")
    await rig.dispatch(*await rig.receive(10))
    await rig.clock.sleep(10)
    pauses = {
        message.number: message.visible_at - event.at
        for message in rig.queue.messages.values()
        for event in rig.queue.log
        if event.kind == "given back" and event.id == message.id
    }
    assert len(pauses) == 10
    assert all(0.5 * GIVE_BACK_S <= pause <= 1.5 * GIVE_BACK_S for pause in pauses.values())
    assert len({round(pause, 3) for pause in pauses.values()}) == 10


LINE_MAX = LIMITS.custody_limit // LINE_SHARE


def without_keys(rig: Rig) -> Rig:
    """Return the rig with a queue that knows no keys."""
    rig.queue.by_key = False
    return rig


class Inbox:
    """An owner elsewhere that has room for ``room`` messages, and counts what it is offered."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.accepted: list[int] = []

    def judge(self, forwarded: ForwardedDelivery) -> ForwardAnswer:
        """Answer as an owner does."""
        if self.room <= 0:
            return ForwardAnswer(forwarded.number, "full")
        self.room -= 1
        self.accepted.append(int(forwarded.seq))
        return ForwardAnswer(forwarded.number, "accepted")


async def full_owner(rig: Rig) -> Inbox:
    """Let another node own the key, and have no room."""
    await rig.live(member("a"))
    await rig.owned_by("a")
    inbox = Inbox()
    rig.peers.judges["a"] = inbox.judge
    return inbox


async def test_what_waits_for_room_stays_in_custody_where_the_queue_knows_no_keys(rig: Rig) -> None:
    inbox = await full_owner(without_keys(rig))
    await rig.dispatch(*(held(n) for n in range(5)))
    await rig.clock.sleep(10 * VISIBILITY_S)
    assert (len(rig.router.forwards), rig.stats.given_back) == (5, 0)
    assert len(list(rig.router.holding("s"))) == 5, "it is hidden from others"
    assert len(rig.peers.deliveries("a")) < 11 * VISIBILITY_S / LIMITS.defer.max_s * 2, (
        "one is offered at a time"
    )
    inbox.room = 5
    await rig.clock.sleep(5)
    assert inbox.accepted == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_behind_gap", [True, False])
async def test_what_waits_behind_a_gap_lapses_where_the_queue_keeps_order(
    rig: Rig, is_behind_gap: bool
) -> None:
    """Such a queue holds back what comes before it, which the owner waits for."""
    rig.queue.fifo, rig.queue.by_key = True, False
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = lambda forwarded: ForwardAnswer(forwarded.number, "full", held_back=is_behind_gap)
    await rig.dispatch(held(3))
    assert bool(list(rig.router.holding("s"))) is not is_behind_gap
    assert len(rig.router.forwards) == 1


async def test_the_lowest_that_waits_is_offered_first(rig: Rig) -> None:
    inbox = await full_owner(without_keys(rig))
    await rig.dispatch(*(held(n) for n in (7, 3, 9, 1, 5)))
    for room in (2, 1, 2):
        inbox.room = room
        await rig.clock.sleep(5)
    assert inbox.accepted == [1, 3, 5, 7, 9]


async def test_what_comes_later_waits_behind_those_in_line(rig: Rig) -> None:
    inbox = await full_owner(without_keys(rig))
    await rig.dispatch(held(3), held(5))
    inbox.room = 10
    await rig.dispatch(held(9))
    assert inbox.accepted == []
    await rig.dispatch(held(1))
    assert inbox.accepted == [1], "a lower one may be what the owner waits for"
    await rig.clock.sleep(5)
    assert inbox.accepted == [1, 3, 5, 9]


async def test_a_key_takes_its_share_of_the_custody_and_its_highest_go_back(rig: Rig) -> None:
    inbox = await full_owner(without_keys(rig))
    await rig.dispatch(*reversed(await rig.receive(10)), *(held(n) for n in range(10, LINE_MAX + 10)))
    await settle_down()
    assert (len(rig.router.forwards), rig.stats.given_back) == (LINE_MAX, 10)
    assert rig.router.waiting.is_crowded("s")
    assert not rig.router.waiting.is_crowded("other")
    inbox.room = 100
    await rig.clock.sleep(10)
    assert inbox.accepted == list(range(LINE_MAX))
    assert not rig.router.waiting.is_crowded("s")


async def test_what_finds_no_room_goes_back_highest_first_for_longer_each_time(rig: Rig) -> None:
    await full_owner(without_keys(rig))
    await rig.dispatch(*(held(n, f"r{n}") for n in range(LINE_MAX)))
    calls: list[tuple[list[str], float]] = []

    async def give_back(receipts: list[str], delay_s: float) -> list[str]:
        calls.append((receipts, delay_s))
        return []

    rig.queue.give_back = give_back  # type: ignore[method-assign,assignment]
    for receives in range(1, 8):
        more = [held(n, f"r{n}") for n in (100, 101, 102)]
        for message in more:
            message.receives = receives
        await rig.dispatch(*more)
    assert [receipts for receipts, _ in calls] == [["r102", "r101", "r100"]] * 7, "in one call"
    pauses = [pause_s for _, pause_s in calls]
    assert GIVE_BACK_S / 2 <= pauses[0] < pauses[2] <= GAP_TIMEOUT_S / 3
    assert max(pauses) <= GAP_TIMEOUT_S / 3


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_a_queue_that_keeps_order_gets_the_tail_back_from_its_end_and_at_once(
    rig: Rig, is_foreign: bool
) -> None:
    """A pause would stop the key. Only what is another program's is left to it for a while."""
    rig.queue.fifo, rig.queue.by_key = True, False
    stranger = Member("/services/w", "w", "sim://w", Load(room=0), foreign=True)
    await rig.live(member("a"), stranger)
    await rig.owned_by(stranger.id if is_foreign else "a")
    rig.peers.judges["a"] = refusing(0, 1, 2)
    await rig.dispatch(*await rig.receive(3))
    await rig.clock.sleep(0 if is_foreign else VISIBILITY_S / 3)
    back = [event for event in rig.queue.log if event.kind == "given back"]
    if not is_foreign:
        assert [event.id for event in back[:3]] == ["m3", "m2", "m1"]
    pauses = {message.visible_at - back[-1].at for message in rig.queue.messages.values()}
    assert (max(pauses) > 0) is is_foreign


async def test_a_queue_that_can_t_take_it_back_shows_it_again_by_itself(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")

    async def give_back(receipts: Any, delay_s: float) -> list[str]:
        raise Unavailable("down")

    rig.queue.give_back = give_back  # type: ignore[method-assign]
    await rig.dispatch(*await rig.receive())
    await rig.clock.sleep(10)
    assert len(rig.router.forwards) == 0
    assert "cannot give messages back" in rig.log.events("warning")


async def test_beyond_the_limit_of_custody_what_finds_no_owner_goes_back_at_once(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")
    await rig.dispatch(*(held(n) for n in range(LIMITS.custody_limit + 20)))
    assert len(rig.router.forwards) == LIMITS.custody_limit
    assert rig.stats.given_back == 20


async def test_half_of_what_a_node_holds_is_left_to_inboxes_by_pending_forwards(
    clock: Clock, tasks: Tasks
) -> None:
    """A node that is full of messages in custody could never receive the one for which they wait."""
    rig = Rig(clock, tasks, msgspec.structs.replace(LIMITS, max_held=30, custody_limit=30))
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = say("full")
    await rig.dispatch(*(held(n) for n in range(30)))
    assert len(rig.router.forwards) == 15
    assert rig.stats.given_back == 15


async def test_what_its_owner_holds_back_does_not_count_until_it_runs_again(rig: Rig) -> None:
    await rig.live(member("a"), member("b"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = lambda forwarded: ForwardAnswer(forwarded.number, "accepted", held_back=True)
    await rig.dispatch(*(held(n) for n in range(3)))
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (3, 0)
    rig.peers.judges["a"] = say("accepted")
    await rig.clock.sleep(2 * LIMITS.custody_check_s)
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (3, 3), "it is asked again"
    rig.peers.judges["a"] = lambda forwarded: ForwardAnswer(forwarded.number, "accepted", held_back=True)
    await rig.clock.sleep(2 * LIMITS.custody_check_s)
    assert rig.router.forwards.kept == 0
    first, second, third = (forwarded.number for forwarded in rig.peers.deliveries("a")[:3])
    rig.router.reported(SettleReport("me", "a", [first], []))
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (2, 0)
    rig.peers.judges["a"] = say("full")
    rig.router.reported(SettleReport("me", "a", [], [second, third]))
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (2, 2), "nobody holds them now"


async def test_what_was_held_back_counts_until_its_next_owner_says_that_it_holds_it_back(rig: Rig) -> None:
    await rig.live(member("a"), member("b"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = lambda forwarded: ForwardAnswer(forwarded.number, "accepted", held_back=True)
    await rig.dispatch(*(held(n) for n in range(3)))

    def moved(forwarded: ForwardedDelivery) -> ForwardAnswer:
        rig.peers.delay_s = 100.0  # which is how long the next owner takes to answer
        return ForwardAnswer(forwarded.number, "no", "b", 9)

    rig.peers.judges["a"] = moved
    await rig.clock.sleep(2 * LIMITS.custody_check_s)
    assert len(rig.peers.deliveries("b")) == 3
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (3, 3)


async def test_a_node_full_of_what_owners_hold_back_takes_the_message_that_is_missing(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = lambda forwarded: ForwardAnswer(forwarded.number, "accepted", held_back=True)
    await rig.dispatch(*(held(n) for n in range(LIMITS.max_held + 20)))
    assert (len(rig.router.forwards), rig.router.forwards.kept) == (LIMITS.max_held + 20, 0)


async def test_what_is_settled_in_the_last_moment_is_not_given_back(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(*(held(n) for n in range(LIMITS.custody_limit + 1)))
    (forwarded, *_) = rig.peers.deliveries("a")
    rig.peers.judges["a"] = say("full")
    # One report returns it, the next says that another owner had committed it.
    rig.router.reported(SettleReport("me", "a", [], [forwarded.number]))
    await rig.clock.sleep(0)
    rig.router.reported(SettleReport("me", "a", [forwarded.number], []))
    await rig.clock.sleep(30)
    assert rig.events("given back") == 0


async def test_a_report_of_one_that_does_not_hold_it_changes_nothing(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(held(1))
    (forwarded,) = rig.peers.deliveries("a")
    rig.router.reported(SettleReport("me", "somebody", [], [forwarded.number]))
    await settle_down()
    assert list(rig.router.holding("s")) == []
    assert len(rig.peers.deliveries("a")) == 1


async def test_before_a_stop_what_nobody_accepted_goes_back(rig: Rig) -> None:
    await rig.live(member("a"), member("b"))
    await rig.owned_by("a")
    first, second = await rig.receive(2)
    await rig.dispatch(first)
    rig.peers.judges["a"] = say("full")
    await rig.dispatch(second)
    assert await rig.router.waiting.give_back_all() == 1
    assert len(rig.router.forwards) == 1, "an owner has the other"
    assert rig.events("given back") == 1


async def test_a_coordinator_that_is_down_delays_only_what_is_new(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(held(1))
    claim, down = rig.coordinator.claim, [True]

    async def broken(key: str, member: str) -> Claim:
        if down[0]:
            raise Unavailable("down")
        return await claim(key, member)

    rig.coordinator.claim = broken  # type: ignore[method-assign]
    await rig.dispatch(held(2))
    assert len(rig.peers.deliveries("a")) == 2
    rig.router.dispatch("s", "s/new", held(3))
    await rig.clock.sleep(0.5)
    assert len(rig.router.forwards) == 3
    down[0] = False
    await rig.clock.sleep(3)
    assert list(rig.router.holding("s")) == []


async def test_the_oldest_routes_beyond_the_limit_are_forgotten(rig: Rig) -> None:
    placing = Placing(rig.host, rig.owners, routes_max=3)
    await rig.live(member("a"))
    for key in ("s/1", "s/2", "s/3", "s/4", "s/3"):
        placing.note(key, "a")
    assert [key for key in ("s/1", "s/2", "s/3", "s/4") if placing.owner_of(key) is None] == ["s/1"]


async def test_many_messages_of_a_new_key_make_one_claim(rig: Rig) -> None:
    await rig.live(member("a"))
    calls = []
    claim = rig.coordinator.claim

    async def counting(key: str, member: str) -> Claim:
        calls.append(key)
        await asyncio.sleep(0.1)
        return await claim(key, member)

    rig.coordinator.claim = counting  # type: ignore[method-assign]
    await rig.dispatch(*(held(n) for n in range(30)))
    assert len(rig.router.forwards) == 30
    await rig.clock.sleep(1)
    assert calls == [KEY]
    assert len(rig.router.forwards) == 0


async def test_a_place_that_could_not_be_claimed_is_free_for_the_next(rig: Rig) -> None:
    await rig.live(member("a", streams=1, room=1), member("b", streams=5))
    rig.membership.view["me"] = member("me", streams=9)
    claim, failing = rig.coordinator.claim, [True]

    async def fail_once(key: str, member: str) -> Claim:
        if failing:
            failing.clear()
            raise Unavailable("not now")
        return await claim(key, member)

    rig.coordinator.claim = fail_once  # type: ignore[method-assign]
    await rig.dispatch(held(1))
    await rig.clock.sleep(1)
    assert len(rig.peers.deliveries("a")) == 1, "it has room for one, and nothing was placed there"


async def test_a_node_that_fails_is_asked_with_growing_pauses_however_much_there_is_for_it(rig: Rig) -> None:
    await rig.live(member("away"))
    claims = [await rig.coordinator.claim(f"s/{n}", "away") for n in range(40)]
    rig.peers.failing["away"] = Unavailable("503")
    began_at = rig.clock.monotonic()
    for claim in claims:
        rig.router.dispatch("s", claim.key, held(1))
    await rig.clock.sleep(60.0)
    calls = len(rig.peers.forwards["away"])
    assert 8 <= calls <= 40, f"{calls} calls in {rig.clock.monotonic() - began_at} s"
    del rig.peers.failing["away"]
    await rig.clock.sleep(10.0)
    rig.router.dispatch("s", claims[0].key, held(2))
    await rig.clock.sleep(0.01)
    assert rig.peers.deliveries("away")[-1].seq == 2, "once it has answered there are no pauses"


# --- streams that are due


async def test_an_owner_of_an_older_version_is_asked_to_move_a_stream_that_is_due(rig: Rig) -> None:
    newer = Member("b", "b", "sim://b", Load(acting=()))
    await rig.live(member("a"), newer)
    await rig.owned_by("a")
    assert await rig.router.placing.nudge("s", KEY)
    assert rig.peers.others == [Move("a", "s", KEY, "b")], "it knows no nudge"
    rig.membership.view["b"] = Member("b", "b", "sim://b", Load(acting=(), room=0))
    assert not await rig.router.placing.nudge("s", KEY)
    assert len(rig.peers.others) == 1, "nobody could take it"


async def test_a_claim_without_an_owner_on_a_node_of_an_older_version_is_taken_from_it(rig: Rig) -> None:
    await rig.live(member("a"), Member("b", "b", "sim://b", Load(acting=())))
    await rig.owned_by("a")
    rig.peers.refused = {Move}
    assert not await rig.router.placing.nudge("s", KEY), "it owns the stream, and can't move it now"
    assert rig.peers.others == [Move("a", "s", KEY, "b"), Explain("a", "s", KEY)]
    rig.peers.refused = {Move, Explain}
    rig.peers.others.clear()
    assert await rig.router.placing.nudge("s", KEY)
    assert rig.peers.others[2:] == [WakeUp("b", "s", KEY)]
    claim = await rig.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == "b"


async def test_the_owner_of_a_stream_that_is_due_is_told(rig: Rig) -> None:
    await rig.live(Member("a", "a", "sim://a", Load(acting=())))
    await rig.owned_by("a")
    assert await rig.router.placing.nudge("s", KEY)
    assert rig.peers.others == [WakeUp("a", "s", KEY)]


async def test_a_stream_that_is_due_and_that_nobody_can_take_is_said_to_be_so(rig: Rig) -> None:
    await rig.live()
    rig.owners.declared = False
    assert not await rig.router.placing.nudge("s", KEY)
    rig.membership.view["me"] = member("me", room=0)
    assert not await rig.router.placing.nudge("s", "s/other")


async def test_what_waits_for_a_peer_behind_messages_that_have_ended_is_forwarded(rig: Rig) -> None:
    check_at = rig.clock.monotonic() + LIMITS.custody_check_s
    await rig.live(member("a"))
    await rig.owned_by("a")
    large = bytes(LIMITS.forward_bytes_max // 2 + 1)  # each goes alone
    await rig.dispatch(held(1, body=large))
    await rig.clock.sleep(check_at - 0.5 - rig.clock.monotonic())
    rig.peers.delay_s = 2.0
    await rig.dispatch(held(2, body=large))
    await rig.clock.sleep(1.0)  # the first waits to be offered again
    await rig.dispatch(held(3, body=large))
    (first, *_) = rig.peers.deliveries("a")
    rig.router.reported(SettleReport("me", "a", [first.number], []))
    await rig.clock.sleep(10)
    assert 3 in [forwarded.seq for forwarded in rig.peers.deliveries("a")]
    assert [each.place.seq for _, each in rig.router.holding("s")] == [], "their owner has them"


async def test_what_is_too_large_for_one_call_is_forwarded_in_several(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    forwarded: list[int] = []

    def judge(delivery: ForwardedDelivery) -> ForwardAnswer:
        forwarded.append(int(delivery.seq))
        return ForwardAnswer(delivery.number, "accepted")

    def limit(count: int) -> None:
        call = rig.peers.call

        async def limited(address: str, request: Request, timeout_s: float) -> Reply:
            if isinstance(request, Forward) and len(request.deliveries) > count:
                raise TooLarge("too large for one request")
            return await call(address, request, timeout_s)

        rig.peers.call = limited  # type: ignore[method-assign]

    rig.peers.judges["a"] = judge
    limit(2)
    await rig.dispatch(*(held(n) for n in range(7)))
    await rig.clock.sleep(1)
    assert sorted(forwarded) == list(range(7))
    assert rig.router.waiting.count == 0
    rig.router.reported(
        SettleReport("me", "a", [forwarded.number for forwarded in rig.peers.deliveries("a")], [])
    )
    limit(0)
    await rig.dispatch(held(7))
    await rig.clock.sleep(60)
    assert "message too large to forward" in rig.log.events("warning")
    assert rig.stats.given_back == 1, "another node may receive it"


# --- back to the queue, which keeps a key for its owner


def full_and_reserved(forwarded: ForwardedDelivery) -> ForwardAnswer:
    """An owner without room answers that it has reserved its key."""
    return ForwardAnswer(forwarded.number, "full", reserved=True)


async def receives(rig: Rig) -> list[int]:
    """How often each waiting message was received, as far as that counts."""
    return [delivery.receives for delivery in await rig.queue.receive(10, 0, VISIBILITY_S, "me")]


async def test_what_an_owner_elsewhere_has_reserved_goes_back_at_once_and_uncounted(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    rig.peers.judges["a"] = full_and_reserved
    await rig.dispatch(*await rig.receive(3))
    assert len(rig.router.forwards) == 0
    assert rig.stats.given_back == 0
    assert await receives(rig) == [1, 1, 1]


async def test_what_an_owner_here_has_reserved_goes_back_at_once(rig: Rig) -> None:
    await rig.live()
    rig.owners.verdicts[KEY] = "full"
    rig.owners.reserved.add(KEY)
    await rig.dispatch(*await rig.receive(3))
    assert len(rig.router.forwards) == 0
    assert await receives(rig) == [1, 1, 1]


async def test_what_waits_for_room_here_goes_back_once_its_key_is_reserved(rig: Rig) -> None:
    await rig.live()
    rig.owners.verdicts |= {KEY: "full", "s/other": "full"}
    first, second, other = await rig.receive(3)
    await rig.dispatch(first, second)
    rig.router.dispatch("s", "s/other", other)
    await settle_down()
    assert len(rig.router.forwards) == 3
    rig.owners.reserved.add(KEY)
    rig.router.waiting.reserved(KEY)
    await settle_down()
    assert len(rig.router.forwards) == 1
    assert await receives(rig) == [1, 1]


async def test_what_an_owner_elsewhere_holds_stays_with_it_as_a_key_is_reserved_here(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(*await rig.receive(1))
    rig.router.waiting.reserved(KEY)
    await settle_down()
    assert len(rig.router.forwards) == 1


async def test_what_may_have_killed_its_owner_is_counted_as_it_goes_back(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.owned_by("a")
    await rig.dispatch(*await rig.receive(1))
    rig.owners.verdicts[KEY] = "full"
    rig.owners.reserved.add(KEY)
    del rig.membership.view["a"]
    rig.router.left("a")
    await settle_down()
    assert len(rig.router.forwards) == 0
    assert await receives(rig) == [2]


async def test_the_next_owner_of_a_reserved_key_is_called_up(rig: Rig) -> None:
    await rig.live(member("a"))
    await rig.router.placing.call_up("s", KEY, "a")
    assert rig.peers.others == [WakeUp("a", "s", KEY)]
    await rig.router.placing.call_up("s", KEY, "gone")
    assert len(rig.peers.others) == 1
