"""An app whose handlers do what handlers must not."""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import App, Context, StreamHandler
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.registration.services import Service
from holdfast.services.memory.objects import MemoryObjects

app = App("rogue")
not_an_app = "text"

SLEEPER = [sys.executable, "-c", "import signal\nwhile True: signal.pause()"]


def say_nothing() -> None:
    pass


announce: Callable[[], object] = say_nothing
"""Tells that a deed is under way. Deeds that end their process or never end call it themselves, so that
whoever hears of it finds them at it."""


def say_where() -> None:
    announce()


def spin() -> None:
    announce()
    while True:
        pass


def wait_for_ever() -> None:
    announce()
    threading.Event().wait()


def hang_in_c_with_the_lock_held() -> None:
    announce()
    while True:
        ctypes.PyDLL(None).pause()


def ignore_what_can_be_ignored() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    spin()


def crash() -> None:
    announce()
    ctypes.string_at(0)


def leave() -> None:
    announce()
    os._exit(3)


def exit_politely() -> None:
    sys.exit("so long")


def fork_and_return() -> None:
    """Return twice."""
    os.fork()


def fork_and_exit() -> None:
    if os.fork() == 0:
        sys.exit("the child")


def interrupt() -> None:
    raise KeyboardInterrupt


def allocate_without_end() -> None:
    hoard = []
    while True:
        hoard.append(bytes(1 << 24))  # allocated, and not touched page by page: that may take seconds


def scatter() -> None:
    """Free much in small pieces, below one that stays in use: a heap ends with what is in use."""
    pieces = [bytes(100_000) for _ in range(1500)]
    in_use.append(pieces[-1])


in_use: list[bytes] = []


def share_without_end() -> None:
    hoard = []
    while True:
        hoard.append(mmap.mmap(-1, 1 << 20))
        hoard[-1].write(bytes(1 << 20))


class Metered(MemoryObjects):
    """Counts what is asked of it."""

    def __init__(self, url: str, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    async def get(self, url: str) -> bytes:
        self.meter.count("s3", "GetObject")
        return b""


class MeteredService(Service):
    """Opens them."""

    def slot_objects(self, url: str, meter: Meter) -> Objects:
        return Metered(url, meter)


metered = MeteredService()


@app.stream("rogue")
class Rogue(StreamHandler[dict[str, Any]]):
    """Calls the function ``do``, which writes its process ids to ``announce``."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.state = state or b""
        self.last_word: dict[str, Any] = {}

    def process(self, message: dict[str, Any], context: Context) -> Any:
        self.last_word = message.get("last_word", {})
        pids = [os.getpid()]
        if message.get("grandchild"):
            self.grandchild = subprocess.Popen(SLEEPER)
            pids.append(self.grandchild.pid)
        global announce  # noqa: PLW0603 (the deeds are functions of this module)
        text = " ".join(map(str, pids))
        announce = (
            partial(Path(message["announce"]).write_text, text) if "announce" in message else say_nothing
        )
        if "do" in message:
            globals()[message["do"]]()
        if "progress_until" in message:
            while not Path(message["progress_until"]).exists():
                context.progress("step \N{SNOWMAN}")
        if "fetch" in message:
            context.fetch(message["fetch"])
        if "print" in message:
            print(message["print"])  # noqa: T201
        if message.get("terminate"):
            self.grandchild.terminate()
            return self.grandchild.wait()
        return "x" * message.get("size", 0)

    def snapshot(self) -> bytes:
        return self.state

    def close(self) -> None:
        if "announce" in self.last_word:
            Path(self.last_word["announce"]).write_text("closed")
        if "do" in self.last_word:
            globals()[self.last_word["do"]]()
