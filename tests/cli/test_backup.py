"""``holdfast backup`` and ``holdfast restore``: what is in the file, and what they refuse."""

import asyncio
import errno
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config.settings import Config
from holdfast.errors import Fenced, OperationRefused
from holdfast.ports.state import Logged, TransferableState
from holdfast.rules.cluster.placement import Load, Member
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result, RunLog
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.state import TIMERS, effect
from holdfast.transfer import backup
from holdfast.wiring.services import Services

SOURCE, TARGET = "sqlite:///source.db", "sqlite:///target.db"


def services(url: str) -> Services:
    return Services(Config(url=url, durability="normal"))


def on(url: str, work: Callable[[Services], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with services(url) as held:
            return await work(held)

    return asyncio.run(run())


def step(key: str, epoch: int, number: int, **changes: Any) -> Commit:
    """The commit of a stream that counts: its state says how many results there are."""
    results = (Result(f"0:{number}", b"%d" % number),)
    plain = Commit(key, epoch, number, f"{key}-{number}", RunLog(0, 1, number), results=results)
    return msgspec.structs.replace(plain, state=b"%d" % number, **changes)


async def work(state: Any, key: str, count: int, **changes: Any) -> int:
    """Open a stream and commit; returns its epoch."""
    opened = await state.open(key, 0, "member-a")
    for number in range(1, count + 1):
        await state.commit(step(key, opened.epoch, number, **changes))
    return int(opened.epoch)


async def everything(held: Services) -> tuple[list[Checkpoint], list[Logged]]:
    state: Any = held.state()
    keys = [c.key for c in await state.checkpoints()]
    return await state.stored(keys), await state.results(0, 10_000)


@pytest.fixture
def filled() -> None:
    async def fill(held: Services) -> None:
        await work(held.state(), "steps/a", 3, timers=TIMERS, due=1234.5)
        await work(held.state(), "steps/b", 1, effects=(effect(1, 0),), parked="broken")
        await work(held.state(), "echoes/a", 4, identities=("0:x", "0:y"), window=3)

    on(SOURCE, fill)


def make(holdfast: Any, *more: str) -> Any:
    return holdfast("backup", "streams.backup", "--url", SOURCE, *more)


def bring(holdfast: Any, *more: str) -> Any:
    return holdfast("restore", "streams.backup", "--url", TARGET, *more)


@pytest.mark.usefixtures("filled")
def test_what_is_backed_up_is_restored_with_higher_epochs(holdfast: Any) -> None:
    made = make(holdfast, "--json")
    assert made.code == 0, made.err
    assert (made.lines[0]["checkpoints"], made.lines[0]["results"]) == (3, 8)
    assert Path("streams.backup").stat().st_mode & 0o777 == 0o600, "only its owner may read it"
    done = bring(holdfast, "--json")
    assert done.code == 0, done.err
    assert [(line["key"], line["after"], line["effects"]) for line in done.lines] == [
        ("echoes/a", "0:4", 0), ("steps/a", "0:3", 0), ("steps/b", "0:1", 1),
    ]  # fmt: skip
    assert "with new ids" in done.err
    (checkpoints, results), (after, logged) = on(SOURCE, everything), on(TARGET, everything)
    assert logged == results
    for old, new in zip(checkpoints, after, strict=True):
        assert new.epoch > old.epoch
        assert new == msgspec.structs.replace(old, epoch=new.epoch, member="")


@pytest.mark.usefixtures("filled")
def test_a_backup_may_have_a_name_that_is_no_text(holdfast: Any) -> None:
    name = os.fsdecode(b"odd-\xff.backup")
    done = holdfast("backup", name, "--url", SOURCE)
    assert (done.code, done.err) == (0, "")
    assert holdfast("restore", name, "--url", TARGET).code == 0
    [noted] = on(SOURCE, lambda held: held.registry().list("audit/"))
    assert b'"odd-\\\\udcff.backup"' in noted.body


@pytest.mark.usefixtures("filled")
def test_a_backup_of_some_streams_keeps_no_others(holdfast: Any) -> None:
    assert make(holdfast, "--stream", "steps").code == 0
    assert bring(holdfast).code == 0
    checkpoints, results = on(TARGET, everything)
    assert {c.key for c in checkpoints} == {logged.key for logged in results} == {"steps/a", "steps/b"}
    unknown = make(holdfast, "--stream", "stesp")
    assert unknown.code == 1
    assert "stesp" in unknown.err


@pytest.mark.usefixtures("filled")
def test_a_damaged_or_cut_file_is_refused_before_anything_is_written(holdfast: Any) -> None:
    assert make(holdfast).code == 0
    path = Path("streams.backup")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for wrong, said in (
        (
            whole.replace(b'"run', b'"rum', 1) if b'"run' in whole else whole.replace(b"steps/a", b"steps/c"),
            "digest",
        ),
        (b"".join(lines[:-1]), "cut off"),
        (whole[: len(whole) // 2], "damaged"),
        (b"".join(lines[:2] + lines[3:]), "digest"),
        (whole + lines[1], "after its end"),
        (b"hello\n", "isn't a back-up"),
        (whole.replace(b'"format":1', b'"format":2', 1), "format 2"),
        (b"", "cut off"),
    ):
        path.write_bytes(wrong)
        for more in ((), ("--check",)):
            refused = bring(holdfast, *more)
            assert refused.code == 2
            assert said in refused.err
            assert "streams.backup" in refused.err
    path.unlink()
    missing = bring(holdfast, "--check")
    assert (missing.code, "streams.backup can't be read" in missing.err) == (2, True)
    assert not Path("target.db").exists()


@pytest.mark.usefixtures("filled")
def test_a_node_that_joined_during_a_restore_asks_for_an_empty_store(
    holdfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(holdfast)
    found: list[list[str]] = [[], ["n1"]]

    async def living(_: Services) -> list[str]:
        return found.pop(0)

    monkeypatch.setattr("holdfast.transfer.contents.living", living)
    refused = bring(holdfast)
    assert refused.code == 1
    assert "n1. Stop them, empty the state store, and run this again" in refused.err


@pytest.mark.usefixtures("filled")
def test_a_check_of_a_backup_writes_nothing(holdfast: Any) -> None:
    make(holdfast)
    checked = bring(holdfast, "--check")
    assert checked.code == 0
    assert "complete: 3 keys, 8 results" in checked.out
    assert not Path("target.db").exists()


@pytest.mark.usefixtures("filled")
def test_a_full_disk_leaves_the_previous_file_as_it_was(
    holdfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(holdfast)
    before = Path("streams.backup").read_bytes()
    names = {path.name for path in Path().iterdir()}
    with monkeypatch.context() as patched:

        def full(_: Any) -> bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(backup, "ResultLine", full)
        failed = make(holdfast)
    assert failed.code != 0
    assert "streams.backup can't be written: No space left" in failed.err
    assert Path("streams.backup").read_bytes() == before
    assert {path.name for path in Path().iterdir()} == names


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("name", ["source.db", "notes.txt", "link.db", "folder"])
def test_a_file_that_is_no_backup_is_not_overwritten(holdfast: Any, name: str) -> None:
    Path("notes.txt").write_text("mine\n")
    Path("link.db").symlink_to("source.db")
    Path("folder").mkdir()
    done = holdfast("backup", name, "--url", SOURCE)
    assert (done.code, done.out) == (2, "")
    assert f"{name} exists and isn't a back-up of Holdfast" in done.err
    assert len(on(SOURCE, everything)[0]) == 3, "the database is as it was"
    assert Path("notes.txt").read_text() == "mine\n"


@pytest.mark.usefixtures("filled")
def test_a_backup_an_empty_file_and_the_part_of_a_killed_one_are_replaced(holdfast: Any) -> None:
    Path("streams.backup").touch()
    Path(f".streams.backup.{os.getpid()}.part").touch()
    for _ in range(2):
        assert make(holdfast).code == 0
        assert holdfast("restore", "streams.backup", "--check").code == 0


@pytest.mark.usefixtures("filled")
def test_a_restore_is_refused_while_a_node_lives_and_where_something_is(holdfast: Any) -> None:
    make(holdfast)
    again = holdfast("restore", "streams.backup", "--url", SOURCE)
    assert again.code == 1
    assert "isn't empty" in again.err

    async def join(held: Services) -> None:
        await held.coordinator().join(Member("m1", "n1", "http://127.0.0.1:1", Load()), 600.0)

    on(TARGET, join)
    refused = bring(holdfast)
    assert refused.code == 1
    assert "n1" in refused.err
    assert "empty the state store" not in refused.err  # nothing was written to it
    assert on(TARGET, everything) == ([], [])


@pytest.mark.usefixtures("filled")
def test_both_are_in_the_audit_log_of_the_cluster(holdfast: Any) -> None:
    make(holdfast)
    bring(holdfast)

    async def documents(held: Services) -> str:
        return " ".join(str(document) for document in await held.registry().list(""))

    assert "back up" in on(SOURCE, documents)
    assert "restore" in on(TARGET, documents)


@pytest.fixture(params=["sqlite", "redis", "shards", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Where a cluster was before its store was lost, and where it is restored: another place of the same
    kind, which a writer from before takes for its own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_server").url
        return url + ("&" if "?" in url else "?") + f"schema=before_{uuid.uuid4().hex}", url
    url = request.getfixturevalue("redis_server").url
    shards = "shards=3&" if request.param == "shards" else ""
    return f"{url}?{shards}namespace=before", f"{url}?{shards}namespace=after"


@pytest.mark.slow
async def test_of_a_stream_under_traffic_state_and_results_agree(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    async with services(stores[1]) as held:
        state: Any = held.state()
        ended, ready = asyncio.Event(), asyncio.Event()

        async def commits(key: str) -> None:
            opened = await state.open(key, 0, "member-a")
            number = 0
            while not ended.is_set():
                number += 1
                await state.commit(step(key, opened.epoch, number))
                if number == 5:
                    ready.set()

        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(commits(f"steps/{n}"))
            await ready.wait()
            files = [tmp_path / f"{n}.backup" for n in range(5)]
            try:
                for file in files:
                    await backup.write(state, file, 1.0, ())
            finally:
                ended.set()
    for file in files:
        states: dict[str, int] = {}
        results: dict[str, list[int]] = {}
        with file.open("rb") as opened:
            for line in backup.lines(file, opened):
                if isinstance(line, backup.CheckpointLine):
                    states[line.checkpoint.key] = int(line.checkpoint.state or b"0")
                    results[line.checkpoint.key] = []
                elif isinstance(line, backup.ResultLine):
                    results[line.result.key].append(int(line.result.result.body))
        assert results == {key: list(range(1, count + 1)) for key, count in states.items()}


class BusyState:
    """A store in which a stream commits while each of its checkpoints is being read."""

    def __init__(self, state: TransferableState, epoch: int) -> None:
        self._state, self._epoch, self._number, self.left = state, epoch, 1, 1

    async def stored(self, keys: Any) -> list[Checkpoint]:
        found = await self._state.stored(keys)
        if self.left:
            self.left -= 1
            self._number += 1
            await self._state.commit(step("steps/a", self._epoch, self._number, identities=("x",), window=1))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


async def test_a_checkpoint_is_read_again_if_its_stream_committed_meanwhile(tmp_path: Path) -> None:
    async with services(f"sqlite:///{tmp_path}/busy.db") as held:
        state: Any = held.state()
        busy: Any = BusyState(state, await work(state, "steps/a", 1, identities=("x",), window=1))
        made = await backup.write(busy, tmp_path / "file", 1.0, ())
        assert made.results == 2
        busy.left = backup.TRIES_MAX
        with pytest.raises(OperationRefused, match="steps/a commits faster"):
            await backup.write(busy, tmp_path / "file", 1.0, ())


async def test_a_writer_frozen_across_a_restore_is_refused(stores: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with services(stores[0]) as held:
        before: Any = held.state()
        epoch = await work(before, "steps/a", 2)
        await backup.write(before, file, 1.0, ())
        late = [step("steps/a", epoch, 3), step("steps/new", await work(before, "steps/new", 0), 1)]
        last = await before.last_cursor()
    async with services(stores[1]) as held:
        after: Any = held.state()
        restored = [key async for key in backup.restore(after, file, SystemClock().wall())]
        assert [key.key for key in restored] == ["steps/a"]
        for commit in late:
            with pytest.raises(Fenced):
                await after.commit(commit)
        opened = await after.open("steps/a", restored[0].epoch, "member-b")
        other = await after.open("steps/new", 0, "member-b")
        assert opened.epoch > restored[0].epoch > epoch
        assert other.epoch > late[1].epoch
        for commit in late:
            with pytest.raises(Fenced):
                await after.commit(commit)
        await after.commit(step("steps/a", opened.epoch, 3))
        assert [(r.key, r.result.name) for r in await after.results(last, 10)] == [("steps/a", "0:3")]
        assert [r.result.name for r in await after.results(0, 10)] == ["0:1", "0:2", "0:3"]


async def test_a_follower_that_was_further_than_the_backup_skips_nothing(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    async with services(stores[0]) as held:
        before: Any = held.state()
        epoch = await work(before, "steps/a", 1)
        await backup.write(before, file, 1.0, ())
        for number in range(2, 20):
            await before.commit(step("steps/a", epoch, number))
        followed = await before.last_cursor()
    async with services(stores[1]) as held:
        after: Any = held.state()
        restored = [key async for key in backup.restore(after, file, SystemClock().wall())]
        opened = await after.open("steps/a", restored[0].epoch, "member-b")
        await after.commit(step("steps/a", opened.epoch, 2))
        assert [r.result.name for r in await after.results(followed, 10)] == ["0:2"]


async def test_a_store_is_restored_into_another_kind(stores: tuple[str, str], tmp_path: Path) -> None:
    file, again = tmp_path / "file", tmp_path / "again"
    async with services(f"sqlite:///{tmp_path}/source.db") as held:
        source: Any = held.state()
        await work(source, "steps/a", 3, timers=TIMERS, due=1234.5)
        await work(source, "steps/b", 1, effects=(effect(1, 0),))
        await backup.write(source, file, 1.0, ())
        wanted = await everything(held)
    async with services(stores[1]) as held:
        there: Any = held.state()
        async for _ in backup.restore(there, file, SystemClock().wall()):
            pass
        checkpoints, results = await everything(held)
        assert [r.result for r in results] == [r.result for r in wanted[1]]
        assert [c.state for c in checkpoints] == [c.state for c in wanted[0]]
        assert [(c.timers, c.effects) for c in checkpoints] == [(c.timers, c.effects) for c in wanted[0]]
        made = await backup.write(there, again, 2.0, ())
        assert (made.checkpoints, made.results) == (2, 4)
