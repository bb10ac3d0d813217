"""A client of HAProxy's runtime API, which changes maps and servers while HAProxy runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import aiohttp

from holdfast.errors import Unavailable

ENTRIES = 128
"""The most map entries in one call. HAProxy serves clients between calls."""

ORDER_BYTES = 8 * 1024
"""The most bytes of a call with several entries: half of HAProxy's smallest buffer."""

PROOF = "show version"
"""The last command of each call. Its answer proves that HAProxy has read the commands before it."""

_PROVEN = re.compile(r"(?:(.*)\n)?\d+\.\d+\S*", re.DOTALL)

TIMEOUT_S = 10.0


async def ask(socket: Path, command: str) -> str:
    """Return HAProxy's answer to a command, or to several separated by ``;``. Raises Unavailable."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(f"{command}\n".encode())
                return (await reader.read()).decode(errors="replace").strip()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        cause = str(error) or f"no answer within {TIMEOUT_S:.0f} s"
        raise Unavailable(f"HAProxy does not answer at {socket.name}: {cause}") from error


async def order(socket: Path, command: str) -> None:
    """Send commands whose answer is empty on success. Raises Unavailable with any other answer, and if
    HAProxy ended before it read them all."""
    answer = await ask(socket, f"{command};{PROOF}")
    proven = _PROVEN.fullmatch(answer)
    if proven is None or (proven[1] or "").strip():
        cause = answer or "it has not read all of the commands"
        raise Unavailable(f"HAProxy refused {command.split()[:2]}: {cause}")


async def add(socket: Path, name: Path, entries: Iterable[tuple[str, str]], version: str = "") -> None:
    """Add entries to the map ``name``, or to its prepared ``version``."""
    for some in _batches(f"add map {version} {name} {key} {value}" for key, value in entries):
        await order(socket, some)


async def change(socket: Path, name: Path, entries: Mapping[str, str]) -> None:
    """Change existing entries of the map ``name``."""
    for some in _batches(f"set map {name} {key} {value}" for key, value in entries.items()):
        await order(socket, some)


async def rewrite(socket: Path, name: Path, entries: Iterable[tuple[str, str]]) -> None:
    """Replace the map ``name`` as a whole."""
    answer = await ask(socket, f"prepare map {name}")
    version = answer.rpartition(" ")[2]
    if not version.isdigit():
        raise Unavailable(f"HAProxy refused to prepare a map: {answer}")
    await add(socket, name, entries, f"@{version}")
    await order(socket, f"commit map @{version} {name}")


async def scrape(socket: Path) -> bytes:
    """Return HAProxy's metrics, for Prometheus. Raises Unavailable."""
    scopes = "&".join(f"scope={scope}" for scope in ("global", "frontend", "server"))
    url = f"http://haproxy/metrics?{scopes}&no-maint"
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client,
            client.get(url, timeout=aiohttp.ClientTimeout(TIMEOUT_S), raise_for_status=True) as response,
        ):
            return await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"HAProxy's metrics can't be read: {error}") from error


def _batches(commands: Iterable[str]) -> Iterator[str]:
    """Join commands to calls that fit HAProxy's buffer. A command that is too long is sent alone, and
    refused."""
    some: list[str] = []
    size = len(PROOF)
    for command in commands:
        if some and (len(some) == ENTRIES or size + 1 + len(command.encode()) > ORDER_BYTES):
            yield ";".join(some)
            some, size = [], len(PROOF)
        some.append(command)
        size += 1 + len(command.encode())
    if some:
        yield ";".join(some)
