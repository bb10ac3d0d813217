"""The promises of every coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.common.protocol_versions import ProtocolVersions
from holdfast.errors import ClaimLost, MembershipLost
from holdfast.ports.coordinator import Change, Claim, Coordinator, Load, Member

LONG_S = 60.0
"""Longer than any test: a membership with this TTL never ends."""

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

A, B, C = (
    Member(f"member-{n}", f"node {n}", f"http://127.0.0.1:{port}")
    for n, port in (("a", 1), ("b", 2), ("c", 3))
)

ODD_KEYS = ["s/k", "s/a/b//c", "s/käse \N{SNOWMAN}", "s/'\"%_\\;--", "s/*?[x]{y}:z", "s/..", "s/" + "x" * 512]


@pytest.mark.asyncio
class CoordinatorConformance:
    """Every promise of the coordinator port. Fixture: ``coordinator``, new and empty."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a few calls to be answered in."""

    @pytest.fixture
    def coordinator(self) -> Coordinator:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture coordinator")

    @pytest.fixture
    def other_coordinator(self, coordinator: Coordinator) -> Coordinator:
        """Override if several clients may share a coordinator: another client of the same one."""
        return coordinator

    # --- memberships

    async def test_members_are_listed_in_order_of_id(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        assert await coordinator.members() == []
        for member in (B, C, A):
            await coordinator.join(member, LONG_S)
        assert await coordinator.members() == await other_coordinator.members() == [A, B, C]

    async def test_a_renewal_publishes_the_load(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        load = Load(
            streams=7,
            slots=3,
            room=0,
            draining=True,
            queues=("frames",),
            offers=("doors",),
            speaks=ProtocolVersions(1, 2),
        )
        busy = Member(A.id, A.name, A.address, load)
        await coordinator.renew(busy, LONG_S)
        assert await other_coordinator.members() == [busy]

    async def test_a_membership_that_is_not_renewed_lapses(self, coordinator: Coordinator) -> None:
        number = await _present(coordinator)
        await coordinator.join(A, 4 * self.tick_s)
        await coordinator.join(B, LONG_S)
        await _until(coordinator, number, _left(A))
        assert await coordinator.members() == [B]
        with pytest.raises(MembershipLost):
            await coordinator.renew(A, LONG_S)
        assert await coordinator.members() == [B]

    async def test_a_renewal_counts_its_ttl_from_now(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        number = await _present(coordinator)
        await coordinator.renew(A, 2 * self.tick_s)
        await coordinator.renew(B, 2 * LONG_S)
        await _until(coordinator, number, _left(A))
        assert await coordinator.members() == [B]

    async def test_an_unknown_membership_can_t_be_renewed(self, coordinator: Coordinator) -> None:
        with pytest.raises(MembershipLost):
            await coordinator.renew(A, LONG_S)
        assert await coordinator.members() == []

    async def test_leaving_ends_the_membership_and_its_claims(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.claim("s/k", A.id)
        await coordinator.leave(A.id)
        assert await coordinator.members() == []
        assert await coordinator.lookup("s/k") is None
        await coordinator.leave(A.id)
        with pytest.raises(MembershipLost):
            await coordinator.renew(A, LONG_S)

    async def test_eviction_ends_a_membership_once(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        await coordinator.claim("s/k", A.id)
        evictions = await asyncio.gather(*(c.evict(A.id) for c in [coordinator, other_coordinator] * 3))
        assert sorted(evictions) == [False] * 5 + [True]
        assert await coordinator.members() == [B]
        assert await coordinator.lookup("s/k") is None
        with pytest.raises(MembershipLost):
            await coordinator.renew(A, LONG_S)
        assert await coordinator.evict("nobody") is False

    # --- claims

    async def test_the_claim_of_a_free_key_is_seen_by_others(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        assert await coordinator.lookup("s/k") is None
        claim = await coordinator.claim("s/k", A.id)
        assert (claim.key, claim.member) == ("s/k", A.id)
        assert await coordinator.lookup("s/k") == await other_coordinator.lookup("s/k") == claim

    async def test_one_of_several_claims_wins(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        for member in (A, B, C):
            await coordinator.join(member, LONG_S)
        attempts = [(coordinator, A), (other_coordinator, B), (coordinator, C), (other_coordinator, A)] * 3
        claims = await asyncio.gather(*(client.claim("s/k", member.id) for client, member in attempts))
        assert len(set(claims)) == 1
        assert await coordinator.lookup("s/k") == claims[0]

    async def test_claiming_a_key_again_returns_the_same_claim(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        assert await coordinator.claim("s/k", A.id) == claim

    async def test_a_dead_membership_can_t_claim(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.evict(A.id)
        for member in (A.id, "nobody"):
            with pytest.raises(MembershipLost):
                await coordinator.claim("s/k", member)
        assert await coordinator.lookup("s/k") is None

    async def test_claims_of_a_dead_member_are_free(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        number = await _present(coordinator)
        await coordinator.join(A, 4 * self.tick_s)
        await coordinator.join(B, LONG_S)
        old = await coordinator.claim("s/k", A.id)
        await _until(coordinator, number, _left(A))
        assert await coordinator.lookup("s/k") is None
        assert await coordinator.claims() == []
        new = await other_coordinator.claim("s/k", B.id)
        assert new.member == B.id
        assert new.version > old.version

    async def test_the_version_of_a_claim_grows_with_every_change(self, coordinator: Coordinator) -> None:
        for member in (A, B, C):
            await coordinator.join(member, LONG_S)
        claims = [await coordinator.claim("s/k", A.id)]
        claims.append(await coordinator.transfer(claims[-1], B.id))
        await coordinator.release(claims[-1])
        claims.append(await coordinator.claim("s/k", B.id))
        await coordinator.evict(B.id)
        claims.append(await coordinator.claim("s/k", A.id))
        await coordinator.leave(A.id)
        claims.append(await coordinator.claim("s/k", C.id))
        versions = [claim.version for claim in claims]
        assert versions == sorted(set(versions))

    async def test_a_transfer_hands_a_claim_to_another_member(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        old = await coordinator.claim("s/k", A.id)
        new = await coordinator.transfer(old, B.id)
        assert (new.key, new.member) == ("s/k", B.id)
        assert await other_coordinator.lookup("s/k") == new

    async def test_a_stale_transfer_changes_nothing(self, coordinator: Coordinator) -> None:
        for member in (A, B, C):
            await coordinator.join(member, LONG_S)
        first = await coordinator.claim("s/k", A.id)
        second = await coordinator.transfer(first, B.id)
        standing = await coordinator.transfer(second, A.id)
        stale = [
            first,
            second,
            Claim("s/k", B.id, standing.version),
            Claim("s/k", A.id, standing.version + 1),
            Claim("s/none", A.id, 1),
        ]
        for claim in stale:
            with pytest.raises(ClaimLost):
                await coordinator.transfer(claim, C.id)
        assert await coordinator.lookup("s/k") == standing
        assert await coordinator.lookup("s/none") is None

    async def test_a_transfer_to_a_dead_member_is_refused(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        await coordinator.evict(B.id)
        for target in (B.id, "nobody"):
            with pytest.raises(MembershipLost):
                await coordinator.transfer(claim, target)
        assert await coordinator.lookup("s/k") == claim

    async def test_the_claim_of_a_dead_member_can_t_be_transferred(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        await coordinator.evict(A.id)
        with pytest.raises(ClaimLost):
            await coordinator.transfer(claim, B.id)
        assert await coordinator.lookup("s/k") is None

    async def test_one_of_several_transfers_wins(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        for member in (A, B, C):
            await coordinator.join(member, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        attempts = [(coordinator, B), (other_coordinator, C)] * 3
        outcomes = await asyncio.gather(
            *(client.transfer(claim, member.id) for client, member in attempts), return_exceptions=True
        )
        moved = [outcome for outcome in outcomes if isinstance(outcome, Claim)]
        assert moved == [await coordinator.lookup("s/k")]
        assert sum(isinstance(outcome, ClaimLost) for outcome in outcomes) == len(attempts) - 1

    async def test_a_released_key_is_free(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        assert await coordinator.release(claim) is True
        assert await other_coordinator.lookup("s/k") is None
        assert await coordinator.release(claim) is False

    async def test_a_stale_release_changes_nothing(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        old = await coordinator.claim("s/k", A.id)
        await coordinator.release(old)
        standing = await coordinator.claim("s/k", A.id)
        for stale in (old, Claim("s/k", B.id, standing.version), Claim("s/k", A.id, standing.version + 1)):
            assert await coordinator.release(stale) is False
        assert await coordinator.release(Claim("s/none", A.id, 1)) is False
        assert await coordinator.lookup("s/k") == standing

    async def test_claims_are_listed_in_order_of_key(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        made = [await coordinator.claim(f"s/{k}", m.id) for k, m in (("3", A), ("1", B), ("2", A), ("10", A))]
        ordered = sorted(made, key=lambda claim: claim.key)
        assert await coordinator.claims() == await other_coordinator.claims() == ordered
        assert await coordinator.claims(A.id) == [claim for claim in ordered if claim.member == A.id]
        assert await coordinator.claims("nobody") == []

    async def test_keys_may_hold_any_printable_text(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        number = await _present(coordinator)
        claims = {key: await coordinator.claim(key, A.id) for key in ODD_KEYS}
        assert {key: await coordinator.lookup(key) for key in ODD_KEYS} == claims
        assert {claim.key for claim in await coordinator.claims()} == set(ODD_KEYS)
        moved = [await coordinator.transfer(claim, B.id) for claim in claims.values()]
        assert [await coordinator.release(claim) for claim in moved] == [True] * len(ODD_KEYS)
        last = moved[-1].version
        changes = await _until(
            coordinator,
            number,
            lambda c: c.claim is not None and c.claim.key == ODD_KEYS[-1] and c.claim.version > last,
        )
        assert {change.claim.key for change in changes if change.claim} == set(ODD_KEYS)

    # --- changes

    async def test_watching_sees_joins_claims_and_leaves_in_order(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        number = await _present(other_coordinator)
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        claimed = await coordinator.claim("s/k", A.id)
        moved = await coordinator.transfer(claimed, B.id)
        await coordinator.release(moved)
        await coordinator.leave(A.id)
        await coordinator.evict(B.id)
        changes = await _until(other_coordinator, number, _left(B))
        seen = [
            (
                change.kind,
                change.member.id if change.member else change.claim.member if change.claim else None,
            )
            for change in changes
        ]
        assert seen == [
            ("joined", A.id),
            ("joined", B.id),
            ("claim", A.id),
            ("claim", B.id),
            ("claim", ""),
            ("left", A.id),
            ("left", B.id),
        ]
        assert [change.claim for change in changes[2:4]] == [claimed, moved]
        assert changes[0].member == A

    async def test_a_waiting_watch_wakes_at_a_change(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        number = await _present(coordinator)
        waiting = asyncio.create_task(coordinator.watch(number, 3 * PATIENCE_S))
        await asyncio.sleep(0)  # it begins to wait
        await other_coordinator.join(A, LONG_S)
        after, changes = await asyncio.wait_for(waiting, PATIENCE_S)
        assert after > number
        assert [(change.kind, change.member) for change in changes] == [("joined", A)]

    async def test_watching_without_a_change_ends_in_time(self, coordinator: Coordinator) -> None:
        number = await _present(coordinator)
        async with asyncio.timeout(PATIENCE_S):
            assert await coordinator.watch(number, 0) == (number, [])
            assert await coordinator.watch(number, self.tick_s) == (number, [])

    async def test_the_present_number_comes_at_once_without_changes(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        async with asyncio.timeout(PATIENCE_S):
            number, changes = await coordinator.watch(-1, 3 * PATIENCE_S)
        assert number >= 0
        assert changes == []

    async def test_a_refused_call_is_no_change(self, coordinator: Coordinator) -> None:
        await coordinator.join(A, LONG_S)
        await coordinator.join(B, LONG_S)
        claim = await coordinator.claim("s/k", A.id)
        number = await _present(coordinator)
        await coordinator.claim("s/k", A.id)
        await coordinator.claim("s/k", B.id)
        await coordinator.release(Claim("s/k", A.id, claim.version + 1))
        with pytest.raises(ClaimLost):
            await coordinator.transfer(Claim("s/k", B.id, claim.version), B.id)
        with pytest.raises(MembershipLost):
            await coordinator.transfer(claim, "nobody")
        await coordinator.evict("nobody")
        await coordinator.leave("nobody")
        await coordinator.leave(B.id)
        changes = await _until(coordinator, number, _left(B))
        assert [change.kind for change in changes] == ["left"]

    async def test_a_watch_from_a_lost_number_says_start_again(self, coordinator: Coordinator) -> None:
        number = await _present(coordinator)
        async with asyncio.timeout(PATIENCE_S):
            after, _ = await coordinator.watch(number + 1_000_000_000, 3 * PATIENCE_S)
        assert after < number + 1_000_000_000

    async def test_no_change_is_missed_while_others_write(
        self, coordinator: Coordinator, other_coordinator: Coordinator
    ) -> None:
        await coordinator.join(A, LONG_S)
        number = await _present(coordinator)
        watching = asyncio.create_task(
            _until(
                coordinator, number, lambda change: change.claim is not None and change.claim.key == "s/last"
            )
        )

        async def churn(client: Coordinator, part: int) -> list[Claim]:
            made = []
            for i in range(10):
                made.append(await client.claim(f"s/{part}-{i}", A.id))
                await client.release(made[-1])
            return made

        clients = [coordinator, other_coordinator] * 2
        made = await asyncio.gather(*(churn(client, part) for part, client in enumerate(clients)))
        await other_coordinator.claim("s/last", A.id)
        claims = [change.claim for change in await watching if change.claim]
        assert {c for c in claims if c.member and c.key != "s/last"} == {c for part in made for c in part}
        assert len(claims) == 2 * 40 + 1
        for part in range(4):  # for each key, its claim comes before its release
            versions = [c.version for c in claims if c.key == f"s/{part}-0"]
            assert versions == sorted(versions)


async def _present(coordinator: Coordinator) -> int:
    number, _ = await coordinator.watch(-1, 0)
    return number


def _left(member: Member) -> Callable[[Change], bool]:
    return lambda change: (
        change.kind == "left" and change.member is not None and change.member.id == member.id
    )


async def _until(coordinator: Coordinator, after: int, last: Callable[[Change], bool]) -> list[Change]:
    """Return all changes after a number, up to the one that is ``last``."""
    seen: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while not any(last(change) for change in seen):
            number, changes = await coordinator.watch(after, PATIENCE_S)
            assert number >= after, "changes were lost"
            assert number > after or not changes
            after = number
            seen += changes
    return seen
