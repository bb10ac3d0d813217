"""Dead letters in a file."""

import json
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.services.file.backup import FileBackup
from holdfast.testing.conformance import BackupConformance
from holdfast.testing.conformance.backup import kept
from tests.power import Disk


class TestFileBackup(BackupConformance):
    @pytest.fixture
    def backup(self, tmp_path: Path) -> FileBackup:
        return FileBackup(tmp_path / "letters.jsonl")

    @pytest.fixture
    def other_backup(self, tmp_path: Path) -> FileBackup:
        return FileBackup(tmp_path / "letters.jsonl")


async def test_a_line_that_a_crash_cut_off_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    backup = FileBackup(file)
    await backup.add([kept("a", 1.0), kept("b", 2.0)])
    file.write_bytes(file.read_bytes()[:-20])
    assert [found async for found in backup.dead_letters("reports")] == [kept("a", 1.0)]
    assert await backup.add([kept("a", 1.0), kept("b", 2.0)]) == 1
    assert [found async for found in backup.dead_letters("reports")] == [kept("a", 1.0), kept("b", 2.0)]


async def test_lines_are_for_other_programs_too(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    await FileBackup(file).add([kept("t-1", 1.5)])
    line = json.loads(file.read_text())
    assert (line["app"], line["type"], line["trace_id"], line["at"]) == ("reports", "publish", "t-1", 1.5)
    assert line["body"] == "e30="


async def test_a_power_failure_takes_no_letter_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = Disk(monkeypatch), tmp_path / "letters.jsonl"
    for number in range(2):
        await FileBackup(file).add([kept(f"t-{number}", 1.0)])
        assert disk.found(file, tmp_path) == file.read_bytes()


async def test_a_place_where_nothing_can_be_kept(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="can't be written"):
        await FileBackup(tmp_path / "no" / "letters.jsonl").add([kept("a", 1.0)])
    with pytest.raises(Unavailable, match="can't be read"):
        await FileBackup(tmp_path).add([kept("a", 1.0)])
