"""``holdfast streams replay``: a handler that was changed runs over what the live one has handled."""

import contextlib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.assembly.loading import load_app
from holdfast.testing import node_for_tests

LIVE = """
import os
from holdfast import App, StreamHandler

app = App("cameras")

@app.stream("cameras", seq="n", first_seq=0, archive="file:archive", max_tries=1)
class Camera(StreamHandler[dict]):
    def open(self, context, state):
        self.count = int(state or 0)
    def process(self, message, context):
        if message.get("do") == "raise":
            raise ValueError("told to fail")
        self.count += 1
        context.send("alerts", {"count": self.count})
        context.wake("silent", after_s=3600)
        return {"count": self.count, "by": 1}
    def wake(self, name, body, context):
        return name
    def snapshot(self):
        return b"%d" % self.count

@app.stream("alerts", archive="file:archive")
def alert(message, context): ...

@app.stream("plain")
def plain(message, context): ...
"""
CHANGED = LIVE.replace('"by": 1', '"by": 1 if self.count < 5 else 2')
BROKEN = LIVE.replace("self.count += 1", "self.count += 1 // (message['n'] - 6)")
MENDED = LIVE.replace('raise ValueError("told to fail")', "return None")


@pytest.fixture(scope="module")
def handled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with apps, and with all that is left of a live stream that has handled ten messages of one
    camera and three of another."""
    folder = tmp_path_factory.mktemp("handled")
    for name, text in {"live": LIVE, "changed": CHANGED, "broken": BROKEN, "mended": MENDED}.items():
        (folder / f"{name}_cameras.py").write_text(text)
    with (
        contextlib.chdir(folder),
        imported(folder),
        node_for_tests(load_app("live_cameras:app"), folder=folder) as node,
    ):
        for n in range(10):
            node.stream("cameras").send({"key": "cam-1", "n": n, "do": "raise" if n == 3 else ""})
        for n in range(3):
            node.stream("cameras").send({"key": "cam 2", "n": n})
        node.results("cameras")
        node.results("alerts")
    return folder


@pytest.fixture
def cameras(handled: Path, place: Path) -> Iterator[None]:
    """The same in the working directory."""
    shutil.copytree(handled, place, dirs_exist_ok=True)
    with imported(place):
        yield


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[None]:
    """Let the apps of a folder be imported anew."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield
    sys.path[:] = before
    for name in [name for name in sys.modules if name.endswith("_cameras")]:
        del sys.modules[name]


def replay(holdfast: Any, app: str, *arguments: str, key: str = "cameras/cam-1") -> Any:
    return holdfast("streams", "replay", key, "--app", f"{app}_cameras:app", *arguments)


def database(place: Path) -> bytes:
    return (place / "holdfast.db").read_bytes()


@pytest.mark.slow
def test_the_same_handler_does_the_same(holdfast: Any, cameras: None, place: Path) -> None:
    before = database(place)
    done = replay(holdfast, "live", "--compare")
    assert done.code == 0, done.err
    assert [line["seq"] for line in done.lines] == list(range(10))
    assert [line.get("compared") for line in done.lines] == ["same"] * 3 + [None] + ["same"] * 6
    line = done.lines[4]
    assert line["result"] == {"count": 4, "by": 1}
    assert line["effects"] == [{"target": "alerts", "key": "cam-1", "delay_s": 0.0, "body": {"count": 4}}]
    assert [timer["name"] for timer in line["timers"]] == ["silent"]
    failed = done.lines[3]
    assert ("told to fail" in failed["error"], failed["failed_live"]) == (True, True)
    assert (
        "replayed 10 messages, 9 effects not sent, 1 failed as they did live, 9 results the same" in done.err
    )
    assert database(place) == before, "nothing live was touched"


