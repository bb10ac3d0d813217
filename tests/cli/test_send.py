"""``holdfast send``: messages to streams, from the command line, files and standard input."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import exits
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.queue import Delivery
from holdfast.wiring.services import Services
from tests.command_line import Arrange, Holdfast

METERS = """
from dataclasses import dataclass

from holdfast import App

app = App("meters")

@dataclass
class Reading:
    meter: str
    number: int
    kwh: float = 0.0

@app.stream("readings", key="meter", seq="number", message=Reading)
def reading(message, context): ...

@app.stream("frames", key="camera", seq="frame", message=bytes)
def frame(message, context): ...
"""


@pytest.fixture
def meters(place: Path, request: pytest.FixtureRequest) -> str:
    """An app, as the command line names it."""
    name = f"meters_{request.node.name}".translate({ord(c): "_" for c in "[]-. "})
    (place / f"{name}.py").write_text(METERS)
    return f"{name}:app"


def waiting(stream: str) -> Callable[[Services], Awaitable[list[Delivery]]]:
    """What lies in a stream's queue."""

    async def look(services: Services) -> list[Delivery]:
        return await services.queue(stream).receive(100, 0, 60, "test")

    return look


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def test_to_send_makes_nothing_but_the_queue(holdfast: Holdfast, place: Path) -> None:
    done = holdfast("send", "readings", "{}", "--set", f"coordinator_url=sqlite:///{place}/nodes.db")
    assert (done.code, done.err) == (exits.OK, "")
    assert not (place / "nodes.db").exists()


def test_a_closed_standard_input_is_named(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as after ``<&-``
    refused = holdfast("send", "readings")
    assert refused.code == exits.USAGE
    assert "standard input is closed" in refused.err


def test_a_message_is_sent_as_it_is(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    done = holdfast("send", "readings", '{"meter": "m0",  "number": 123456789012345678901234567890}')
    assert (done.code, done.out) == (exits.OK, "1 message sent to readings\n")
    (message,) = arrange(waiting("readings"))
    assert message.body == b'{"meter": "m0",  "number": 123456789012345678901234567890}'


def test_key_seq_and_run_may_be_said_beside_it(
    holdfast: Holdfast, arrange: Arrange[Any], meters: str
) -> None:
    done = holdfast("send", "readings", '{"kwh": 1.5}', "--key", "m0", "--seq", "7", "--app", meters)
    assert done.code == exits.OK, done.err
    (message,) = arrange(waiting("readings"))
    assert message.body == b'{"kwh":1.5,"meter":"m0","number":7}'


def test_send_takes_a_file_of_raw_bytes(
    holdfast: Holdfast, arrange: Arrange[Any], meters: str, place: Path
) -> None:
    (place / "17.jpg").write_bytes(b"\xff\xd8\n\n")
    done = holdfast(
        "send", "frames", "--raw", "--file", "17.jpg", "--key", "c", "--seq", "17", "--app", meters
    )
    assert done.code == exits.OK, done.err
    (message,) = arrange(waiting("frames"))
    assert message.body == b"\xff\xd8\n\n"
    assert message.attributes == {"camera": "c", "frame": "17"}


def test_send_takes_lines_of_standard_input(
    holdfast: Holdfast, arrange: Arrange[Any], meters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b'{"meter": "m%d", "number": 1}' % n for n in range(30)]
    standard_input(monkeypatch, b"\n".join([*lines, b"", lines[0]]))
    done = holdfast("send", "readings", "--lines", "--app", meters, "--json")
    assert done.lines == [{"stream": "readings", "sent": 31}]
    assert [message.body for message in arrange(waiting("readings"))] == [*lines, lines[0]]


@pytest.mark.slow
def test_lines_are_sent_as_they_come(place: Path, arrange: Arrange[Any]) -> None:
    """What has come is sent, though the input has not ended."""
    command = [sys.executable, "-m", "holdfast", "send", "readings", "--lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place) as child:
        assert child.stdin is not None
        child.stdin.write(b'{"meter": "m0"}\n{"meter"')
        child.stdin.flush()

        async def first(services: Services) -> list[Delivery]:
            while not (some := await services.queue("readings").receive(10, 20, 60, "test")):
                pass
            return some

        assert [message.body for message in arrange(first)] == [b'{"meter": "m0"}']
        out, _ = child.communicate(b': "m1"}', timeout=60)
    assert out == b"2 messages sent to readings\n"
    assert child.returncode == exits.OK


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--lines"]], ids=["whole", "lines"])
def test_one_interrupt_ends_a_wait_for_input(place: Path, more: list[str]) -> None:
    command = [sys.executable, "-m", "holdfast", "send", "readings", "--raw", *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        try:
            child.stdin.write(bytes(1 << 20))  # more than a pipe holds: it is read
            child.stdin.flush()
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == exits.INTERRUPTED
            assert child.stderr.read() == b""
        finally:
            child.kill()


def test_a_stream_that_no_node_runs_is_warned_of(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    async def join(services: Services) -> None:
        node = Member("m", "node-a", "http://127.0.0.1:1", Load(0, 1, 0, queues=("frames", "alerts")))
        await services.coordinator().join(node, 60.0)

    assert "no node runs" not in holdfast("send", "frms", "{}").err, "nobody knows yet"
    arrange(join)
    assert "no node runs" not in holdfast("send", "frames", "{}").err
    warned = holdfast("send", "frms", "{}")
    assert (warned.code, warned.out) == (exits.OK, "1 message sent to frms\n")
    assert "no node runs a stream 'frms'" in warned.err
    assert "alerts, frames" in warned.err
    assert len(arrange(waiting("frms"))) == 2


@pytest.mark.parametrize(
    "arguments, code, complaint",
    [
        (["readings", "{"], exits.FAILED, "the body can't be read"),
        (["readings", "{}", "--file", "x"], exits.USAGE, "given twice"),
        (["readings", "--file", "missing.json"], exits.USAGE, "missing.json"),
        (["readings", "{}", "--lines", "--seq", "1"], exits.USAGE, "leave them out with --lines"),
        (["reading", "{}", "--app", "APP"], exits.USAGE, "declares no stream 'reading'"),
        (["readings", '{"meter": "m"}', "--app", "APP"], exits.FAILED, "number"),
    ],
)
def test_send_refuses_what_the_stream_can_t_take(
    holdfast: Holdfast, arrange: Arrange[Any], meters: str, arguments: list[str], code: int, complaint: str
) -> None:
    done = holdfast("send", *[meters if argument == "APP" else argument for argument in arguments])
    assert done.code == code
    assert complaint in done.err
    assert arrange(waiting("readings")) == []


def test_the_line_that_can_t_be_sent_is_named(
    holdfast: Holdfast, arrange: Arrange[Any], meters: str, place: Path
) -> None:
    (place / "some.jsonl").write_text('{"meter": "m", "number": 1}\n{"meter": "m"}\n')
    done = holdfast("send", "readings", "--lines", "--file", "some.jsonl", "--app", meters)
    assert done.code == exits.FAILED
    assert "message 2: field 'number' is missing" in done.err
    assert "0 messages before it were sent" in done.err
    assert arrange(waiting("readings")) == []
