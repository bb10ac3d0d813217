"""The proxy as a process of its own."""

from uuid import uuid4

import aiohttp
import pytest

from simulator.proxies import CallFault, FaultsProcess, Rule, Struck
from tests.simulator.proxies.conftest import Refused, Sqs


@pytest.mark.slow
async def test_a_process_is_commanded_and_tells(http: aiohttp.ClientSession, backend: str) -> None:
    rules = [Rule(fault=CallFault.THROTTLE, operation="Send*", times=1)]
    async with FaultsProcess("sqs", backend, rules, seed=3) as faults:
        sqs = Sqs(http, faults.endpoint)
        await sqs.make_queue(f"of-a-process-{uuid4().hex}")
        with pytest.raises(Refused, match="RequestThrottled"):
            await sqs.send("a")
        await sqs.send("a")
        await faults.set_rules([])
        assert await sqs.receive()
        await faults.refuse()
        with pytest.raises(aiohttp.ClientOSError):
            await sqs.receive()
        await faults.accept()
        assert not await sqs.receive()
        told = await faults.told()
    assert told.calls == {"CreateQueue": 1, "SendMessageBatch": 2, "ReceiveMessage": 2}
    assert told.messages == {"SendMessageBatch": 1, "ReceiveMessage": 1}
    assert (told.empty_receives, told.struck) == (1, {"throttle": 1})
    assert told.log == [Struck(2, "SendMessageBatch", CallFault.THROTTLE)]


@pytest.mark.slow
async def test_a_process_that_cannot_start_says_so() -> None:
    with pytest.raises(ConnectionError, match="exit code 2"):
        async with FaultsProcess("none-such", "http://127.0.0.1:9"):
            pass
