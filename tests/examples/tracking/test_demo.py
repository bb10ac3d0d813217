"""The demo of tracking: what it makes of events, how it counts, what it shows; and all of it, for real."""

import io
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from rich.console import Console

from examples.tracking import reference, servers
from examples.tracking.__main__ import command
from examples.tracking.measure import failovers_ms, measure, out_of_order, percentile
from examples.tracking.picture import CommittedResult, Picture
from examples.tracking.plan import FPS, make_plan
from examples.tracking.report import table
from examples.tracking.servers import KNOWN
from examples.tracking.view import LinesView, draw
from holdfast.errors import ConfigError
from holdfast.ports.coordinator import Change, Claim, Member

FIGURES = [
    "frames_in",
    "committed",
    "duplicates_dropped",
    "lost",
    "out_of_order",
    "moves",
    "failover_p50_ms",
    "failover_p99_ms",
    "identity_switches",
    "contact_sheet",
]


class Time:
    """Wall time as the test says."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def picture(time: Time) -> Picture:
    """Two nodes; the first owns both streams; the first frame is sent."""
    made = Picture({"cam-1": 3, "cam-2": 3}, time)
    join(made, "m1", "node-1-aaaa")
    join(made, "m2", "node-2-bbbb")
    for key in made.streams:
        claim(made, key, "m1")
    made.begin()
    return made


def join(picture: Picture, member: str, name: str) -> None:
    picture.changed(Change("joined", member=Member(member, name, f"http://{member}")))


def leave(picture: Picture, member: str, name: str) -> None:
    picture.changed(Change("left", member=Member(member, name, f"http://{member}")))


def claim(picture: Picture, key: str, member: str) -> None:
    picture.changed(Change("claim", claim=Claim(f"frames/{key}", member, 1)))


def tracked(frame: int, *ids: int) -> dict[str, Any]:
    """A result with a track for each of ``ids``, each in its own corner."""
    return {"frame": frame, "tracks": [{"id": i, "box": [9.0 * i, 0.0, 9.0 * i + 8, 9.0]} for i in ids]}


def commit(picture: Picture, key: str, frame: int, owner: str, result: dict[str, Any] | None = None) -> None:
    line = CommittedResult(frame, picture.now(), owner, result or tracked(frame, 1))
    picture.result(key, line)


def events(picture: Picture) -> list[str]:
    return [event.text for event in picture.events]


# --- picture


def test_a_stream_that_a_living_node_hands_over_has_moved(picture: Picture) -> None:
    picture.draining("m1")
    claim(picture, "cam-1", "m2")
    claim(picture, "cam-1", "m2")
    leave(picture, "m1", "node-1-aaaa")
    assert (picture.moves, picture.failovers) == (1, 0)
    assert picture.owned("node-2") == ["cam-1"]
    assert [node.state for node in picture.nodes.values()] == ["ended", "running"]
    assert events(picture)[-2:] == [
        "node-1 drains (SIGTERM), the owner of 2 streams",
        "node-1 drained and ended",
    ]


def test_a_stream_that_is_released_on_the_way_has_moved_once(picture: Picture) -> None:
    claim(picture, "cam-1", "")
    claim(picture, "cam-1", "m2")
    assert picture.moves == 1


def test_a_stream_of_a_dead_node_has_failed_over(picture: Picture, time: Time) -> None:
    commit(picture, "cam-1", 0, "node-1")
    picture.killed("m1")
    leave(picture, "m1", "node-1-aaaa")
    claim(picture, "cam-1", "m2")
    commit(picture, "cam-1", 1, "node-1")  # it was in the log before the kill, and read after it
    time.at += 0.25
    commit(picture, "cam-1", 2, "node-2")
    assert (picture.moves, picture.failovers) == (0, 1)
    assert failovers_ms(picture) == [250.0]
    assert events(picture)[-2:] == [
        "node-1 killed (SIGKILL), the owner of 2 streams",
        "cam-1 goes on at node-2 after 250 ms",
    ]


def test_lives_of_a_node_are_told_apart(picture: Picture) -> None:
    picture.killed("m1")
    join(picture, "m3", "node-1-cccc")
    join(picture, "m4", "node-1-cccc")
    assert [node.name for node in picture.nodes.values()] == ["node-1", "node-2", "node-1·2", "node-1·3"]
    assert events(picture)[-2:] == [
        "node-1 started again, as node-1·2",
        "node-1 lost its membership and joined again, as node-1·3",
    ]


def test_rates_cover_only_the_last_seconds(picture: Picture, time: Time) -> None:
    time.at += 10
    for frame in range(2):
        commit(picture, "cam-1", frame, "node-1")
    time.at += 1
    commit(picture, "cam-2", 0, "node-1")
    assert picture.rate("node-1") == 1.5
    assert picture.rate("node-2") == 0
    time.at += 10
    assert picture.rate("node-1") == 0


# --- figures


def test_an_undisturbed_run_loses_nothing_and_switches_no_identity(picture: Picture) -> None:
    reference = {key: [tracked(frame, 1) for frame in range(3)] for key in picture.streams}
    for key, stream in picture.streams.items():
        stream.sent = 3
        for frame in range(3):
            commit(picture, key, frame, "node-1")
    outcome = measure(picture, reference)
    assert outcome.good
    figures = outcome.figures
    assert (figures.frames_in, figures.committed, figures.lost, figures.out_of_order) == (6, 6, 0, 0)
    assert (figures.failover_p50_ms, figures.identity_switches) == (None, 0)


@pytest.mark.parametrize(
    "results, lost, disorder, switches, differing",
    [
        ([(0, 1), (2, 1)], 1, 0, 0, 1),
        ([(0, 1), (2, 1), (1, 1)], 0, 1, 0, 0),
        ([(0, 1), (1, 1), (1, 1), (2, 1)], 0, 1, 0, 0),
        ([(0, 1), (1, 7), (2, 7)], 0, 0, 1, 2),
        ([], 3, 0, 0, 3),
    ],
    ids=["lost", "out of order", "twice", "other identity", "nothing"],
)
def test_lost_frames_disorder_and_switches_are_counted(
    time: Time, results: list[tuple[int, int]], lost: int, disorder: int, switches: int, differing: int
) -> None:
    picture = Picture({"cam-1": 3}, time)
    picture.begin()
    picture.streams["cam-1"].sent = 3
    for frame, track in results:
        result = tracked(frame, 1) if track == 1 else tracked(frame, 1) | {"tracks": [moved(track)]}
        commit(picture, "cam-1", frame, "node-1", result)
    outcome = measure(picture, {"cam-1": [tracked(frame, 1) for frame in range(3)]})
    figures = outcome.figures
    assert (figures.lost, figures.out_of_order, outcome.differing) == (lost, disorder, differing)
    assert figures.identity_switches == switches
    assert not outcome.good


def moved(track: int) -> dict[str, Any]:
    """The box of track 1 under another id."""
    return {**tracked(0, 1)["tracks"][0], "id": track}


def test_disorder_and_percentiles_are_computed() -> None:
    assert out_of_order([0, 1, 2, 5]) == 0
    assert out_of_order([0, 2, 1, 3, 3]) == 2
    assert percentile([], 0.5) is None
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.99) == 4


# --- view and report


def lines_of(made: Any, width: int = 130) -> str:
    page = io.StringIO()
    Console(width=width, height=40, file=page).print(made)
    return page.getvalue()


@pytest.mark.parametrize("width", [80, 130])
def test_the_view_shows_nodes_streams_and_owners(picture: Picture, width: int) -> None:
    commit(picture, "cam-1", 0, "node-1")
    picture.streams["cam-1"].sent = 2
    text = lines_of(draw(picture, width, rows=30), width)
    assert "1 of 6" in text
    assert "● node-1" in text
    assert "1/3" in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_view_too_low_for_all_streams_says_so(time: Time) -> None:
    picture = Picture({f"cam-{number}": 1 for number in range(50)}, time)
    text = lines_of(draw(picture, 130, rows=10))
    assert "and 40 more" in text
    assert len(text.splitlines()) < 16


def test_without_a_terminal_there_are_lines(picture: Picture, time: Time) -> None:
    page = io.StringIO()
    with LinesView(Console(width=120, file=page)) as view:
        view.update(picture)
        time.at += 3.5
        picture.killed("m1")
        view.update(picture)
        view.update(picture)
    assert [line.strip() for line in page.getvalue().splitlines()] == [
        "node-1 joined",
        "node-2 joined",
        "3.5 s  node-1 killed (SIGKILL), the owner of 2 streams",
        "3.5 s  0 of 6 frames, lag 0, moves 0",
    ]


def test_the_table_marks_what_is_wrong(picture: Picture) -> None:
    picture.streams["cam-1"].sent = 3
    picture.killed("m1")
    text = lines_of(table(measure(picture, {"cam-1": [tracked(0, 1)] * 3, "cam-2": []}), picture))
    rows = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert rows["lost"] == ["3", "✗"]
    assert rows["out of order"] == ["0", "✓"]
    assert rows["fail-over p50"][0] == "never"


# --- plan


def test_own_videos_are_used_over_and_over(tmp_path: Path) -> None:
    a, b = Path("a.mp4"), Path("b.mp4")
    plan = make_plan(tmp_path, videos=[a, b], streams=3, seconds=5, nodes=3, faults=True)
    assert list(plan.cameras) == [("cam-01", a), ("cam-02", b), ("cam-03", a)]
    assert plan.faults
    plan = make_plan(tmp_path, videos=[a, b], streams=None, seconds=5, nodes=1, faults=True)
    assert len(plan.cameras) == 2
    assert not plan.faults


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0.5}, {"seconds": float("nan")}, {"nodes": 0}, {"streams": 0}], ids=str
)
def test_numbers_that_make_no_demo_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"videos": [], "streams": 1, "seconds": 1, "nodes": 1, "faults": False}
    with pytest.raises(ConfigError, match="must be at least 1"):
        make_plan(tmp_path, **(settings | wrong))


@pytest.mark.nightly
def test_the_undisturbed_run_is_the_same_in_processes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path, videos=[], streams=1, seconds=1, nodes=1, faults=False)
    here = reference.undisturbed(plan)
    assert [len(results) for results in here.values()] == [FPS]
    monkeypatch.setattr(reference, "FRAMES_A_PROCESS", FPS - 1)
    with mock.patch.object(reference, "ProcessPoolExecutor", wraps=ProcessPoolExecutor) as pool:
        assert reference.undisturbed(plan) == here
    assert pool.call_args.args[0] == 1, "no more processes than streams"


# --- all of it


def demo(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.tracking", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


PATIENCE_S = 300.0
"""A demo has a dozen processes, which a busy machine takes its time to start."""

STREAMS, SECONDS = 2, 4
SMALL = ("--streams", str(STREAMS), "--seconds", str(SECONDS))
FRAMES = STREAMS * SECONDS * FPS


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo works; empty again when it has ended."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1.5 * PATIENCE_S)
def test_nothing_is_lost_when_a_node_is_killed_and_another_drained(place: Path, temporary: Path) -> None:
    process = demo("--json", *SMALL, "--nodes", "3")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert list(figures) == FIGURES
    sheet = Path(figures["contact_sheet"])
    assert sheet.is_relative_to(place)
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert figures["frames_in"] == figures["committed"] == FRAMES
    assert figures["lost"] == figures["out_of_order"] == figures["identity_switches"] == 0
    assert 0 < figures["failover_p50_ms"] <= figures["failover_p99_ms"]
    assert figures["moves"] > 0
    assert "killed (SIGKILL)" in err
    assert "drains (SIGTERM)" in err
    assert list(temporary.rglob("*")) == []


@pytest.mark.nightly
@pytest.mark.timeout(1.5 * PATIENCE_S)
@pytest.mark.parametrize(
    "services", ["redis", "postgres", "redis,sqs", "redis,zookeeper,sqs,s3", "zookeeper,sqs,s3"]
)
def test_it_is_the_same_on_services_that_it_starts_itself(
    place: Path, temporary: Path, services: str
) -> None:
    process = demo("--json", *SMALL, "--nodes", "2", "--services", services)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures["frames_in"] == figures["committed"] == FRAMES
    assert figures["lost"] == figures["out_of_order"] == figures["identity_switches"] == 0
    for name in KNOWN:
        assert (f"{name} ({KNOWN[name]})" in err) == (name in services.split(","))
    assert "killed (SIGKILL)" in err
    assert Path(figures["contact_sheet"]).read_bytes().startswith(b"\x89PNG")
    # The file by which processes agree on ports for servers is of all of them, and stays.
    assert [path.name for path in temporary.rglob("*")] == [f"holdfast-ports-{os.getuid()}"]


@pytest.mark.nightly
async def test_each_service_is_used_for_what_it_is_good_for() -> None:
    async with servers.started(["redis"]) as found:
        assert list(found) == ["url"]
        assert found["url"].startswith("redis://")
    async with servers.started(["postgres"]) as found:
        assert list(found) == ["url"]
        assert found["url"].startswith("postgresql://")
    async with servers.started(["sqs"]) as found:
        assert (list(found), found["queue_url"]) == (["queue_url", "visibility_s"], "sqs:///")
    async with servers.started([]) as found:
        assert found == {}


def test_an_unknown_service_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--services", "redis,kafka"]) == 2
    assert "unknown service 'kafka'; known are postgres" in capsys.readouterr().err


def test_two_services_for_the_same_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--services", "redis,postgres"]) == 2
    assert "postgres and redis are used for the same things; name one" in capsys.readouterr().err


def test_an_unknown_option_is_a_mistake_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--cameras", "3"]) == 2
    assert "--cameras" in capsys.readouterr().err


@pytest.mark.nightly
def test_own_videos_without_faults_on_one_node(place: Path, temporary: Path) -> None:
    first = make_plan(place / "videos", videos=[], streams=2, seconds=2, nodes=1, faults=False)
    process = demo("--json", "--seconds", "2", "--nodes", "1", "--video", *(str(v) for _, v in first.cameras))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures["committed"] == 2 * 2 * FPS
    assert figures["failover_p50_ms"] is None
    assert "neither killed nor drained" in err


@pytest.mark.slow
def test_a_file_that_is_no_video_is_named(place: Path, temporary: Path) -> None:
    (place / "notes.mp4").write_text("no video")
    process = demo("--video", "notes.mp4")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "notes.mp4 can't be read as a video" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_nodes_that_can_not_run_end_the_demo(
    place: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PEER_SECRET", "short")
    process = demo("--seconds", "1", "--streams", "1", "--nodes", "1")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "all nodes have ended" in err
    assert "peer_secret is" in err
    assert "Traceback" not in err
    assert list(temporary.rglob("*")) == []


@pytest.mark.slow
@pytest.mark.timeout(1.5 * PATIENCE_S)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_told_to_end_leaves_nothing_behind(
    place: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    process = demo("--json", "--seconds", "5", "--streams", "1", "--nodes", "1")
    assert process.stderr is not None
    for line in process.stderr:
        if "node-" in line and "joined" in line:
            break
    process.send_signal(signal.SIGSTOP)  # however long it takes to be events, it is not over by then
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2, "a node and its slots"
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # it shows where it stands
        pytest.fail(f"it goes on: {process.communicate()}")
    assert process.returncode == 130, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(children, 20)
    assert alive == []
    assert list(temporary.rglob("*")) == []
