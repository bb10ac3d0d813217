"""``holdfast ingest`` on small real videos."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from holdfast.ports.coordinator import Load, Member
from holdfast.wiring.services import Services
from tests.vision.rtsp import Server

FRAMES = 5
PATIENCE_S = 60.0


@pytest.fixture
def video(place: Path) -> Path:
    """A short video."""
    path = place / "lobby.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(FRAMES):
            picture = np.full((48, 64, 3), number * 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return path


async def sent(services: Services) -> list[tuple[str, int, int, bytes]]:
    """What waits in the queue, frames fetched."""
    deliveries = await services.queue("frames").receive(100, 0, 30, "m")
    frames = [json.loads(delivery.body) for delivery in deliveries]
    return [(f["video"], f["run"], f["frame"], await services.objects().get(f["url"])) for f in frames]


def test_ingest_stores_frames_and_sends_messages(holdfast: Any, arrange: Any, video: Path) -> None:
    outcome = holdfast("ingest", str(video), "--key", "cam-1", "--run", "7", "--json")
    assert outcome.code == 0
    (line,) = outcome.lines
    assert (line["key"], line["run"], line["stream"], line["frames"], line["error"]) == (
        "cam-1",
        7,
        "frames",
        FRAMES,
        "",
    )
    frames = arrange(sent)
    assert [frame[:3] for frame in frames] == [("cam-1", 7, number) for number in range(FRAMES)]
    assert all(frame[3].startswith(b"\xff\xd8") for frame in frames), "JPEG"


def test_the_file_names_the_key_and_the_time_the_run(holdfast: Any, arrange: Any, video: Path) -> None:
    outcome = holdfast("ingest", str(video), "--fps", "2")
    assert "2 frames of" in outcome.out
    assert "sent to frames/lobby, run 1" in outcome.out
    assert len(arrange(sent)) == 2


def test_a_stream_that_no_node_runs_is_warned_of(holdfast: Any, arrange: Any, video: Path) -> None:
    async def join(services: Services) -> None:
        node = Member("m", "node-a", "http://127.0.0.1:1", Load(0, 1, 0, queues=("frames", "alerts")))
        await services.coordinator().join(node, 60.0)

    assert "no node runs" not in holdfast("ingest", str(video), "--stream", "frms").err, "nobody knows yet"
    arrange(join)
    assert "no node runs" not in holdfast("ingest", str(video), "--stream", "frames").err
    warned = holdfast("ingest", str(video), "--stream", "frms")
    assert (warned.code, f"{FRAMES} frames of" in warned.out) == (0, True)
    assert "no node runs a stream 'frms'" in warned.err
    assert "alerts, frames" in warned.err


def test_one_bad_video_keeps_no_other_back(holdfast: Any, arrange: Any, video: Path) -> None:
    (video.parent / "broken.mp4").write_bytes(b"no video")
    outcome = holdfast("ingest", "broken.mp4", "lobby.mp4", "--json")
    assert outcome.code == 1
    assert [line["frames"] for line in outcome.lines] == [0, FRAMES]
    assert "broken.mp4 can't be read as a video" in outcome.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["a.mp4", "b.mp4", "--key", "cam-1"], "1 keys for 2 videos"),
        (["a/x.mp4", "b/x.mp4"], "would share a key"),
        (["rtsp://127.0.0.1/live"], "give each one a --key"),
        (["rtsp://127.0.0.1/live", "a.mp4", "--key", "a", "--key", "b"], "files come to an end"),
        (["rtsp://127.0.0.1/live", "--key", "a", "--run", "3"], "leave --run and --realtime out"),
    ],
)
def test_keys_that_do_not_fit_the_videos_are_refused(holdfast: Any, arguments: list[str], said: str) -> None:
    outcome = holdfast("ingest", *arguments)
    assert (outcome.code, said in outcome.err) == (2, True)


@pytest.mark.slow
def test_cameras_are_pulled_until_they_are_stopped(place: Path, arrange: Any) -> None:
    with Server([(4, "cut"), (3, "stall")], password="x") as server:
        url = server.url.replace("rtsp://", "rtsp://admin:a-secret-word@")
        command = [sys.executable, "-m", "holdfast", "ingest", url, "--key", "cam-1", "--json"]
        with (
            (place / "errors").open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert server.twice.wait(PATIENCE_S), "it came back"
            process.send_signal(signal.SIGINT)
            rest = [json.loads(line) for line in process.stdout]
            assert process.wait(PATIENCE_S) == 0
    assert (first["stream"], first["key"], first["frames"], first["left_out"]) == ("frames", "cam-1", 4, 0)
    assert first["lost"] == "its stream ended"
    assert all(line["run"] > first["run"] and line["lost"] == "" for line in rest)
    assert [frame[:3] for frame in arrange(sent)][:4] == [("cam-1", first["run"], n) for n in range(4)]
    said = (place / "errors").read_text()
    assert "frames/cam-1: its stream ended; trying again in" in said
    assert "a-secret-word" not in said + str(first)


@pytest.mark.slow
def test_a_camera_is_pulled_for_so_many_seconds(holdfast: Any) -> None:
    with Server([(3, "stall")]) as server:
        outcome = holdfast("ingest", server.url, "--key", "cam-1", "--seconds", "0.5")
    assert outcome.code == 0
