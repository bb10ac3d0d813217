"""Each test closes what it opens: a socket left open is told of at once, in the test that opened it.

Else the garbage collector finds it some day, in the midst of a test that has nothing to do with it.
"""

import asyncio
import gc
import os
import socket
import stat
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FDS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")

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
        if isinstance(each, asyncio.BaseTransport | asyncio.AbstractServer) and f"fd={fd}" in repr(each)
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
    item.stash[BEFORE] = set(sockets())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if told := left_open(item.stash[BEFORE] | _kept):
        pytest.fail("\n".join(["left open:", *told]), pytrace=False)


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
    return told + [words(fd) for inode, fd in sockets().items() if inode not in before]
