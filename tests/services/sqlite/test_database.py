"""One database file: batches, errors, refusals."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError, Fenced, HoldfastError, OutcomeUnknown, Unavailable, UnsupportedStore
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.ports.queue import Outgoing
from holdfast.services.sqlite import database as module
from holdfast.services.sqlite import mounts, schema
from holdfast.services.sqlite.coordinator import SqliteCoordinator
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.services.sqlite.queue import SqliteQueue
from tests.power import Disk


def add(
    name: str, then: Exception | None = None, before: Exception | None = None
) -> Callable[[Transaction], str]:
    """An operation that adds a row, and raises."""

    def operation(transaction: Transaction) -> str:
        if before:
            raise before
        transaction.execute("INSERT INTO queues (name) VALUES (?)", (name,))
        if then:
            raise then
        return name

    return operation


async def names(database: Database) -> list[str]:
    rows = await database.read(lambda c: c.execute("SELECT name FROM queues ORDER BY name").fetchall())
    return [name for (name,) in rows]


# --- batches


async def test_an_operation_that_fails_leaves_nothing_and_harms_no_other(database: Database) -> None:
    answers = await asyncio.gather(
        database.write(add("a")),
        database.write(add("b", then=ValueError("b"))),
        database.write(add("c", then=Fenced("c", 1))),
        database.write(add("d", before=Fenced("d", 1))),
        database.write(add("e")),
        database.write(add("e")),
        return_exceptions=True,
    )
    assert [str(answer) for answer in answers[:5]] == ["a", "b", "c", "d", "e"]
    assert isinstance(answers[5], sqlite3.IntegrityError)
    assert await names(database) == ["a", "e"]


async def test_operations_of_one_kind_run_together(database: Database) -> None:
    together: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        entered.set()
        leave.wait()

    def double(transaction: Transaction, items: Sequence[int]) -> list[int | HoldfastError]:
        together.append(len(items))
        return [Fenced("no", 1) if item == 3 else 2 * item for item in items]

    # The file's thread is held until all fifty wait: how many it takes at a time doesn't depend on its speed.
    blocking = asyncio.create_task(database.write(block))
    await asyncio.to_thread(entered.wait)
    doubling = [asyncio.create_task(database.write_many(double, i)) for i in range(50)]
    await asyncio.sleep(0)
    leave.set()
    await blocking
    answers = await asyncio.gather(*doubling, return_exceptions=True)
    assert [a for a in answers if not isinstance(a, Fenced)] == [2 * i for i in range(50) if i != 3]
    assert isinstance(answers[3], Fenced)
    assert together == [50]


async def test_a_call_cancelled_before_its_turn_does_nothing(database: Database) -> None:
    entered, leave = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        entered.set()
        leave.wait()

    blocking = asyncio.create_task(database.write(block))
    await asyncio.to_thread(entered.wait)
    cancelled = asyncio.create_task(database.write(add("a")))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    leave.set()
    await blocking
    assert await names(database) == []


async def test_several_event_loops_share_a_database(database: Database, clock: Clock) -> None:
    async def elsewhere() -> list[bytes]:
        deliveries = await SqliteQueue(database, "q", clock).receive(1, 30, 60, "elsewhere")
        return [d.body for d in deliveries]

    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await SqliteQueue(database, "q", clock).send([Outgoing(b"x")])
    async with asyncio.timeout(30):
        assert await waiting == [b"x"]


async def test_openings_of_one_file_share_it(path: Path, clock: Clock) -> None:
    first = Database.open(path, clock)
    assert Database.open(str(path), clock) is first
    await first.close()
    await first.write(add("a"))
    await first.close()
    with pytest.raises(Unavailable, match="closed"):
        await first.write(add("b"))
    second = Database.open(path, clock)
    assert second is not first
    assert await names(second) == ["a"]
    await second.close()


async def test_full_durability_answers_after_the_disk(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def confirm(log: int) -> None:
        asked.set()
        go_on.wait()
        module_confirm(log)

    module_confirm = module.confirm
    monkeypatch.setattr(module, "confirm", confirm)
    database = Database.open(path, clock)
    first = asyncio.create_task(database.write(add("a")))
    assert await asyncio.to_thread(asked.wait, 10)
    assert await names(database) == ["a"]
    second = asyncio.create_task(database.write(add("b")))  # commits meanwhile, and waits too
    results = asyncio.create_task(database.read(lambda _: "leaves the host", confirmed=True))
    assert await database.read(lambda _: 0, confirmed=True) == 0
    assert not first.done()
    assert not second.done()
    assert not results.done()
    go_on.set()
    assert [*await asyncio.gather(first, second, results)] == ["a", "b", "leaves the host"]
    await database.close()


def after_a_power_failure(disk: Disk, path: Path) -> list[str]:
    """The names that are found then. The log is short, so none of it is in the file itself."""
    left = path.with_name("left.db")
    left.write_bytes(path.read_bytes())
    left.with_name(f"{left.name}-wal").write_bytes(disk.held(path.with_name(f"{path.name}-wal")))
    with contextlib.closing(sqlite3.connect(left)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queues'").fetchall():
            return []
        return [name for (name,) in connection.execute("SELECT name FROM queues ORDER BY name")]


async def test_a_power_failure_takes_nothing_that_was_answered(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    database = Database.open(path, clock)
    assert after_a_power_failure(disk, path) == []
    for count, name in enumerate("abc", 1):
        await database.write(add(name))
        assert after_a_power_failure(disk, path) == [*"abc"[:count]]
    await database.close()


async def test_normal_durability_asks_the_disk_for_nothing(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, "confirm")
    database = Database.open(path, clock, durability="normal")
    assert await database.write(add("a")) == "a"
    await database.close()


async def test_a_disk_that_fails_is_not_trusted_again(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(path, clock)

    def fail(log: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "confirm", fail)
    with pytest.raises(OutcomeUnknown, match=rf"{path}: the disk failed .*Input/output error"):
        await database.write(add("a"))
    monkeypatch.setattr(module, "confirm", lambda log: None)
    with pytest.raises(Unavailable, match="the disk failed"):
        await database.write(add("b"))
    assert await names(database) == ["a"]
    await database.close()


def test_an_unknown_durability_is_refused_by_name(path: Path, clock: Clock) -> None:
    with pytest.raises(ConfigError, match=r"'none'.*'full' or 'normal'"):
        Database.open(path, clock, durability="none")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_waiting_calls_read_the_database_rarely(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[None] = []
    read = database.read

    async def noting(query: Callable[[sqlite3.Connection], Any], **how: Any) -> Any:
        reads.append(None)
        return await read(query, **how)

    queue, coordinator = SqliteQueue(database, "q", clock), SqliteCoordinator(database, clock)
    await coordinator.join(Member("a", "a", ""), 60)
    number, _ = await coordinator.watch(-1, 0)
    await queue.depth()
    monkeypatch.setattr(database, "read", noting)
    used_s = time.process_time()
    await asyncio.gather(queue.receive(1, 2.5, 60, "a"), coordinator.watch(number, 2.5))
    assert len(reads) <= 2 * 6, "they look once a second"
    assert time.process_time() - used_s < 0.2, "no thread runs for long"


# --- errors


async def test_a_full_disk_is_unavailable_and_recovers(database: Database) -> None:
    pages = await database.write(lambda t: t.execute("PRAGMA page_count").fetchone()[0])
    await database.write(lambda t: t.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(Unavailable, match=rf"{database.path}: the disk is full; make room"):
        await database.write(add("x" * 100_000))
    await database.write(lambda t: t.execute("PRAGMA max_page_count = 100000").fetchone())
    await database.write(add("a"))
    assert await names(database) == ["a"]


async def test_another_program_that_locks_the_file(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOREIGN_LOCK_S", 0.05)
    database = Database.open(path, clock)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match=rf"{path} is locked by another program"):
        await database.write(add("a"))
    other.execute("COMMIT")
    other.close()
    assert await database.write(add("a")) == "a"
    await database.close()


async def test_a_commit_that_fails_half_way_is_of_unknown_outcome(database: Database) -> None:
    def fail(transaction: Transaction) -> None:
        # A deferred constraint is one of the few things that make a COMMIT itself fail.
        transaction.execute("PRAGMA defer_foreign_keys = ON")
        transaction.execute("INSERT INTO child VALUES (1)")

    await database.write(lambda t: t.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
    await database.write(lambda t: t.execute("CREATE TABLE child (id REFERENCES parent)"))
    await database.submit(_set_foreign_keys, None)
    with pytest.raises(OutcomeUnknown, match=f"{database.path}"):
        await database.write(fail)
    await database.write(add("a"))
    assert await names(database) == ["a"]


def _set_foreign_keys(transaction: Transaction, items: object) -> list[None]:
    transaction.execute("COMMIT")
    transaction.execute("PRAGMA foreign_keys = ON")
    transaction.execute("BEGIN")
    return [None]


# --- refusals


async def test_a_newer_schema_is_refused(path: Path, clock: Clock) -> None:
    await Database.open(path, clock).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("INSERT INTO contractions VALUES (98)")
    connection.close()
    with pytest.raises(
        UnsupportedStore, match=rf"{path} has schema version 99.* up to \d+: upgrade Holdfast"
    ):
        Database.open(path, clock)


async def test_a_file_to_which_a_newer_version_has_only_added_is_used(path: Path, clock: Clock) -> None:
    await Database.open(path, clock).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    await Database.open(path, clock).close()


def test_another_programs_database_is_refused(path: Path, clock: Clock) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(UnsupportedStore, match="another program"):
        Database.open(path, clock)


def test_an_sqlite_older_than_the_oldest_supported_is_refused(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(UnsupportedStore, match=r"too old.*99\.0\.0"):
        Database.open(path, clock)


def test_what_is_no_database_is_refused(path: Path, clock: Clock) -> None:
    path.write_bytes(b"not a database, though it is long enough" * 100)
    with pytest.raises(UnsupportedStore, match=rf"{path} isn't a sound SQLite database .*restore a backup"):
        Database.open(path, clock)
    assert path.read_bytes().startswith(b"not a database")


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * len(content[4096:])
    path.write_bytes(content)


async def test_a_damaged_database_is_refused_by_name(path: Path, clock: Clock) -> None:
    database = Database.open(path, clock)
    await SqliteQueue(database, "q", clock).send([Outgoing(b"x" * 1000)] * 100)
    await database.close()
    damage(path)
    with pytest.raises(UnsupportedStore, match=f"{path} isn't a sound"):
        Database.open(path, clock)


@pytest.mark.parametrize("name", [".", "file/hold.db", "file/deeper/hold.db"])
def test_a_place_that_cannot_hold_a_file_is_named(tmp_path: Path, clock: Clock, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}"):
        Database.open(tmp_path / name, clock)


def test_network_file_systems_are_refused(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "file_system", lambda *_: "nfs4")
    with pytest.raises(UnsupportedStore, match=r"network file system \(nfs4\).*disk of this host"):
        Database.open(path, clock)


def test_the_file_system_of_a_path_is_found_on_linux() -> None:
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "30 22 0:40 / /srv/with\\040space rw - nfs4 host:/export rw\n"
        "31 30 0:41 / /srv/with\\040space/local rw master:2 - xfs /dev/vdb rw\n"
        "32 22 0:42 / /home rw - ext4 /dev/vdc rw\n"
        "33 22 0:43 / /home rw - fuse.sshfs host: rw\n"
    )
    assert _kinds(mounts.parse_linux, text, "/srv/x", "/srv/with space/x", "/srv/with space/local/x") == [
        "ext4",
        "nfs4",
        "xfs",
    ]
    assert _kinds(mounts.parse_linux, text, "/home/x", "/homes/x") == ["fuse.sshfs", "ext4"]


def test_the_file_system_of_a_path_is_found_on_macos() -> None:
    text = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//me@host/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)\n"
    )
    assert _kinds(mounts.parse_macos, text, "/Users/me", "/Volumes/share/x") == ["apfs", "smbfs"]


def _kinds(parse: Callable[[str], Iterator[tuple[str, str]]], text: str, *paths: str) -> list[str]:
    return [mounts.file_system(Path(path), parse(text)) for path in paths]


# --- reboots


async def test_after_a_reboot_deliveries_show_again_and_memberships_are_over(
    path: Path, clock: Clock
) -> None:
    database = Database.open(path, clock)
    queue, coordinator = SqliteQueue(database, "q", clock), SqliteCoordinator(database, clock)
    await queue.send([Outgoing(b"delivered"), Outgoing(b"delayed", delay_s=3600)])
    [delivery] = await queue.receive(1, 0, 3600, "a")
    await coordinator.join(Member("a", "a", ""), 3600)
    claim = await coordinator.claim("s/k", "a")
    await database.close()
    with sqlite3.connect(path) as connection:  # that boot began an hour and more before this one
        connection.execute("UPDATE host SET boot = 'earlier', wall_offset = wall_offset - 5000")
        connection.execute("UPDATE messages SET visible_at = visible_at + 5000 WHERE visible_at > 0")
    connection.close()
    database = Database.open(path, clock)
    queue, coordinator = SqliteQueue(database, "q", clock), SqliteCoordinator(database, clock)
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (1, 0, 1)
    assert await queue.extend([delivery.receipt], 60) == [delivery.receipt]
    [shows_at] = await database.read(
        lambda c: c.execute("SELECT visible_at FROM messages WHERE state = 2").fetchone()
    )
    assert 3500 < shows_at - clock.monotonic() < 3700
    assert await coordinator.members() == []
    await coordinator.join(Member("b", "b", ""), 3600)
    assert (await coordinator.claim("s/k", "b")).version > claim.version
    await database.close()


async def test_writes_are_answered_though_nobody_could_be_woken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(topics: Any) -> None:
        raise OSError("no file descriptor left")

    def operation(transaction: Transaction) -> str:
        transaction.ring("a")
        return add("a")(transaction)

    with monkeypatch.context() as patched:
        patched.setattr(database.doorbell, "ring", fail)
        assert await database.write(operation) == "a"
    assert await database.write(add("b")) == "b"
