"""The queue on SQS keeps the promises of its port, on two servers that speak SQS, standard and FIFO."""

import pytest

from holdfast.adapters.aws.queue import SqsQueue
from holdfast.adapters.aws.sqs import Sqs
from holdfast.ports.clock import Clock
from holdfast.testing.conformance import QueueConformance


class SqsConformance(QueueConformance):
    tick_s = 1.0  # visibility is counted in whole seconds

    @pytest.fixture
    def queue(self, sqs: Sqs, queue_name: str, clock: Clock) -> SqsQueue:
        return SqsQueue(sqs, queue_name, clock, poll_max_s=2.0)

    @pytest.fixture
    def other_queue(self, queue: SqsQueue, sqs: Sqs, queue_name: str, clock: Clock) -> SqsQueue:
        return SqsQueue(sqs, queue_name, clock, poll_max_s=2.0)


@pytest.mark.parametrize("server", ["fauxqs", "moto"], indirect=True)
@pytest.mark.parametrize("queue_name", ["standard", "fifo"], indirect=True)
class TestSqsQueue(SqsConformance):
    pass
