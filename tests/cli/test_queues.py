"""``holdfast queues`` and ``doctor`` against a server that speaks SQS."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.ports.queue import DeadLetter
from holdfast.ports.queue_setup import Made
from holdfast.rules.tasks.task import Task
from holdfast.services.aws.setup import SqsSetup
from holdfast.wiring.services import Services
from simulator.servers import FauxqsServer

APP = """
from holdfast import (App, StreamHandler)

app = App("cameras")

@app.stream("frames", key="video", seq="frame", first_seq=0)
class Frames(StreamHandler[dict]):
    pass

@app.stream("alerts", key="video")
class Alerts(StreamHandler[dict]):
    pass
"""
PLACE = "two_streams:app"


@pytest.fixture
def prefix() -> str:
    """What tells this test's queues from others'."""
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def account(fauxqs_server: FauxqsServer, place: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """An app with two streams, whose queues belong on the server."""
    (place / "two_streams.py").write_text(APP)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in fauxqs_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_QUEUE_URL", f"sqs://eu-central-1/{prefix}-{{stream}}")


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_queues_that_are_right_already_are_not_made_again(holdfast: Any, prefix: str) -> None:
    first = holdfast("queues", "create", PLACE, "--tag", "team=video")
    assert first.code == 0, first.err
    names = [f"{prefix}-{end}" for end in ("frames-dlq", "frames", "alerts-dlq", "alerts")]
    assert first.out.splitlines() == [
        f"{'frames' if 'frames' in name else 'alerts'}: {name} created" for name in names
    ]
    again = holdfast("queues", "create", PLACE, "--tag", "team=video", "--json").lines
    assert [(made["queue"], made["action"]) for made in again] == [(name, "already right") for name in names]
    changed = holdfast("queues", "create", PLACE, "--tag", "team=audio").out
    assert f"frames: {prefix}-frames changed (tag team)" in changed


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_doctor_tells_which_queue_is_missing(holdfast: Any, prefix: str) -> None:
    missing = holdfast("doctor", PLACE)
    assert missing.code > 0
    assert f"✗ queue of frames: there is no SQS queue '{prefix}-frames' in " in missing.out
    assert "holdfast queues create" in missing.out
    holdfast("queues", "create", PLACE)
    found = holdfast("doctor", PLACE)
    assert found.code == 0, found.out
    assert "✓ AWS: credentials found (env), region eu-central-1" in found.out
    assert f"/{prefix}-alerts-dlq" in found.out
    assert "! hosts: the queue is not on this host, but coordinator_url and state_url are" in found.out


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_doctor_says_which_credentials_are_missing(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    outcome = holdfast("doctor", PLACE)
    assert outcome.code == 2
    assert "✗ AWS: there are no AWS credentials: set AWS_ACCESS_KEY_ID" in outcome.out


@pytest.mark.usefixtures("account")
def test_doctor_prints_what_must_be_allowed(holdfast: Any, prefix: str) -> None:
    policy = json.loads(holdfast("doctor", PLACE, "--iam-policy", "--set", "objects_url=s3://b/p").out)
    queues, objects, bucket = policy["Statement"]
    assert queues["Resource"] == [
        f"arn:aws:sqs:eu-central-1:*:{prefix}-{end}"
        for end in ("frames", "frames-dlq", "alerts", "alerts-dlq")
    ]
    assert "sqs:ChangeMessageVisibility" in queues["Action"]
    assert (objects["Resource"], bucket["Resource"]) == ("arn:aws:s3:::b/p/*", "arn:aws:s3:::b")
    url = "https://sqs.us-gov-west-1.amazonaws.com/123456789012/jobs.fifo"
    (queues,) = json.loads(holdfast("doctor", PLACE, "--iam-policy", "--set", f"queue_url={url}").out)[
        "Statement"
    ]
    arn = "arn:aws-us-gov:sqs:us-gov-west-1:123456789012"
    assert queues["Resource"][:2] == [f"{arn}:jobs.fifo", f"{arn}:jobs-dlq.fifo"]


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["queues", "create", PLACE, "--set", "queue_url=sqs:///one"], "would share a queue"),
        (
            ["queues", "create", PLACE, "--set", "queue_url=sqs:///a b-{stream}"],
            "can't be an SQS queue's name",
        ),
        (["queues", "create", PLACE, "--tag", "team"], "--tag 'team' must be NAME=VALUE"),
        (["doctor", "--iam-policy"], "needs the app"),
        (
            ["doctor", PLACE, "--iam-policy", "--url", "sqlite:///h.db", "-s", "queue_url=sqlite:///h.db"],
            "neither is",
        ),
    ],
)
def test_what_can_t_be_says_why(holdfast: Any, arguments: list[str], said: str) -> None:
    outcome = holdfast(*arguments)
    assert outcome.code == 2
    assert said in outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_a_type_without_a_queue_hides_no_dead_letters_of_others(
    holdfast: Any, arrange: Any, place: Path
) -> None:
    async def bury(services: Services) -> None:
        setup = services.queue_setup()
        assert setup is not None
        await setup.create("office-publish", visibility_s=30.0, tags={}, encrypt=False, kms_key="")
        letter = DeadLetter("publish/t-1", b"{}", "failed: no such table", key="t-1")
        await services.queue("office-publish").bury([letter])
        await services.task_store("office").queue([Task("t-1", "publish"), Task("typo", "pubish")])

    arrange(bury)
    outcome = holdfast("dlq", "backup", "letters.jsonl", "--app", "office")
    assert (outcome.code, "1 copied" in outcome.out) == (0, True), outcome.err
    assert "no such table" in (place / "letters.jsonl").read_text()
    assert "1 redriven" in holdfast("dlq", "redrive", "--app", "office").out


@pytest.mark.usefixtures("account")
def test_a_queue_that_can_t_be_made_stops_no_other(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create = SqsSetup.create

    async def refuse(self: SqsSetup, stream: str, **settings: Any) -> list[Made]:
        if stream == "alerts":
            raise ConfigError("this user may not sqs:CreateQueue")
        return await create(self, stream, **settings)

    monkeypatch.setattr(SqsSetup, "create", refuse)
    outcome = holdfast("queues", "create", PLACE)
    assert (outcome.code, "alerts: this user may not" in outcome.err) == (2, True)
    assert outcome.out.count("created") == 2, "that of the other, and the one for its dead letters"


def test_a_service_that_makes_its_queues_needs_nothing(holdfast: Any, place: Path) -> None:
    (place / "two_streams.py").write_text(APP)
    outcome = holdfast("queues", "create", PLACE)
    assert (outcome.code, "nothing to do" in outcome.out) == (0, True)
    assert holdfast("queues", "create", PLACE, "--json").out == ""
