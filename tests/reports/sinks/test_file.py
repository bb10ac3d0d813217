"""A destination that is a folder."""

import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, InvalidMessage, NoRoom, Unavailable
from holdfast.reports.conformance.sink import SinkConformance, put, sha256
from holdfast.reports.sinks.file.sink import FileSink
from tests.power import Disk


class TestFileSink(SinkConformance):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> FileSink:
        return FileSink(tmp_path, durable=False)

    @pytest.fixture
    def other_sink(self, tmp_path: Path) -> FileSink:
        return FileSink(tmp_path, durable=False)


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mount its share"):
        await put(FileSink(tmp_path / "share"), "a.csv", b"x")
    assert not (tmp_path / "share").exists()


async def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidMessage, match="link"):
        await put(FileSink(tmp_path / "root"), "out/a/b.csv", b"x")
    assert names(tmp_path) == ["root"]


@pytest.mark.parametrize("replace", [True, False])
async def test_a_power_failure_takes_no_file_that_was_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    disk, sink = Disk(monkeypatch), FileSink(tmp_path)
    await put(sink, "new/folders/a.csv", b"x", replace=replace)
    assert disk.found(tmp_path / "new" / "folders" / "a.csv", tmp_path) == b"x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_full_disk_is_no_fault_of_the_order(sink: FileSink, tmp_path: Path) -> None:
    """/dev/full refuses every write, as a full disk does."""
    (tmp_path / "left").symlink_to("/dev/full")
    upload = await sink.resume("a.csv", ".a.part", "left")
    assert upload is not None
    with pytest.raises(NoRoom, match="No space left"):
        await upload.write(b"x")
    await upload.leave()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that root may not write to")
async def test_a_folder_that_may_not_be_written_to_is_for_good() -> None:
    with pytest.raises(ConfigError, match="let this user write there"):
        await put(FileSink("/sys"), "a.csv", b"x")


async def test_a_folder_in_the_files_place_is_named(sink: FileSink, tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ConfigError, match="something else"):
        await put(sink, "a.csv", b"x")
    await put(sink, "b.csv", b"x", attempt="1")
    with pytest.raises(ConfigError, match="something else"):
        await put(sink, "b.csv/c.csv", b"x", attempt="2")


async def test_a_file_cut_short_meanwhile_is_damaged(sink: FileSink, tmp_path: Path) -> None:
    upload = await sink.open("a.csv", ".a.part")
    await upload.write(b"12345")
    (tmp_path / ".a.part").write_bytes(b"123")
    with pytest.raises(Unavailable, match="3 bytes"):
        await upload.commit(sha256(b"12345"))
    await upload.abort()
    assert names(tmp_path) == []
