"""An app for nodes that are to be hurt: its tasks say what to do to their slot."""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast import App
from holdfast.common.retry import Backoff
from holdfast.rules.tasks.task import State
from holdfast.tasks.handler import Job

TIMEOUT_S = 1.5

LEAK = "redis://user:hunter2@host and password='hunter2' and Authorization: Bearer hunter2"

app = App("hurt")


class Deed(msgspec.Struct):
    """What a task does; ``note`` is a file in which each attempt that begins is noted."""

    do: str = ""
    note: str = ""
    seconds: float = 0.0


def hang_in_c() -> None:
    lock, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)  # for ever, with the lock of the interpreter held, whatever signal comes


def hang_in_a_call() -> None:
    os.read(os.pipe()[0], 1)


def ignore_everything() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            threading.Event().wait()
        except BaseException:  # noqa: BLE001
            continue


def fork_and_hang() -> None:
    if os.fork() == 0:
        threading.Event().wait()
    threading.Event().wait()


def eat() -> None:
    bytearray(1 << 30)


def flood() -> None:
    for _ in range(20_000):  # far more than a pipe holds
        sys.stdout.write("x" * 100 + "\n")


DEEDS: dict[str, Any] = {
    "fail": lambda: (_ for _ in ()).throw(ValueError("told to fail")),
    "hang in c": hang_in_c,
    "hang in a call": hang_in_a_call,
    "ignore": ignore_everything,
    "fork": fork_and_hang,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "eat": eat,
    "flood": flood,
}

ENDS = [
    ("hang in c", State.TIMEOUT, "hang_in_c"),
    ("hang in a call", State.TIMEOUT, "hang_in_a_call"),
    ("ignore", State.TIMEOUT, "ignore_everything"),
    ("fork", State.TIMEOUT, "fork_and_hang"),
    ("segfault", State.FAILED, "SIGSEGV"),
    ("exit", State.FAILED, "exited with code 3"),
    ("sys.exit", State.FAILED, "SystemExit"),
    ("eat", State.FAILED, "MemoryError"),
    ("junk", State.FAILED, "JSON"),
    ("odd words", State.FAILED, "ValueError: odd"),
    ("flood", State.SUCCEEDED, ""),
]
"""What comes of them, and what is said of it."""


def run(deed: Deed, job: Job) -> Any:
    if deed.note:
        with Path(deed.note).open("a") as notes:
            notes.write(f"{job.task_id} {job.attempt} {job.epoch}\n")
    if deed.do == "fail once" and job.attempt == 1:
        raise ValueError("told to fail once")
    if deed.do == "hang once" and job.attempt == 1:
        threading.Event().wait()
    if deed.do == "odd words":
        job.progress(0.5, "odd \udc80")
        job.log.info("odd \udc80", odd="\udc80")
        raise ValueError("odd \udc80 words")
    if deed.do == "tell secrets":
        job.progress(0.5, LEAK)
        job.log.error(LEAK, place=[LEAK])
        sys.stdout.write(f"{LEAK}\n")
        threading.Event().wait(0.3)  # a beat tells of it
        raise ValueError(LEAK)
    if deed.do == "junk":
        return object()
    if deed.do in DEEDS:
        DEEDS[deed.do]()
    end = time.monotonic() + deed.seconds
    while time.monotonic() < end:
        job.progress(1 - (end - time.monotonic()) / deed.seconds, "at it")
        threading.Event().wait(0.02)
    return {"did": deed.do}


app.task("deed", body=Deed, timeout_s=TIMEOUT_S, tries=1, memory_mb=400)(run)
app.task("tried", body=Deed, timeout_s=TIMEOUT_S, tries=3, backoff=Backoff(0.1, 0.2), memory_mb=400)(run)
app.task("long", body=Deed, timeout_s=60.0, hold="lease", lease_s=4.0, tries=3, backoff=Backoff(0.1, 0.2))(
    run
)
app.task("text", body=str, timeout_s=TIMEOUT_S, tries=1)(lambda text, job: text.upper())
