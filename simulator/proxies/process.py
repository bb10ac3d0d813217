"""A proxy in a process of its own, commanded over its standard input.

Each line in is one command, each line out its answer, both JSON: ``{"type":"rules","rules":[…]}``,
``{"type":"outage","on":true}``, ``{"type":"tell"}``. The answer says what has happened so far. The process
ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import msgspec

from simulator.proxies.http import HttpFaults
from simulator.proxies.plan import Rule, Struck
from simulator.proxies.s3 import S3Faults
from simulator.proxies.sqs import SqsFaults

KINDS = {"http": HttpFaults, "s3": S3Faults, "sqs": SqsFaults}
LINE_BYTES_MAX = 1 << 26
LOG_LINES = 1000


class SetRules(msgspec.Struct, tag="rules"):
    """Go by these rules from now on."""

    rules: list[Rule]


class SetOutage(msgspec.Struct, tag="outage"):
    """Begin or end an outage."""

    on: bool


class Tell(msgspec.Struct, tag="tell"):
    """Say what has happened."""


Command = SetRules | SetOutage | Tell


class FaultReport(msgspec.Struct):
    """What has happened so far; as the attributes of the proxies. ``log`` holds the newest lines, and
    ``struck`` counts all faults by name."""

    endpoint: str
    calls: dict[str, int]
    messages: dict[str, int] = {}
    empty_receives: int = 0
    struck: dict[str, int] = {}
    log: list[Struck] = []


async def serve(faults: HttpFaults) -> None:
    """Run a proxy as standard input commands."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    decode = msgspec.json.Decoder(Command).decode
    async with faults:
        _say(faults)
        async for line in lines:
            match decode(line):
                case SetRules(rules):
                    faults.plan.rules = rules
                case SetOutage(on):
                    await faults.accept() if not on else faults.refuse()
                case Tell():
                    pass
            _say(faults)


def _say(faults: HttpFaults) -> None:
    struck: dict[str, int] = {}
    for line in faults.plan.log:
        struck[line.fault.value] = struck.get(line.fault.value, 0) + 1
    told = FaultReport(faults.endpoint, dict(faults.calls), struck=struck, log=faults.plan.log[-LOG_LINES:])
    if isinstance(faults, SqsFaults):
        told.messages, told.empty_receives = dict(faults.messages), faults.empty_receives
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.flush()


class FaultsProcess:
    """A proxy in a child process, for benchmarks that must not pay for it in their own. Used as an async
    context manager.

    Args:
        kind: ``sqs``, ``s3`` or ``http``.
        backend, rules, seed: as the proxies have them.
    """

    def __init__(self, kind: str, backend: str, rules: Iterable[Rule] = (), *, seed: int = 0) -> None:
        self.endpoint = ""
        self._args = (kind, backend, "--seed", str(seed))
        self._rules = list(rules)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "simulator.proxies",
            *self._args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        self.endpoint = (await self._hear()).endpoint
        await self.set_rules(self._rules)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def set_rules(self, rules: Iterable[Rule]) -> None:
        """Go by these rules from now on."""
        await self._ask(SetRules(list(rules)))

    async def refuse(self) -> None:
        """Begin an outage."""
        await self._ask(SetOutage(True))

    async def accept(self) -> None:
        """End an outage."""
        await self._ask(SetOutage(False))

    async def told(self) -> FaultReport:
        """What has happened so far."""
        return await self._ask(Tell())

    async def _ask(self, command: Command) -> FaultReport:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        await self._process.stdin.drain()
        return await self._hear()

    async def _hear(self) -> FaultReport:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise ConnectionError(f"the proxy ended with exit code {await self._process.wait()}")
        return msgspec.json.decode(line, type=FaultReport)
