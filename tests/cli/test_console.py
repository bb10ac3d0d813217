"""``holdfast console``, ``console-token``, and ``node --console``, as real processes."""

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from holdfast.console.tokens import read
from tests.cli.test_node import APP
from tests.command_line import Holdfast

PATIENCE_S = 60.0


async def run(*arguments: str, says: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start a command, and return the line in which it says where its console is."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(says):
                return process, line.removeprefix(says).strip()
    raise AssertionError(f"it has ended with {await process.wait()} and never said {says!r}")


async def end(process: asyncio.subprocess.Process) -> int:
    """Have a process end; returns its exit code."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("console", "--port", "0"),
        ("node", "app:app", "--console", "--slots", "1"),
        ("node", "app:app", "--console", "--nodes", "1", "--slots", "1"),
    ],
    ids=" ".join,
)
async def test_the_printed_address_opens_a_console_that_steers(
    place: Path, arguments: tuple[str, ...]
) -> None:
    (place / "app.py").write_text(APP)
    process, address = await run(*arguments, says="console: ")
    try:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            page = await (await session.get(address)).text()
        assert "<h1>Overview</h1>" in page
        assert re.search(r'class="caller">local\s*<', page)
    finally:
        code = await end(process)
    # A node that is told to end before it has begun to listen for that ends by the signal.
    assert code in (0, signal.SIGTERM)


def test_a_console_that_strangers_could_use_isnt_served(holdfast: Holdfast) -> None:
    ended = holdfast("console", "--host", "0.0.0.0", "--port", "0")
    assert ended.code == 2
    assert "--tokens FILE" in ended.err


def test_a_token_is_printed_once_and_kept_as_its_digest(place: Path, holdfast: Holdfast) -> None:
    made = holdfast("console-token", "alice", "--tokens", "tokens", "--operate")
    assert made.code == 0
    [token] = read(place / "tokens")
    assert (token.name, sorted(token.rights)) == ("alice", ["operate", "read"])
    assert made.out.strip() not in (place / "tokens").read_text()
    assert holdfast("console-token", "a b", "--tokens", "tokens").code == 2


def test_a_port_that_is_taken_is_told_with_what_chooses_another(holdfast: Holdfast) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = holdfast("console", "--port", str(port))
    assert done.code == 2
    assert str(port) in done.err
    assert "--port" in done.err
