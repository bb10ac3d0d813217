"""What only the coordinator in SQLite does."""

import pytest

from holdfast.errors import Damaged, MembershipLost
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.services.sqlite import coordinator as module
from holdfast.services.sqlite.coordinator import SqliteCoordinator
from holdfast.services.sqlite.database import Database


async def test_old_changes_are_pruned_and_who_missed_them_starts_again(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHANGES_KEPT", 20)
    monkeypatch.setattr(module, "PRUNE_EVERY", 10)
    coordinator = SqliteCoordinator(database, clock)
    begin, _ = await coordinator.watch(-1, 0)
    await coordinator.join(Member("a", "a", ""), 60)
    for i in range(30):
        await coordinator.release(await coordinator.claim(f"s/{i}", "a"))
    assert await coordinator.watch(begin, 60) == (-1, [])
    now, changes = await coordinator.watch(-1, 60)
    assert changes == []
    assert [c.claim.key for c in (await coordinator.watch(now - 2, 60))[1] if c.claim] == ["s/29", "s/29"]
    [rows] = await database.read(lambda c: c.execute("SELECT count(*) FROM changes").fetchone())
    assert rows <= 30


async def test_a_membership_that_lapses_wakes_who_watches(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAFETY_S", 3600.0)  # it never looks of its own accord
    coordinator = SqliteCoordinator(database, clock)
    member = Member("a", "a", "")
    await coordinator.join(member, 0.2)
    number, _ = await coordinator.watch(-1, 0)
    begun_at = clock.monotonic()
    _, [change] = await coordinator.watch(number, 30)
    assert (change.kind, change.member) == ("left", member)
    assert clock.monotonic() - begun_at > 0.1


async def test_a_membership_that_lapsed_is_not_renewed_though_nobody_has_looked(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, member = SqliteCoordinator(database, clock), Member("a", "a", "")
    await coordinator.join(member, 60)
    later = clock.monotonic() + 61
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    with pytest.raises(MembershipLost):
        await coordinator.renew(member, 60)
    assert await coordinator.members() == []


async def test_with_a_membership_go_the_rows_of_its_claims(database: Database, clock: Clock) -> None:
    coordinator = SqliteCoordinator(database, clock)
    await coordinator.join(Member("a", "a", ""), 60)
    await coordinator.claim("s/k", "a")
    await coordinator.leave("a")
    assert await database.read(lambda c: c.execute("SELECT * FROM claims").fetchall()) == []


async def test_who_has_seen_all_but_the_last_that_was_pruned_starts_again(
    database: Database, clock: Clock
) -> None:
    coordinator = SqliteCoordinator(database, clock)
    await coordinator.join(Member("a", "a", ""), 60)
    seen, _ = await coordinator.watch(-1, 0)
    for key in ("s/1", "s/2", "s/3"):
        await coordinator.claim(key, "a")
    await database.write(lambda t: t.execute("DELETE FROM changes WHERE number <= ?", (seen + 1,)).rowcount)
    assert await coordinator.watch(seen, 0) == (-1, [])
    assert len((await coordinator.watch(seen + 1, 0))[1]) == 2


async def test_a_member_that_can_t_be_read_hides_no_other_and_can_be_evicted(
    database: Database, clock: Clock
) -> None:
    coordinator = SqliteCoordinator(database, clock)
    for name in ("a", "b"):
        await coordinator.join(Member(name, name, ""), 60)
    await coordinator.claim("s/1", "a")
    await database.write(lambda t: t.execute("UPDATE members SET record = x'ff' WHERE id = 'a'"))
    assert [member.id for member in await coordinator.members()] == ["b"]
    assert await coordinator.evict("a")
    assert (await coordinator.claim("s/1", "b")).member == "b"


async def test_a_change_that_can_t_be_read_is_an_error_of_ours(database: Database, clock: Clock) -> None:
    coordinator = SqliteCoordinator(database, clock)
    number, _ = await coordinator.watch(-1, 0)
    await coordinator.join(Member("a", "a", ""), 60)
    await database.write(lambda t: t.execute("UPDATE changes SET record = x'ff'"))
    with pytest.raises(Damaged, match="can't be read"):
        await coordinator.watch(number, 0)
