"""Logs of a host's nodes as files."""

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.system import log_files
from holdfast.system.files import OWNER
from holdfast.system.log_files import GrowingLog, LogReader, NodeLogFile

KEEP_S = 100.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def opened() -> Iterator[list[NodeLogFile]]:
    files: list[NodeLogFile] = []
    yield files
    for file in files:
        file.close()


class Writer:
    """A node whose events have times and numbers."""

    def __init__(self, folder: Path, name: str, opened: list[NodeLogFile], max_bytes: int = 100_000) -> None:
        self.file = NodeLogFile(folder, name, OWNER, max_bytes=max_bytes, keep_s=KEEP_S)
        opened.append(self.file)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            event = {"timestamp": f"2026-01-01T00:00:{number:02}Z", "number": number}
            self.file.emit(logging.makeLogRecord({"msg": json.dumps(event)}))


def everything(folder: Path) -> list[tuple[str, int]]:
    with contextlib.closing(LogReader(folder)) as reader:
        return [(event["node"], event["number"]) for event in reader.all()]


def numbers(reader: LogReader) -> list[int]:
    return [event["number"] for event in reader.more()]


def test_logs_of_all_nodes_are_read_by_time_with_their_names(folder: Path, opened: list[NodeLogFile]) -> None:
    Writer(folder, "a", opened).write(1, 4)
    Writer(folder, "b/2", opened).write(2, 3)
    assert everything(folder) == [("a", 1), ("b/2", 2), ("b/2", 3), ("a", 4)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {OWNER.file}


def test_what_is_added_is_read_once_also_when_the_file_is_moved_aside(
    folder: Path, opened: list[NodeLogFile]
) -> None:
    writer = Writer(folder, "a", opened, max_bytes=200)
    writer.write(1)
    reader = LogReader(folder)
    assert [event["number"] for event in reader.all()] == [1]
    writer.write(2)
    assert numbers(reader) == [2]
    writer.write(3, 4, 5, 6)
    assert len(list(folder.iterdir())) == 2
    found = numbers(reader) + numbers(reader)
    assert found == [3, 4, 5, 6]
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {OWNER.file}
    reader.close()


def test_what_is_added_after_the_last_read_of_a_file_that_is_moved_aside_is_read_too(
    folder: Path, opened: list[NodeLogFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(folder, "a", opened, max_bytes=200)
    writer.write(1)
    reader = LogReader(folder)
    assert [event["number"] for event in reader.all()] == [1]
    rest, later = GrowingLog.rest, [(2, 3, 4, 5)]

    def written_to_at_once(self: GrowingLog) -> Iterator[dict[str, Any]]:
        yield from rest(self)
        if later:
            writer.write(*later.pop())

    monkeypatch.setattr(GrowingLog, "rest", written_to_at_once)
    assert numbers(reader) == []
    assert len(list(folder.iterdir())) == 2
    assert numbers(reader) + numbers(reader) == [2, 3, 4, 5]
    reader.close()


def test_a_full_file_that_is_removed_meanwhile_hides_no_others(
    folder: Path, opened: list[NodeLogFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(folder, "a", opened, max_bytes=200).write(1, 2, 3, 4)
    Writer(folder, "b", opened).write(5)
    assert (folder / "a.jsonl.1").exists()
    growing_log = log_files.GrowingLog

    def removed_before_it_is_opened(path: Path) -> GrowingLog:
        if path.name == "a.jsonl.1":
            path.unlink()
        return growing_log(path)

    monkeypatch.setattr(log_files, "GrowingLog", removed_before_it_is_opened)
    kept = everything(folder)
    assert kept[-1] == ("b", 5)


def test_full_files_are_read_too_and_no_more_than_one_is_kept(
    folder: Path, opened: list[NodeLogFile]
) -> None:
    Writer(folder, "a", opened, max_bytes=200).write(*range(20))
    found = [number for _, number in everything(folder)]
    assert found == list(range(found[0], 20))
    assert 4 <= len(found) <= 8


def test_a_line_that_is_not_complete_waits_for_its_rest(folder: Path, opened: list[NodeLogFile]) -> None:
    Writer(folder, "a", opened).write(1)
    reader = LogReader(folder)
    assert len(list(reader.all())) == 1
    with (folder / "a.jsonl").open("a") as file:
        file.write('no event\n"nor this"\n{"num')
    assert numbers(reader) == []
    with (folder / "a.jsonl").open("a") as file:
        file.write('ber": 2}\n')
    assert numbers(reader) == [2]
    reader.close()


def test_files_of_nodes_that_ended_long_ago_are_removed(folder: Path, opened: list[NodeLogFile]) -> None:
    for name in ("old", "new"):
        Writer(folder, name, opened).write(1)
    long_ago = time.time() - KEEP_S - 1
    os.utime(folder / "old.jsonl", (long_ago, long_ago))
    (folder / "other.txt").touch()
    os.utime(folder / "other.txt", (long_ago, long_ago))
    Writer(folder, "a", opened)
    assert {file.name for file in folder.iterdir()} == {"a.jsonl", "new.jsonl", "other.txt"}


def test_a_file_that_somebody_removed_is_begun_anew(folder: Path, opened: list[NodeLogFile]) -> None:
    writer = Writer(folder, "quiet", opened)
    writer.write(1)
    (folder / "quiet.jsonl").unlink()
    writer.write(2)
    assert everything(folder) == [("quiet", 2)]
