"""The client of HAProxy's runtime API: large changes take several calls, and each call is proven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.stdlib import get_logger

from holdfast.errors import Unavailable
from holdfast.gateway.haproxy import admin
from holdfast.gateway.haproxy.binary import BUFFER_BYTES_MIN, Build
from holdfast.gateway.haproxy.config import ERRORS, HaproxyFiles, error_page, render
from holdfast.gateway.haproxy.process import HaproxyProcess
from holdfast.system.clock import SystemClock
from tests.gateway.haproxy.test_config import settings

LONG = {f"/process/{n}-{'%E4' * 480}": "s1" for n in range(40)}
"""Entries far larger than HAProxy's buffer."""


@pytest.fixture
async def haproxy(tmp_path: Path, build: Build) -> AsyncIterator[HaproxyFiles]:
    """The files of a running HAProxy with empty maps."""
    made = msgspec.structs.replace(settings(tmp_path, build), listeners=())
    files = made.files
    for file in (files.routes, files.recent, files.refused, files.rates):
        file.write_text("")
    for status in ERRORS:
        files.error(status).write_text(error_page(status))
    text = render(made).replace("frontend clients", f"frontend clients\n    bind unix@{tmp_path}/c.sock")
    files.config.write_text(text)
    child = await HaproxyProcess.start(build, files, (), {}, SystemClock(), get_logger())
    yield files
    child.kill()
    await child.ended


async def held(files: HaproxyFiles, name: Path) -> dict[str, str]:
    """Return the entries of a map."""
    answer = await admin.ask(files.admin, f"show map {name}")
    entries = [line.split() for line in answer.splitlines()]
    return {key: value for _, key, value in entries}


async def test_many_entries_are_sent_in_several_calls(haproxy: HaproxyFiles) -> None:
    await admin.add(haproxy.admin, haproxy.routes, LONG.items())
    assert await held(haproxy, haproxy.routes) == LONG
    changed = dict.fromkeys(LONG, "s2")
    await admin.change(haproxy.admin, haproxy.routes, changed)
    assert await held(haproxy, haproxy.routes) == changed
    await admin.rewrite(haproxy.admin, haproxy.routes, [*LONG.items(), ("/process/short", "s2")])
    assert await held(haproxy, haproxy.routes) == {**LONG, "/process/short": "s2"}


async def test_an_error_of_haproxy_is_raised(haproxy: HaproxyFiles) -> None:
    with pytest.raises(Unavailable, match="too big"):
        await admin.add(haproxy.admin, haproxy.routes, [(f"/process/{'x' * 20_000}", "s1")])
    with pytest.raises(Unavailable, match="entry not found"):
        await admin.change(haproxy.admin, haproxy.routes, {"/process/a": "s1"})
    assert await held(haproxy, haproxy.routes) == {}


async def test_a_call_that_haproxy_did_not_read_to_its_end_fails(tmp_path: Path) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_unix_server(end, tmp_path / "admin.sock"):
        with pytest.raises(Unavailable, match="not read all"):
            await admin.add(tmp_path / "admin.sock", Path("routes"), [("/process/a", "s1")])


async def test_no_call_is_longer_than_documented_buffers(tmp_path: Path) -> None:
    """HAProxy's manual limits a line with all its commands; some of its versions take more."""
    calls: list[bytes] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(await reader.readline())
        writer.write(b"2.8.25\n\n")
        writer.close()

    async with await asyncio.start_unix_server(respond, tmp_path / "admin.sock"):
        await admin.add(tmp_path / "admin.sock", Path("routes"), LONG.items())
    assert sum(line.count(b"add map") for line in calls) == len(LONG)
    assert max(map(len, calls)) <= BUFFER_BYTES_MIN / 2 + 1
