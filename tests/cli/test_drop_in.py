"""The environment and the messages of consumers that lock each video, run as they are."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from PIL import Image

from simulator.servers import FauxqsServer, RedisServer
from tests.cli.test_node import Process, get

ROOT = Path(__file__).parents[2]
FRAMES = 12
VIDEOS = {"from-zero": 0, "from-one": 1}


@pytest.fixture
def environment(
    fauxqs_server: FauxqsServer, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, str]:
    """All that such a consumer is told, and how it gets in."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "HOLDFAST_"))]:
        monkeypatch.delenv(name)
    for name, value in fauxqs_server.environment().items():
        monkeypatch.setenv(name, value)
    host, _, port = redis_server.address.partition(":")
    queue = boto3.client("sqs").create_queue(QueueName=f"frames-{tmp_path.name}"[:80])["QueueUrl"]
    return {
        "AWS_REGION": os.environ["AWS_REGION"],
        "SQS_QUEUE_URL": queue,
        "REDIS_HOST": host,
        "REDIS_PORT": port,
        "LOCK_TTL_SECONDS": "30",
        "LOCK_RENEWAL_INTERVAL_SECONDS": "10",
        "PROCESSING_IDLE_TIMEOUT_SECONDS": "60",
    }


def produce(queue: str, bucket: str) -> None:
    """Put frames into S3 and send their messages, the way the producers do: not in order."""
    s3, sqs = boto3.client("s3"), boto3.client("sqs")
    s3.create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": os.environ["AWS_DEFAULT_REGION"]}
    )
    for number in (*range(FRAMES - 1, 5, -1), *range(6)):
        picture = io.BytesIO()
        Image.new("RGB", (320, 180), (8 * number, 40, 40)).save(picture, "JPEG")
        s3.put_object(Bucket=bucket, Key=f"frame {number}.jpg", Body=picture.getvalue())
        for video, first in VIDEOS.items():
            message = {
                "message_id": f"{video}-{number}",
                "video_id": video,
                "frame_id": number + first,
                "timestamp": 1700000000.5 + number / 25,
                "s3_bucket": bucket,
                "s3_key": f"frame {number}.jpg",
            }
            sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(message))


def results(holdfast: Any, count: int) -> list[Any]:
    """The first results, as the command prints them."""
    done = holdfast("results", "--follow", "--limit", str(count))
    assert done.code == 0, done.err
    lines: list[Any] = done.lines
    return lines


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, place: Path) -> Iterator[list[Process]]:
    """What is started is ended."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started: list[Process] = []
    yield started
    for process in started:
        process.child.kill()
        process.join()


def check_order(found: list[Any]) -> None:
    """Each video's results are those of its frames, in order."""
    for video, first in VIDEOS.items():
        of_video = [line for line in found if line["key"] == video]
        assert [line["seq"] for line in of_video] == list(range(first, first + FRAMES))
        assert [line["result"]["frame"] for line in of_video] == list(range(first, first + FRAMES))


@pytest.mark.slow
def test_a_node_with_older_settings_processes_frames_in_order(
    environment: dict[str, str],
    node: list[Process],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    holdfast: Any,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_RECEIVE_WAIT_S", "2")  # what is under way when it ends is waited for
    node.append(Process("examples.cameras:app"))
    node[0].wait_for("node runs")
    counted = node[0].wait_for("older setting names used")
    assert counted["queue_url"] == "SQS_QUEUE_URL in the environment"
    assert any("has no dead-letter queue" in str(event.get("error")) for event in node[0].events)
    produce(environment["SQS_QUEUE_URL"], bucket_of(place))
    check_order(results(holdfast, FRAMES * len(VIDEOS)))
    (status,) = holdfast("status", "--json").lines
    assert {stream["skipped"] for stream in status["streams"]} == {0}
    metrics = get(node[0].wait_for("metrics page served")["url"])
    assert 'holdfast_api_calls_total{operation="GetObject",service="s3"} 24.0' in metrics
    assert 'holdfast_api_calls_total{operation="ReceiveMessage",service="sqs"}' in metrics
    assert node[0].end() == 0
    (status,) = holdfast("status", "--json").lines
    (queue,) = status["queues"]
    assert (queue["ready"], queue["in_flight"], queue["lag_s"]) == (0, 0, None)


@pytest.mark.nightly
def test_a_file_says_all_of_it_as_well(
    environment: dict[str, str],
    node: list[Process],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    holdfast: Any,
) -> None:
    produce(environment["SQS_QUEUE_URL"], bucket_of(place))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment[name] = os.environ[name]
        monkeypatch.delenv(name)
    (place / ".env").write_text("".join(f"{name}={value}\n" for name, value in environment.items()))
    node.append(Process("examples.cameras:app"))
    node[0].wait_for("node runs")
    check_order(results(holdfast, FRAMES * len(VIDEOS)))


def bucket_of(place: Path) -> str:
    """A bucket for one test."""
    return place.name.replace("_", "-")[-40:].strip("-")


@pytest.mark.nightly
def test_a_queue_that_is_not_there_ends_the_node(
    environment: dict[str, str], node: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment["SQS_QUEUE_URL"] += "-of-nobody"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    node.append(Process("examples.cameras:app"))
    assert node[0].join() == 2
    assert "there is no SQS queue" in "".join(event["event"] for event in node[0].events)
