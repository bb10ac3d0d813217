"""A coordinator against the one in memory: the same calls, the same answers."""

from collections.abc import Awaitable
from typing import Any

from hypothesis import strategies as st

from holdfast.errors import ClaimLost, HoldfastError, MembershipLost
from holdfast.ports.coordinator import Change, Claim, Coordinator, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.system.clock import SystemClock

LONG_S = 600.0
KEYS = ("s/1", "s/2", "s/ \N{SNOWMAN} 3")

# Members and claims are named by their number among those that were made; a call may name any, dead or stale.
nth = st.integers(0, 7)
keys = st.sampled_from(KEYS)
histories = st.lists(
    st.one_of(
        st.tuples(st.just("join")),
        st.tuples(st.just("renew"), nth, st.integers(0, 3)),
        st.tuples(st.sampled_from(("evict", "leave")), nth),
        st.tuples(st.just("claim"), keys, nth),
        st.tuples(st.just("transfer"), nth, nth),
        st.tuples(st.just("release"), nth),
        st.tuples(st.just("lookup"), keys),
        st.tuples(st.just("claims"), st.none() | nth),
        st.tuples(st.just("members")),
    ),
    min_size=5,
    max_size=40,
)


class Pair:
    """Both coordinators. A claim of one is the other's if both were first given together."""

    def __init__(self, model: Coordinator, real: Coordinator) -> None:
        self.model = model
        self.real = real
        self.members: list[Member] = []
        self.claims: list[tuple[Claim, Claim]] = []

    async def call(self, name: str, *arguments: Any) -> None:
        if name == "join":
            number = len(self.members)
            self.members.append(Member(f"m{number}", f"node {number}", f"http://127.0.0.1:{number}"))
            await self._both("join", (self.members[-1], LONG_S), (self.members[-1], LONG_S))
        elif name == "renew":
            known = self._member(arguments[0])
            member = Member(known.id, known.name, known.address, Load(streams=arguments[1]))
            await self._both("renew", (member, LONG_S), (member, LONG_S))
        elif name in ("evict", "leave"):
            member_id = self._member(arguments[0]).id
            await self._both(name, (member_id,), (member_id,))
        elif name == "claim":
            key, member_id = arguments[0], self._member(arguments[1]).id
            await self._both("claim", (key, member_id), (key, member_id))
        elif name in ("transfer", "release"):
            mine, theirs = self._claim(arguments[0])
            to = tuple(self._member(number).id for number in arguments[1:])
            await self._both(name, (mine, *to), (theirs, *to))
        elif name == "claims":
            of = None if arguments[0] is None else self._member(arguments[0]).id
            await self._both("claims", (of,), (of,))
        else:
            await self._both(name, arguments, arguments)

    async def compare_changes(self, begun: tuple[int, int]) -> None:
        _, expected = await self.model.watch(begun[0], 0)
        number, seen = begun[1], list[Change]()
        while len(seen) < len(expected):
            number, new = await self.real.watch(number, 10)
            seen += new
        assert len(seen) == len(expected)
        for model, real in zip(expected, seen, strict=True):
            assert model.kind == real.kind
            if model.member and real.member:
                assert model.member.id == real.member.id
            if model.claim and real.claim:
                assert (model.claim.key, model.claim.member) == (real.claim.key, real.claim.member)
                if model.claim.member:
                    assert (model.claim, real.claim) in self.claims

    def _member(self, number: int) -> Member:
        return self.members[number] if number < len(self.members) else Member("nobody", "", "")

    def _claim(self, number: int) -> tuple[Claim, Claim]:
        none = Claim("s/none", "nobody", 1)
        return self.claims[-1 - number] if number < len(self.claims) else (none, none)

    async def _both(self, name: str, model: tuple[Any, ...], real: tuple[Any, ...]) -> None:
        expected = await _outcome(getattr(self.model, name)(*model))
        answer = await _outcome(getattr(self.real, name)(*real))
        assert type(answer) is type(expected)
        if isinstance(expected, Claim):
            self._same(expected, answer)
        elif isinstance(expected, list) and name == "claims":
            assert len(answer) == len(expected)
            for one, other in zip(expected, answer, strict=True):
                self._same(one, other)
        elif not isinstance(expected, HoldfastError):
            assert answer == expected

    def _same(self, model: Claim, real: Claim) -> None:
        assert (model.key, model.member) == (real.key, real.member)
        known = [pair for pair in self.claims if model == pair[0]]
        if known:
            assert real == known[0][1]
        else:
            assert all(real.version > pair[1].version for pair in self.claims if pair[1].key == real.key)
            self.claims.append((model, real))


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except (ClaimLost, MembershipLost) as error:
        return error


async def compare(real: Coordinator, history: list[Any]) -> None:
    """Make the calls of a history of both, and compare what they answer, and what who watches sees."""
    pair = Pair(MemoryCoordinator(SystemClock()), real)
    begun = (await pair.model.watch(-1, 0))[0], (await pair.real.watch(-1, 0))[0]
    for _ in range(2):
        await pair.call("join")
    for name, *arguments in history:
        await pair.call(name, *arguments)
    await pair.call("claims", None)
    await pair.call("members")
    await pair.compare_changes(begun)