@pytest.mark.nightly
def test_a_changed_handler_shows_where_it_differs(holdfast: Any, cameras: None, place: Path) -> None:
    done = replay(holdfast, "changed", "--compare", "--as", "second", "--json")
    assert done.code == 1
    [told] = done.lines
    assert told["out"] == "replays/second.jsonl"
    assert (told["summary"]["same"], told["summary"]["different"]) == (4, 5)
    lines = [json.loads(line) for line in (place / "replays" / "second.jsonl").read_text().splitlines()]
    assert {line["as"] for line in lines} == {"second"}
    [first, *_] = [line for line in lines if line.get("compared") == "different"]
    assert (first["seq"], first["result"]["by"], first["live"]["by"]) == (5, 2, 1)
    assert "cameras/cam-1:0:000000000000000000000000000000000000005 is different" in done.err


@pytest.mark.nightly
def test_a_whole_stream_is_replayed_key_by_key(holdfast: Any, cameras: None) -> None:
    done = replay(holdfast, "live", key="cameras")
    assert [(line["key"], line["seq"]) for line in done.lines] == [
        *(("cam 2", n) for n in range(3)),
        *(("cam-1", n) for n in range(10)),
    ]
    assert done.lines[0]["result"]["count"] == 1
    assert done.lines[3]["result"]["count"] == 1


def test_messages_without_a_seq_are_replayed_in_the_order_of_their_commits(
    holdfast: Any, cameras: None
) -> None:
    done = replay(
        holdfast,
        "live",
        key="alerts/cam-1",
    )
    assert done.code == 0
    assert len({line["seq"] for line in done.lines}) == 9
    assert done.lines[0]["name"] == f"0:{done.lines[0]['seq']}"


def test_a_new_failure_ends_the_replay_unless_told(holdfast: Any, cameras: None) -> None:
    done = replay(holdfast, "broken")
    assert (done.code, "--keep-going continues after failures" in done.err) == (1, True)
    assert [line["seq"] for line in done.lines] == list(range(7))
    assert done.lines[6]["failed_live"] is False
    done = replay(holdfast, "broken", "--keep-going")
    assert done.code == 1
    assert [line["seq"] for line in done.lines if "error" in line] == [3, 6]
    assert "1 failed, 1 failed as they did live" in done.err


def test_a_message_that_failed_live_may_be_handled_now(holdfast: Any, cameras: None) -> None:
    done = replay(holdfast, "mended", "--compare")
    assert done.code == 0
    assert done.lines[3]["result"] is None
    assert "1 without a result in both" in done.err


def test_live_results_that_are_gone_are_missing(holdfast: Any, cameras: None, arrange: Any) -> None:
    arrange(lambda services: services.state().expire(4e9, 0))
    done = replay(holdfast, "live", "--compare")
    assert done.code == 1
    assert "9 live results missing" in done.err
    assert "no live result is kept any more" in done.err


