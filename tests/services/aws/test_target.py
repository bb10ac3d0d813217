"""A queue of SQS as a target of effects."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.sources import load
from holdfast.ports.target import OutgoingEffect
from holdfast.services.aws.queue import SqsQueue
from holdfast.services.aws.sqs import Sqs
from holdfast.system.clock import SystemClock
from holdfast.wiring.services import Services
from holdfast.wiring.target_urls import TargetUrls


@pytest.mark.parametrize("queue_name", ["fifo"], indirect=True)
async def test_a_repeated_effect_is_dropped_by_a_fifo_queue_that_keeps_the_order_of_its_key(
    server: str, sqs: Sqs, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = (await sqs.queue_url(queue_name)).replace("http://", "sqs+http://")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    async with Services(load()) as services:
        target = TargetUrls(services)(url)
        first, second = (
            OutgoingEffect(f"ID{n}", "", "gate", b'{"n":%d}' % n, "cameras/1", f"0:{n}") for n in (1, 2)
        )
        await target.take([first])
        await target.take([first, second])
        await target.take([second])
    queue = SqsQueue(sqs, queue_name, SystemClock(), poll_max_s=1.0)
    found = []
    while deliveries := await queue.receive(10, 0.0, 30.0, "reader"):
        found += [(each.body, each.attributes["id"]) for each in deliveries]
        await queue.delete([each.receipt for each in deliveries])
    assert found == [(b'{"n":1}', "ID1"), (b'{"n":2}', "ID2")]
