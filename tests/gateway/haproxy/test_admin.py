"""HAProxy's runtime API: what is said in several orders, and whether each was heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.stdlib import get_logger

from holdfast.errors import Unavailable
from holdfast.gateway.haproxy import admin
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.haproxy.buffers import BUFFER_BYTES_MIN
from holdfast.gateway.haproxy.config import ERRORS, HaproxyFiles, error_page, render
from holdfast.gateway.haproxy.process import HaproxyProcess
from holdfast.system.clock import SystemClock
from tests.gateway.haproxy.test_config import settings

LONG = {f"/process/{n}-{'%E4' * 480}": "s1" for n in range(40)}
"""Entries that have far more bytes than HAProxy's buffer."""


@pytest.fixture
async def haproxy(tmp_path: Path, build: Build) -> AsyncIterator[HaproxyFiles]:
    """The files of a HAProxy that runs, with empty maps."""
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
    """What a map holds."""
    said = await admin.ask(files.admin, f"show map {name}")
    entries = [line.split() for line in said.splitlines()]
    return {key: value for _, key, value in entries}


async def test_entries_with_many_bytes_are_told_in_several_orders(haproxy: HaproxyFiles) -> None:
    await admin.add(haproxy.admin, haproxy.routes, LONG.items())
    assert await held(haproxy, haproxy.routes) == LONG
    changed = dict.fromkeys(LONG, "s2")
    await admin.change(haproxy.admin, haproxy.routes, changed)
    assert await held(haproxy, haproxy.routes) == changed
    await admin.rewrite(haproxy.admin, haproxy.routes, [*LONG.items(), ("/process/short", "s2")])
    assert await held(haproxy, haproxy.routes) == {**LONG, "/process/short": "s2"}


async def test_what_haproxy_can_t_take_is_told(haproxy: HaproxyFiles) -> None:
    with pytest.raises(Unavailable, match="too big"):
        await admin.add(haproxy.admin, haproxy.routes, [(f"/process/{'x' * 20_000}", "s1")])
    with pytest.raises(Unavailable, match="entry not found"):
        await admin.change(haproxy.admin, haproxy.routes, {"/process/a": "s1"})
    assert await held(haproxy, haproxy.routes) == {}


async def test_an_order_that_nobody_has_heard_to_its_end_has_not_succeeded(tmp_path: Path) -> None:
    """As where HAProxy ends just then."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_unix_server(end, tmp_path / "admin.sock"):
        with pytest.raises(Unavailable, match="not heard"):
            await admin.add(tmp_path / "admin.sock", Path("routes"), [("/process/a", "s1")])


async def test_no_order_is_longer_than_documented_buffers(tmp_path: Path) -> None:
    """HAProxy's manual limits a line with all its commands; some of its versions take more."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        writer.write(b"2.8.25\n\n")
        writer.close()

    async with await asyncio.start_unix_server(hear, tmp_path / "admin.sock"):
        await admin.add(tmp_path / "admin.sock", Path("routes"), LONG.items())
    assert sum(line.count(b"add map") for line in heard) == len(LONG)
    assert max(map(len, heard)) <= BUFFER_BYTES_MIN / 2 + 1
