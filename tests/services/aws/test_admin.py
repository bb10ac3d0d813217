"""Queues are made once, set right again, and their faults are named."""

import json
from uuid import uuid4

import pytest

from holdfast.ports.clock import Clock
from holdfast.services.aws.admin import check_queue, create_queues
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.sqs import EmptyAnswer, Sqs
from simulator.proxies import CallFault, Rule, SqsFaults
from tests.services.aws.conftest import REGION

pytestmark = pytest.mark.parametrize("server", ["fauxqs", "moto"], indirect=True)


@pytest.fixture(params=["", ".fifo"])
def name(request: pytest.FixtureRequest) -> str:
    return f"q-{uuid4().hex}{request.param}"


@pytest.mark.slow
async def test_makes_a_queue_and_its_dead_letters_once(sqs: Sqs, name: str) -> None:
    made = await create_queues(sqs, name, visibility_s=60.5, tags={"team": "video"})
    dead = name.replace(".fifo", "") + "-dlq" + (".fifo" if name.endswith(".fifo") else "")
    assert [(one.name, one.action) for one in made] == [(dead, "created"), (name, "created")]
    there = await sqs.attributes(made[1].url)
    assert there["VisibilityTimeout"] == "61"
    assert there["MaximumMessageSize"] == "1048576"
    assert there.get("FifoQueue") == ("true" if name.endswith(".fifo") else None)
    policy = json.loads(there["RedrivePolicy"])
    assert policy["deadLetterTargetArn"].endswith(f":{dead}")
    assert int(policy["maxReceiveCount"]) == 100
    assert (await sqs.attributes(made[0].url))["MessageRetentionPeriod"] == str(14 * 86400)

    again = await create_queues(sqs, name, visibility_s=60.5, tags={"team": "video"})
    assert [one.action for one in again] == ["already right", "already right"]
    assert [one.url for one in again] == [one.url for one in made]


async def test_sets_right_only_what_is_not(sqs: Sqs, name: str) -> None:
    await create_queues(sqs, name, visibility_s=60)
    dead, main = await create_queues(sqs, name, visibility_s=30, max_receives=50, tags={"a": "b"})
    assert (dead.action, dead.changed) == ("changed", ("tag a",))
    assert (main.action, set(main.changed)) == ("changed", {"VisibilityTimeout", "RedrivePolicy", "tag a"})
    assert (await sqs.attributes(main.url))["VisibilityTimeout"] == "30"


async def test_keeps_to_the_dead_letter_queue_that_the_policy_names(sqs: Sqs, name: str) -> None:
    other = f"other-{name}"
    await create_queues(sqs, other, visibility_s=60)
    [_, main] = await create_queues(sqs, name, visibility_s=60)
    arn = (await sqs.attributes(await sqs.queue_url(other), "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    request = {"QueueUrl": main.url, "Attributes": {"RedrivePolicy": policy}}
    await sqs.call("SetQueueAttributes", name, request, EmptyAnswer)
    dead, main = await create_queues(sqs, name, visibility_s=60)
    assert dead.name == other
    assert main.changed == ("RedrivePolicy",)


async def test_nothing_to_say_about_a_queue_as_made(sqs: Sqs, name: str) -> None:
    [_, main] = await create_queues(sqs, name, visibility_s=60)
    for queue in (name, main.url):
        findings = await check_queue(sqs, queue, visibility_s=60)
        assert [finding.level for finding in findings] == ["ok", "ok"], findings
    for one in await create_queues(sqs, name, visibility_s=60):
        assert (await sqs.attributes(one.url))["ApproximateNumberOfMessages"] == "0"


@pytest.mark.parametrize(
    "operation, action",
    [
        ("GetQueueUrl", "sqs:GetQueueUrl"),
        ("GetQueueAttributes", "sqs:GetQueueAttributes"),
        ("ReceiveMessage", "sqs:ReceiveMessage"),
        ("SendMessageBatch", "sqs:SendMessage"),
        ("DeleteMessageBatch", "sqs:DeleteMessage"),
        ("ChangeMessageVisibilityBatch", "sqs:ChangeMessageVisibility"),
    ],
)
async def test_names_the_action_that_is_not_allowed(
    sqs: Sqs, name: str, server: str, clock: Clock, operation: str, action: str
) -> None:
    await create_queues(sqs, name, visibility_s=60)
    async with SqsFaults(server) as faults:
        faults.plan.add(Rule(fault=CallFault.THROTTLE, operation=operation, status=403, code="AccessDenied"))
        client = AwsClient("sqs", clock, region=REGION, endpoint=faults.endpoint)
        found = await check_queue(Sqs(client), name, visibility_s=60)
        await client.close()
    denied = [finding for finding in found if finding.level == "error"]
    assert len(denied) == (1 if operation == "GetQueueUrl" else 2)  # of the queue, of its dead letters
    assert all(f"grant the IAM action {action} " in finding.text for finding in denied)


async def test_check_queue_names_each_fault_of_a_queue(sqs: Sqs, name: str) -> None:
    [missing] = await check_queue(sqs, name, visibility_s=60)
    assert missing.level == "error"
    assert "holdfast queues create" in missing.text
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    attributes = {"VisibilityTimeout": "5", "MaximumMessageSize": "2048"} | fifo
    await sqs.call("CreateQueue", name, {"QueueName": name, "Attributes": attributes}, EmptyAnswer)
    found = await check_queue(sqs, name, visibility_s=60)
    assert [finding.level for finding in found] == ["ok", "warning", "warning", "warning", "error"]
    text = "\n".join(finding.text for finding in found)
    for part in ("no redrive policy", "for 5 s, not 60", "over 2048 bytes", "-dlq"):
        assert part in text
    await create_queues(sqs, name, visibility_s=60, max_receives=3)
    assert ["(maxReceiveCount)" in f.text for f in await check_queue(sqs, name, visibility_s=60)] == [
        False,
        True,
        False,
    ]
