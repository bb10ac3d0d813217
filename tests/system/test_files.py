"""What is made on the disk is for its owner alone, whatever the umask, unless it is told otherwise."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.config.sources import load
from holdfast.devices.adapters import open_outbox
from holdfast.ports.backup import Kept
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.reports import publish_reports
from holdfast.services.sqlite.database import Database
from holdfast.system.clock import SystemClock
from holdfast.system.files import OWNER, for_writers, make_file, make_folder, whole_file
from holdfast.tasks.opening import backup_at
from holdfast.testing import TaskTest
from holdfast.wiring.services import Services
from tests.reports.making import stored


@pytest.fixture(autouse=True)
def lax() -> Iterator[None]:
    """A umask that takes nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of all that is in there, by name."""
    return {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def open_to_others(made: dict[str, int]) -> list[str]:
    """What others than its owner may use, somehow."""
    return [name for name, mode in made.items() if mode & 0o077]


async def use(folder: Path, **settings: str) -> dict[str, int]:
    """Have everything made that is made on a disk; returns its modes."""
    letter = Kept("app", "deed", DeadLetter("deed/1", b"secret", "failed", key="1", at=1.0))
    urls = {
        "url": f"sqlite:///{folder}/data/holdfast.db",
        "objects_url": f"file:{folder}/frames/all",
        "outbox_url": f"sqlite:///{folder}/office.db",
    }
    async with Services(load(urls | settings)) as services:
        queue = services.queue("s")
        receiving = asyncio.create_task(queue.receive(1, 5.0, 30.0, "me"))  # listens to the doorbell
        await asyncio.sleep(0)
        await queue.send([Outgoing(b"secret")])
        assert await receiving
        await services.objects().put("cam/1/0.jpg", b"secret")
        await open_outbox(services).prepare("commands", 1)
        for target in (f"{folder}/letters.jsonl", f"sqlite:///{folder}/letters.db"):
            async with backup_at(target, services.access) as backup:
                await backup.add([letter])
        return modes(folder)


async def test_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    made = await use(tmp_path)
    beside = {f"holdfast.db{end}" for end in ("", "-wal", "-shm", ".lock", ".bells")}
    assert beside | {"0.jpg", "office.db", "letters.jsonl", "letters.db"} <= made.keys()
    assert open_to_others(made) == []


async def test_whoever_wants_it_otherwise_says_so(tmp_path: Path) -> None:
    os.umask(0o027)
    made = await use(tmp_path, file_access="umask")
    assert {made[name] for name in ("frames", "all", "cam", "data")} == {0o750}
    assert {made[name] for name in ("0.jpg", "holdfast.db", "holdfast.db-wal", "letters.jsonl")} == {0o640}
    assert made["holdfast.db.lock"] == 0o600, "who may only read the database has no use for its lock"


@pytest.mark.slow
def test_reports_in_folders_get_the_modes_of_file_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    out.mkdir(0o700)
    app = App("reports")
    publish_reports(app)
    order = {
        "customer": "acme",
        "report": "sales",
        "tables": [{"sources": [stored(tmp_path, {"n": [1]})]}],
        "name": "{report}/{date}.csv",
        "delivery": {"destination": f"file:{out}", "companions": ["ok"]},
    }
    assert TaskTest(app).run(order)["files"]
    assert len([*out.rglob("*.csv*")]) == 2
    assert open_to_others(modes(out)) == []


async def test_a_lock_that_an_earlier_version_left_to_others_is_taken_from_them(tmp_path: Path) -> None:
    path, lock, bells = (tmp_path / f"x.db{end}" for end in ("", ".lock", ".bells"))
    path.touch(0o644)
    lock.touch(0o644)
    bells.mkdir(0o755)
    database = Database.open(path, SystemClock())
    try:
        assert (lock.stat().st_mode & 0o777, bells.stat().st_mode & 0o777) == (0o600, 0o700)
        assert path.stat().st_mode & 0o777 == 0o644, "the data may have been opened to readers on purpose"
    finally:
        await database.close()


async def test_a_group_that_may_write_the_database_may_lock_it(tmp_path: Path) -> None:
    path, lock = tmp_path / "x.db", tmp_path / "x.db.lock"
    path.touch(0o660)
    database = Database.open(path, SystemClock())
    await database.close()
    assert lock.stat().st_mode & 0o777 == 0o660


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("kept")
    file.chmod(0o640)
    folder.mkdir(0o750)
    make_file(file, OWNER)
    make_folder(folder / "more", OWNER)
    assert (file.read_text(), file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (
        "kept",
        0o640,
        0o750,
    )
    assert for_writers(tmp_path / "missing") == OWNER


def test_making_a_file_drops_no_lock_of_this_process(tmp_path: Path) -> None:
    """The kernel drops a process's locks on a file when it closes any descriptor of it."""
    path = tmp_path / "holdfast.db"
    with path.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        make_file(path, OWNER)
        look = f"import fcntl; fcntl.lockf(open({str(path)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in told.stderr


def test_a_file_takes_the_place_of_another_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / ".part-left").touch()

    def write(wrong: bool) -> None:
        with whole_file(path, OWNER, part=".part-") as file:
            file.write(b"after")
            assert len(modes(tmp_path)) == 3
            if wrong:
                raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write(wrong=True)
    assert (path.read_bytes(), {*modes(tmp_path)}) == (b"before", {"file", ".part-left"})
    write(wrong=False)
    assert (path.read_bytes(), {*modes(tmp_path)}) == (b"after", {"file", ".part-left"})
