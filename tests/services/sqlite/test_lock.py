"""The write lock, as far as one process can see. More in test_processes."""

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from structlog.testing import capture_logs

from holdfast.services.sqlite import lock as module
from holdfast.services.sqlite.lock import WriteLock


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[WriteLock]:
    lock = WriteLock(tmp_path / "lock")
    yield lock
    lock.close()


def holder(**methods: Mock) -> SimpleNamespace:
    return SimpleNamespace(
        pid=7, **({"status": Mock(return_value=psutil.STATUS_STOPPED), "kill": Mock()} | methods)
    )


def test_nothing_waits_for_a_free_lock(lock: WriteLock) -> None:
    lock.acquire()
    assert lock.waited_s() == 0
    assert lock.holder() is None
    lock.break_stopped()
    lock.release()


def test_what_looks_like_a_deadlock_is_tried_again(lock: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError(errno.EDEADLK, "deadlock"), None, OSError(errno.EDEADLK, "deadlock"), None, None])

    def lockf(*_: object) -> None:
        if answer := next(answers):
            raise answer

    monkeypatch.setattr(
        module, "fcntl", SimpleNamespace(lockf=lockf, LOCK_EX=fcntl.LOCK_EX, LOCK_UN=fcntl.LOCK_UN)
    )
    lock.acquire()
    assert list(answers) == []


def test_errors_other_than_deadlocks_are_raised(lock: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    lockf = Mock(side_effect=OSError(errno.ENOLCK, "no locks available"))
    monkeypatch.setattr(module, "fcntl", SimpleNamespace(lockf=lockf, LOCK_EX=fcntl.LOCK_EX))
    with pytest.raises(OSError, match="no locks"):
        lock.acquire()
    assert lock.waited_s() == 0


@pytest.mark.parametrize(
    "status", [psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING, psutil.STATUS_TRACING_STOP]
)
def test_a_lock_holder_that_runs_is_not_killed(
    lock: WriteLock, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    process = holder(status=Mock(return_value=status))
    monkeypatch.setattr(lock, "holder", lambda: process)
    lock.break_stopped()
    process.kill.assert_not_called()


def test_a_process_that_released_the_lock_meanwhile_is_not_killed(
    lock: WriteLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder()
    monkeypatch.setattr(lock, "holder", iter([process, None]).__next__)
    lock.break_stopped()
    process.kill.assert_not_called()


def test_whoever_is_gone_meanwhile_is_no_fault(lock: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    process = holder(kill=Mock(side_effect=psutil.NoSuchProcess(7)))
    monkeypatch.setattr(lock, "holder", lambda: process)
    lock.break_stopped()


def test_who_may_not_kill_says_so(lock: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    process = holder(kill=Mock(side_effect=psutil.AccessDenied(7)))
    monkeypatch.setattr(lock, "holder", lambda: process)
    with capture_logs() as logs:
        lock.break_stopped()
    assert [(entry["pid"], entry["event"]) for entry in logs] == [(7, "cannot kill stopped process")]


@pytest.mark.skipif(sys.platform == "darwin", reason="the kernel answers in another layout there")
def test_a_holder_that_cannot_be_seen_is_none(lock: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    process, holders = Mock(side_effect=psutil.NoSuchProcess(7)), []
    monkeypatch.setattr(psutil, "Process", process)

    def lockf(*_: object) -> None:
        holders.append(lock.holder())

    def held(fd: int, command: int, asked: bytes) -> bytes:
        return struct.pack("hhqqi4x", int(fcntl.F_WRLCK), os.SEEK_SET, module.WRITE, 1, 7)

    monkeypatch.setattr(module, "fcntl", SimpleNamespace(**vars(fcntl) | {"lockf": lockf, "fcntl": held}))
    lock.acquire()
    process.assert_called_with(7)
    assert {*holders} == {None}
