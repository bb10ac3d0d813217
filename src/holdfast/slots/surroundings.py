"""The shared state of a process that runs tasks, such as its working directory: restored after each task, so
that no task finds changes of another."""

from __future__ import annotations

import contextlib
import importlib
import locale
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LEFT_OPEN_MAX = 4096
"""The most descriptors that tasks may leave open, up to half of the free ones."""

THREADS_MAX = 256
"""The most threads that tasks may leave running."""

LIMITS = [
    getattr(resource, name)
    for name in (
        "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE",
        "RLIMIT_NPROC", "RLIMIT_STACK",
    )
    if hasattr(resource, name)
]  # fmt: skip

SIGNALS = (
    signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM,
    signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""The signals whose handlers are restored: the ones that programs use."""

STREAMS = (1, 2)
"""The descriptors of standard output and error."""

_handler = importlib.import_module("_signal").getsignal  # without the lookup of an enum in `signal`

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Shared(NamedTuple):
    """A shared part of a process: ``read`` returns its value, and ``put`` restores a value."""

    name: str
    read: Callable[[], Any]
    put: Callable[[Any], object]


class Surroundings:
    """The state of this process, which ``restore`` restores."""

    def __init__(self) -> None:
        self._folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
        self._streams = [os.dup(number) for number in STREAMS]
        self._parts = [
            Shared("the environment", _environment, _put_environment),
            Shared("the working directory", lambda: _identity("."), lambda _: os.fchdir(self._folder)),
            Shared("the standard streams", lambda: [_identity(each) for each in STREAMS], self._put_streams),
            Shared("the umask", _umask, os.umask),
            Shared("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
            Shared(
                "the locale",
                lambda: locale.setlocale(locale.LC_ALL),
                lambda was: locale.setlocale(locale.LC_ALL, was),
            ),
            Shared("the default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
            Shared("handlers of signals", _handlers, _put_handlers),
            Shared(
                "blocked signals",
                lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                lambda was: signal.pthread_sigmask(signal.SIG_SETMASK, was),
            ),
            Shared("timers", lambda: any(signal.getitimer(timer)[0] for timer in TIMERS), _stop_timers),
            Shared(
                "the priority",
                lambda: os.getpriority(os.PRIO_PROCESS, 0),
                lambda was: os.setpriority(os.PRIO_PROCESS, 0, was),
            ),
            Shared("limits of resources", lambda: [resource.getrlimit(each) for each in LIMITS], _put_limits),
        ]
        self._modules = len(sys.modules)
        self._threads = threading.active_count() + THREADS_MAX
        self._were: dict[str, Any] = {}
        self.note()
        lowest, limit = self._lowest_free(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._descriptors = lowest + min(LEFT_OPEN_MAX, (limit - lowest) // 2)

    def note(self) -> None:
        """Note the current state as the one to restore."""
        self._were = {part.name: part.read() for part in self._parts}

    def restore(self) -> tuple[Sequence[str], Sequence[str]]:
        """Restore the changed parts. Return the restored parts, and the lost ones, which can't be restored or
        run low: with a lost part, no further task may run in this process."""
        if (modules := len(sys.modules)) != self._modules:
            self._modules = modules
            self._adopt()
        changed, lost = list[str](), list[str]()
        for part in self._parts:
            try:
                if part.read() != (was := self._were[part.name]):
                    part.put(was)
                    changed.append(part.name)
            except (OSError, ValueError, locale.Error) as error:
                lost.append(f"{part.name}: {error}")
        if self._lowest_free() > self._descriptors:
            lost.append("descriptors: too many are open")
        if threading.active_count() > self._threads:
            lost.append("threads: too many run")
        return changed, lost

    def _adopt(self) -> None:
        """Keep the settings of newly imported modules: libraries add variables, and raise the limit of
        recursion, which they need from then on."""
        self._were["the environment"] = _environment() | self._were["the environment"]
        self._were["the recursion limit"] = max(sys.getrecursionlimit(), self._were["the recursion limit"])

    def _put_streams(self, _: object) -> None:
        for copy, number in zip(self._streams, STREAMS, strict=True):
            os.dup2(copy, number)

    def _lowest_free(self) -> int:
        """Return the lowest free descriptor: open files take the lowest ones first."""
        try:
            os.close(lowest := os.dup(self._folder))
        except OSError:
            return sys.maxsize
        return lowest


def _environment() -> Mapping[bytes, bytes]:
    return dict(vars(os.environ)["_data"])  # a hundred times as fast as by its public methods


def _put_environment(was: Mapping[bytes, bytes]) -> None:
    for name in _environment().keys() - was.keys():
        del os.environb[name]
    os.environb.update(was)
    time.tzset()


def _identity(file: int | str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - a descriptor or a path
        return found.st_dev, found.st_ino
    return None


def _umask() -> int:
    os.umask(umask := os.umask(0o77))  # the only way to read it
    return umask


def _handlers() -> list[Any]:
    return [_handler(number) for number in SIGNALS]


def _put_handlers(was: list[Any]) -> None:
    for number, handler, now in zip(SIGNALS, was, _handlers(), strict=True):
        if now is not handler:
            if handler is None:
                raise ValueError(f"the handler of {number.name} wasn't set by Python")
            signal.signal(number, handler)


def _stop_timers(_: object) -> None:
    for timer in TIMERS:
        signal.setitimer(timer, 0)


def _put_limits(was: list[tuple[int, int]]) -> None:
    for limit, values in zip(LIMITS, was, strict=True):
        resource.setrlimit(limit, values)
