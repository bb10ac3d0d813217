"""The spans of commands: of each try, and of each command that has ended."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest

from holdfast.cluster.tracer import Tracer
from holdfast.devices.ports.device import Command, CommandRefused
from holdfast.devices.rules.device_queue import CommandState, Patience
from holdfast.devices.services.memory.device import MemoryDevices
from holdfast.errors import Unavailable
from holdfast.ports.tracing import SpanRecord
from tests.cluster.fakes import KeptSpans
from tests.devices.simulated.conftest import Site

TRACE, CAUSE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PLACE = f"00-{TRACE}-{CAUSE}-00"
PATIENCE = Patience(retry_s=1.0, retry_max_s=1.0, max_tries=2)


@pytest.fixture
def spans(site: Site) -> list[SpanRecord]:
    kept = KeptSpans()
    site.host.tracer = Tracer(kept, 1.0, site.clock)
    return kept.spans


@pytest.fixture
def taken(site: Site) -> Iterator[list[Command]]:
    """The commands that the broker took."""
    took, commands = site.broker.take, list[Command]()

    def take(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        commands.append(command)
        took(devices, command, payload)

    with mock.patch.object(site.broker, "take", take):
        yield commands


def outline(spans: list[SpanRecord]) -> list[tuple[str, str]]:
    """Names and errors."""
    return [(span.name, span.error) for span in spans]


async def test_a_command_is_sent_and_answered_in_the_caller_s_trace(
    site: Site, spans: list[SpanRecord], taken: list[Command]
) -> None:
    await site.start(1)
    entry = await site.run("d0", traceparent=PLACE)
    await site.run("d0")
    assert outline(spans) == [("publish doors", ""), ("process doors", "")]
    assert {(span.trace_id, span.parent_id) for span in spans} == {(TRACE, CAUSE)}
    sent, answered = spans
    assert [command.traceparent for command in taken] == [f"00-{TRACE}-{sent.span_id}-01", ""]
    assert entry.published_at is not None
    assert entry.closed_at is not None
    assert answered.start_ns == int(entry.published_at * 1e9)
    assert answered.end_ns == int(entry.closed_at * 1e9)
    assert answered.attributes["holdfast.command"] == entry.id


async def test_each_try_has_a_span_and_a_command_that_failed_says_why(
    site: Site, spans: list[SpanRecord]
) -> None:
    await site.start(0, patience=PATIENCE)
    site.silence("d0")
    await site.until(await site.add("d0", traceparent=PLACE), CommandState.FAILED)
    assert outline(spans) == [
        ("publish doors", ""),
        ("publish doors", ""),
        ("process doors", "no answer in all tries"),
    ]
    assert [span.attributes["holdfast.attempt"] for span in spans] == [1, 2, 2]
    assert spans[-1].failed


async def test_a_refused_command_fails_and_the_log_names_its_trace(
    site: Site, spans: list[SpanRecord]
) -> None:
    await site.start(1, patience=PATIENCE)

    def refuse(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        devices.receive(CommandRefused(command.device, command.id, "too large", final=True))

    with mock.patch.object(site.broker, "take", refuse):
        await site.until(await site.add("d0", traceparent=PLACE), CommandState.FAILED)
    assert outline(spans) == [("publish doors", "too large"), ("process doors", "too large")]
    said = "command refused by the broker"
    (line,) = [fields for level, event, fields in site.log.entries if event == said]
    assert (line["trace_id"], line["span_id"]) == (TRACE, spans[0].span_id)


async def test_a_try_that_was_not_sent_has_a_span_that_says_why(site: Site, spans: list[SpanRecord]) -> None:
    await site.start(1)
    published, away = MemoryDevices.publish, ["the broker is away"]

    def publish(devices: MemoryDevices, command: Command) -> None:
        if away:
            raise Unavailable(away.pop())
        published(devices, command)

    with mock.patch.object(MemoryDevices, "publish", publish):
        await site.run("d0", traceparent=PLACE)
    tries = [("publish doors", "the broker is away"), ("publish doors", "")]
    assert outline(spans) == [*tries, ("process doors", "")]


async def test_a_try_that_was_not_confirmed_before_its_shard_went_has_a_span_that_says_so(
    site: Site, spans: list[SpanRecord]
) -> None:
    await site.start(1, shards=1)
    taken = asyncio.Event()

    def take(devices: MemoryDevices, command: Command, payload: bytes) -> None:
        taken.set()

    with mock.patch.object(site.broker, "take", take):
        await site.add("d0", traceparent=PLACE)
        await taken.wait()
        await site.dispatcher.served.disown(0)
    assert outline(spans) == [("publish doors", "the connection to the broker ended first")]


async def test_an_expired_command_has_a_span(site: Site, spans: list[SpanRecord]) -> None:
    await site.start(0, patience=PATIENCE)
    site.silence("d0")
    await site.add("d0")  # stands before it
    late = await site.add("d0", traceparent=PLACE, expires_in_s=0.5)
    await site.until(late, CommandState.EXPIRED)
    assert outline(spans) == [("process doors", "expired")]


async def test_a_place_that_is_none_is_left_out(site: Site, spans: list[SpanRecord]) -> None:
    await site.start(1)
    entry = await site.run("d0", traceparent="nonsense")
    assert entry.traceparent == ""
    assert spans == []


async def test_a_node_without_traces_passes_the_place_on(site: Site, taken: list[Command]) -> None:
    await site.start(1)
    await site.run("d0", traceparent=PLACE)
    assert [command.traceparent for command in taken] == [PLACE]
