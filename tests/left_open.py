"""Each test closes what it opens: a socket left open is told of at once, in the test that opened it.

Else the garbage collector finds it some day, in the midst of a test that has nothing to do with it.
"""

import asyncio
import functools
import gc
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from simulator.servers import Server

FDS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")

PATIENCE_S, LOOK_S = 5.0, 0.05

BEFORE = pytest.StashKey[set[int]]()

_kept: set[int] = set()
"""Those of servers and the like, which several tests share."""


def sockets() -> dict[int, int]:
    """The open sockets of this process, by inode, with their file descriptors."""
    found = {}
    for name in os.listdir(FDS):  # noqa: PTH208 (twice a test)
        try:
            about = os.fstat(int(name))
        except OSError:  # the folder's own, and those of other threads
            continue
        if stat.S_ISSOCK(about.st_mode):
            found[about.st_ino] = int(name)
    return found


def words(fd: int) -> str:
    """Which socket that is, and what of asyncio holds it."""
    with socket.socket(fileno=os.dup(fd)) as shared:
        said = repr(shared)
    holders = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), (asyncio.BaseTransport, asyncio.AbstractServer))
        and f"fd={fd}" in repr(each)
    ]
    return f"{said} {holders or ''}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    before = sockets()
    try:
        return (yield)
    finally:
        _kept.update(sockets().keys() - before.keys())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    part = looked_at(item)
    if BEFORE not in part.stash:
        part.stash[BEFORE] = set(sockets())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    part = looked_at(item)
    if nextitem is None or looked_at(nextitem) is not part:
        before = part.stash[BEFORE]
        del part.stash[BEFORE]
        if told := left_open(before | _kept):
            pytest.fail("\n".join(["left open:", *told]), pytrace=False)


def looked_at(item: pytest.Item) -> pytest.Item | pytest.Module:
    """What is looked at as a whole: a test, or a module whose tests share something. There a server of the
    module may be at work on what one test has done while the next one runs."""
    module = item.getparent(pytest.Module)
    return module if module is not None and module.nodeid in _sharing(item.session) else item


@functools.cache
def _sharing(session: pytest.Session) -> set[str]:
    """Modules whose tests share something."""
    return {item.nodeid.partition("::")[0] for item in session.items if _shares(item)}


def _shares(item: pytest.Item) -> bool:
    found: Any = getattr(item, "_fixtureinfo", None)  # pytest has no public way to ask
    return found is not None and any(
        fixtures[-1].scope in ("module", "class", "package") for fixtures in found.name2fixturedefs.values()
    )


def left_open(before: set[int]) -> list[str]:
    """What is open beyond the sockets with these inodes. What is garbage is collected, and what it tells then
    is told; what finalizers close in silence is no fault."""
    if not sockets().keys() - before:
        return []
    told: list[str] = []
    usual, sys.unraisablehook = sys.unraisablehook, lambda found: told.append(str(found.exc_value))
    try:
        gc.collect()
    finally:
        sys.unraisablehook = usual
    known, given_up_at = before | lifelines(), time.monotonic() + PATIENCE_S
    while sockets().keys() - known and not told and time.monotonic() < given_up_at:
        threading.Event().wait(LOOK_S)  # for a thread that is about to close what it used
    return told + [words(fd) for inode, fd in sockets().items() if inode not in known]


def lifelines() -> set[int]:
    """What servers that tests share hold to be ended with this process: new ones at each restart."""
    servers = [each for each in gc.get_objects() if issubclass(type(each), Server) and each.lifeline]
    return {os.fstat(end.fileno()).st_ino for server in servers for end in server.lifeline}