def test_hours_limit_what_is_replayed(holdfast: Any, cameras: None) -> None:
    day = replay(holdfast, "live").lines[0]["at"][:10]
    assert len(replay(holdfast, "live", "--since", day).lines) == 10
    assert len(replay(holdfast, "live", "--since", f"{day}T00", "--until", "2999-01-01T05").lines) == 10
    for hours in (("--until", "2020-01-01"), ("--since", "2999-01-01")):
        done = replay(holdfast, "live", *hours)
        assert (done.code, "no messages of cameras/cam-1 in these hours" in done.err) == (2, True)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--since", "yesterday"), "--since yesterday isn't an hour"),
        (("--until", "2026-13-01"), "--until 2026-13-01 isn't an hour"),
        (("--since", "2026-11-22", "--until", "2026-11-21"), "no hour is left"),
        (("--from", "gopher://host"), "archive is 'gopher://host': nothing serves that"),
        (("--from", "nowhere"), "the archive has no messages of cameras/cam-1"),
        (("--as", "../a"), "--as '../a' must be a valid name"),
        (("--out", "/dev/null/a"), "the file /dev/null/a can't be written"),
    ],
)
def test_a_replay_that_cannot_run_says_why(
    holdfast: Any, cameras: None, arguments: tuple[str, ...], said: str
) -> None:
    done = replay(holdfast, "live", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_replay_overwrites_neither_a_database_nor_its_archive(
    holdfast: Any, cameras: None, place: Path
) -> None:
    [archived] = (place / "archive" / "cameras" / "cam-1").glob("*/*.jsonl")
    (place / "link").symlink_to(archived)
    before = archived.read_bytes(), database(place)
    for out, said in (
        ("holdfast.db", "the file holdfast.db is a database of SQLite"),
        (str(archived), f"the file {archived} has the name of an object in an archive"),
        ("link", "the file link has the name of an object in an archive"),
    ):
        done = replay(holdfast, "live", "--out", out)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert (archived.read_bytes(), database(place)) == before


@pytest.mark.parametrize("access, file, folder", [("owner", 0o600, 0o700), ("umask", 0o644, 0o755)])
def test_only_those_who_may_read_what_is_made_here_read_the_lines(
    holdfast: Any, cameras: None, place: Path, access: str, file: int, folder: int
) -> None:
    before = os.umask(0o022)
    try:
        assert replay(holdfast, "live", "--as", "mine", "--set", f"file_access={access}").code == 0
    finally:
        os.umask(before)
    made = place / "replays" / "mine.jsonl"
    assert (made.stat().st_mode & 0o777, made.parent.stat().st_mode & 0o777) == (file, folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full is here")
def test_a_full_disk_is_told(holdfast: Any, cameras: None) -> None:
    done = replay(holdfast, "live", "--out", "/dev/full")
    assert (done.code, "the file /dev/full can't be written to its end: No space left" in done.err) == (
        3,
        True,
    )


@pytest.mark.parametrize(
    "more, said", [(("--json",), '"out":"odd-\\\\udcff"'), ((), "written to odd-\\udcff")]
)
def test_a_file_may_have_a_name_that_is_no_text(
    holdfast: Any, cameras: None, more: tuple[str, ...], said: str
) -> None:
    name = os.fsdecode(b"odd-\xff")
    done = replay(holdfast, "live", "--out", name, *more)
    assert (done.code, said in done.out) == (0, True)
    assert len(Path(name).read_text().splitlines()) == 10


def test_a_stream_that_is_not_there_or_has_no_archive_is_told(
    holdfast: Any, cameras: None, place: Path
) -> None:
    done = replay(holdfast, "live", key="other/a")
    assert (done.code, "declares no stream 'other'; it has cameras, alerts, plain" in done.err) == (2, True)
    done = replay(holdfast, "live", key="plain/a")
    assert (done.code, "stream 'plain' declares no archive" in done.err) == (2, True)
    assert not (place / "nowhere").exists()


def test_a_line_that_can_not_be_read_is_named(holdfast: Any, cameras: None, place: Path) -> None:
    [path] = (place / "archive" / "cameras" / "cam-1").glob("*/*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b'{"key": "cam', b"\n", *lines[6:]]))
    done = replay(holdfast, "live")
    assert (done.code, f"{path.name} line 6 can't be read" in done.err) == (1, True)
    done = replay(holdfast, "live", "--keep-going", "--from", "archive")
    assert done.code == 1
    assert [line["seq"] for line in done.lines] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert "1 unreadable line" in done.err


def test_an_archive_is_found_where_it_was_moved(holdfast: Any, cameras: None, place: Path) -> None:
    (place / "archive").rename(place / "old")
    assert len(replay(holdfast, "live", "--from", "old").lines) == 10
    assert len(replay(holdfast, "live", "--from", f"file:{place}/old").lines) == 10


def test_doctor_tells_whether_the_archive_can_be_written(holdfast: Any, cameras: None, place: Path) -> None:
    done = holdfast("doctor", "live_cameras:app")
    assert f"✓ archive: file:archive: stores file://{place}/archive/holdfast-doctor" in done.out
    (place / "archive").rename(place / "old")
    (place / "archive").write_text("in the way")
    done = holdfast("doctor", "live_cameras:app")
    assert (done.code, "✗ archive: file:archive: " in done.out) == (3, True)
