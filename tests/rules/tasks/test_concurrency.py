"""Sharing a maximum: never above it, fair, and nothing left over that somebody wants."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.rules.cluster.lease import Lease
from holdfast.rules.tasks.concurrency import (
    ConcurrencyLimits,
    Grant,
    LimitShare,
    Witness,
    leave,
    limit,
    others_starve,
    share,
)

LEASE_S = 30.0


def give(
    limits: ConcurrencyLimits, member: str, wants: int, holds: int = 0, lapsed: tuple[str, ...] = ()
) -> LimitShare:
    return share(limits, member, wants, holds, lapsed=lapsed, beat=1, lease_s=LEASE_S)


def counts(limits: ConcurrencyLimits) -> dict[str, int]:
    return {member: grant.count for member, grant in limits.grants.items()}


def test_one_alone_gets_what_it_wants_up_to_the_maximum() -> None:
    assert give(ConcurrencyLimits(10), "a", 4) == LimitShare(
        ConcurrencyLimits(10, 0, {"a": Grant(4, 4, 1, LEASE_S, 1)}), 4
    )
    assert give(ConcurrencyLimits(10), "a", 40).granted == 10


def test_no_more_than_a_node_may() -> None:
    shared = give(ConcurrencyLimits(10, per_node=3), "a", 40)
    assert (shared.granted, shared.limits.grants["a"].wants) == (3, 3)


def test_who_wants_nothing_has_no_grant() -> None:
    some = give(ConcurrencyLimits(10), "a", 4).limits
    assert give(some, "a", 0) == LimitShare(ConcurrencyLimits(10), 0)
    assert counts(give(some, "a", 0, holds=2).limits) == {"a": 2}


def test_who_has_too_much_gives_up_what_no_task_runs_on() -> None:
    rich = give(ConcurrencyLimits(10), "a", 10).limits
    poor = give(rich, "b", 10)
    assert (poor.granted, others_starve(poor.limits, "a"), others_starve(poor.limits, "b")) == (
        0,
        True,
        False,
    )
    less = give(poor.limits, "a", 10, holds=8)
    assert (less.granted, counts(less.limits)) == (5, {"a": 8, "b": 0})
    assert give(less.limits, "b", 10).granted == 2
    even = give(less.limits, "a", 10, holds=4)
    assert give(even.limits, "b", 10).granted == 5


def test_who_wants_little_gets_it_and_the_rest_is_shared() -> None:
    limits = ConcurrencyLimits(10)
    for member, wants in (("a", 10), ("b", 1), ("c", 10)) * 5:
        limits = give(limits, member, wants).limits
    assert counts(limits) == {"a": 5, "b": 1, "c": 4}


def test_a_grant_that_lapsed_goes_to_others() -> None:
    rich = give(ConcurrencyLimits(10), "a", 10).limits
    after = ConcurrencyLimits(10, 0, {"b": Grant(10, 10, 1, LEASE_S, 2)})
    assert give(rich, "b", 10, lapsed=("a",)) == LimitShare(after, 10)


def test_a_node_that_leaves_gives_its_grant_back() -> None:
    limits = give(give(ConcurrencyLimits(10), "a", 4).limits, "b", 4).limits
    assert counts(leave(limits, "a")) == {"b": 4}


def test_changed_limits_keep_the_grants() -> None:
    some = give(ConcurrencyLimits(10), "a", 4).limits
    assert limit(some, 5, None) == ConcurrencyLimits(5, 0, some.grants)
    assert limit(some, None, 2) == ConcurrencyLimits(10, 2, some.grants)


def test_a_lower_maximum_lets_nothing_begin_before_fewer_run() -> None:
    limits = ConcurrencyLimits(10)
    for member in ("a", "b", "a"):
        limits = give(limits, member, 5).limits
    limits = limit(limits, 4, None)
    stopped = give(limits, "a", 5, holds=5)
    assert (stopped.granted, counts(stopped.limits)) == (0, {"a": 5, "b": 5})
    fewer = give(stopped.limits, "b", 5, holds=1)
    assert (fewer.granted, counts(fewer.limits)) == (0, {"a": 5, "b": 1})
    assert give(fewer.limits, "a", 5, holds=2).granted == 2


def test_with_too_few_for_all_they_take_turns() -> None:
    limits, served = ConcurrencyLimits(1), []
    for _ in range(4):
        for member in ("a", "b", "c"):
            shared = give(limits, member, 9)
            limits = shared.limits
            if shared.granted:
                served.append(member)
                limits = give(limits, member, 9, holds=1).limits
    assert set(served) == {"a", "b", "c"}


def test_a_witness_counts_from_when_it_saw_a_change() -> None:
    witness = Witness()
    limits = give(ConcurrencyLimits(10), "a", 4).limits
    for at in (100.0, 110.0, 120.0, 130.0):
        witness.see(limits, at)
        assert witness.lapsed() == set()
    witness.see(limits, 130.5)
    assert witness.lapsed() == {"a"}
    renewed = share(limits, "a", 4, 0, lapsed=(), beat=2, lease_s=LEASE_S).limits
    witness.see(renewed, 131.0)
    assert witness.lapsed() == set()
    witness.see(leave(renewed, "a"), 132.0)
    assert witness.lapsed() == set()


def test_time_without_a_look_doesn_t_count() -> None:
    witness = Witness()
    limits = give(ConcurrencyLimits(10), "a", 4).limits
    for at in (0.0, 1000.0, 2000.0, 3000.0):
        witness.see(limits, at)
    assert witness.lapsed() == set()
    witness.see(limits, 3001.0)
    assert witness.lapsed() == {"a"}


# --- any interleaving


@dataclass
class Node:
    """A member with a clock of its own, what it believes, and how many tasks it runs."""

    name: str
    rate: float
    offset_s: float
    running: int = 0
    wants: int = 0
    granted: int = 0
    beats: int = 0
    read: ConcurrencyLimits | None = None
    lease: Lease = field(default_factory=lambda: Lease(LEASE_S, -1e18))
    witness: Witness = field(default_factory=Witness)

    def time(self, now: float) -> float:
        return now * self.rate + self.offset_s

    def allowed(self, now: float) -> int:
        return self.granted if self.lease.holds(self.time(now)) else 0


class World:
    """Nodes that share a document; what runs is never more than the maximum that stood when it began."""

    def __init__(self, maximum: int, nodes: int) -> None:
        self.limits = ConcurrencyLimits(maximum)
        self.version = 0
        self.now = 0.0
        self.started = 0
        self.nodes = [
            Node(f"n{i}", 1.0 + [0.004, -0.004, 0.0][i % 3], [1e6, -1e6, 0.0][i % 3]) for i in range(nodes)
        ]

    def read(self, node: Node) -> int:
        node.read = self.limits
        node.witness.see(self.limits, node.time(self.now))
        return self.version

    def renew(self, node: Node, version: int, asked_at: float) -> None:
        """Write upon what was read, if that still stands."""
        assert node.read is not None
        node.beats += 1
        lapsed = node.witness.lapsed()
        shared = share(
            node.read, node.name, node.wants, node.running, lapsed=lapsed, beat=node.beats, lease_s=LEASE_S
        )
        node.granted = min(node.granted, shared.granted)
        if version != self.version:
            return
        self.limits, self.version = shared.limits, version + 1
        node.granted, node.lease = shared.granted, Lease(LEASE_S, node.time(asked_at))

    def lapse(self) -> None:
        for node in self.nodes:
            if not node.lease.holds(node.time(self.now)):
                node.running = node.granted = 0  # its deliveries lapse, and it cancels

    def running(self) -> int:
        return sum(node.running for node in self.nodes)

    def allowed(self) -> int:
        return sum(node.allowed(self.now) for node in self.nodes)


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "renew", "slow renew", "begin", "end", "crash", "wait", "lapse", "leave", "maximum"]
        ),
        st.integers(0, 3),
        st.integers(0, 8),
    ),
    max_size=60,
)


@example(2, 1, [("want", 0, 2), ("renew", 0, 0), ("maximum", 0, 0), ("begin", 0, 2)])
@given(st.integers(1, 9), st.integers(1, 4), steps)
def test_no_more_tasks_run_than_the_maximum_whatever_happens(
    maximum: int, nodes: int, steps: list[tuple[str, int, int]]
) -> None:
    world = World(maximum, nodes)
    late: dict[str, tuple[int, float]] = {}
    promised = (
        0  # of grants that were given before the maximum was lowered; they count until they are renewed
    )
    for deed, which, number in steps:
        node = world.nodes[which % nodes]
        before = world.running()
        match deed:
            case "want":
                node.wants = number
            case "renew":
                world.renew(node, world.read(node), world.now)
            case "slow renew":
                if node.name in late:
                    world.renew(node, *late.pop(node.name))
                else:
                    late[node.name] = (world.read(node), world.now)
            case "begin":
                node.running = max(node.running, min(number, node.allowed(world.now)))
            case "end":
                node.running = max(0, node.running - number)
            case "crash":
                world.nodes[which % nodes] = Node(f"{node.name}'", node.rate, node.offset_s)
            case "wait":
                world.now += number
                world.lapse()
            case "lapse":
                for _ in range(number):
                    world.now += LEASE_S / 5
                    world.lapse()
                    world.read(node)
            case "leave":
                if not node.running:
                    node.granted = 0
                    world.limits, world.version = leave(world.limits, node.name), world.version + 1
            case "maximum":
                world.limits, world.version = limit(world.limits, number + 1, None), world.version + 1
                promised = world.allowed()
        promised = min(promised, world.allowed())
        assert world.running() <= max(before, world.limits.maximum, promised)


@given(st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_grants_converge_to_fair_shares(maximum: int, wants: list[int]) -> None:
    """With tasks that end, whoever was there first: nothing wanted is left over, nobody gets none."""
    world = World(maximum, len(wants))
    for turn in range(8):
        for node, wanted in zip(world.nodes, wants, strict=True):
            node.wants = wanted
            world.renew(node, world.read(node), world.now)
            node.running = min(node.allowed(world.now), wanted) if turn == 0 else 0
    shares = {node.name: node.granted for node in world.nodes}
    if maximum >= len(wants):
        assert sum(shares.values()) == min(maximum, sum(wants))
        assert min(shares.values()) >= 1
        level = max(shares.values())
        for node, wanted in zip(world.nodes, wants, strict=True):
            assert shares[node.name] == wanted or shares[node.name] >= level - 1
    else:
        assert sum(shares.values()) <= maximum


@given(st.integers(0, 30), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_a_share_is_within_what_is_wanted_and_there(maximum: int, wants: list[int]) -> None:
    limits = ConcurrencyLimits(maximum)
    for i, wanted in enumerate(wants):
        shared = give(limits, f"n{i}", wanted)
        assert 0 <= shared.granted <= min(wanted, maximum)
        limits = shared.limits
    assert sum(counts(limits).values()) <= maximum
    assert msgspec.json.decode(msgspec.json.encode(limits), type=ConcurrencyLimits) == limits


def test_no_more_is_held_than_was_granted() -> None:
    """More tasks may run than the grant allows: those began without a maximum."""
    some = give(ConcurrencyLimits(10), "a", 2).limits
    assert counts(give(some, "a", 0, holds=5).limits) == {"a": 2}
