"""An app whose tasks do what tasks must not, and some that they may."""

import asyncio
import ctypes
import itertools
import locale
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.tasks.handler import Cancelled, Job

app = App("deeds")

SLEEPER = [sys.executable, "-c", "import signal\nwhile True: signal.pause()"]
IGNORING = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
DEAF_SLEEPER = [sys.executable, "-c", IGNORING + "while True: signal.pause()"]


def tell(body: dict[str, Any], *pids: int) -> None:
    """Write to the FIFO of the test, which so knows that this is under way."""
    if "fifo" in body:
        Path(body["fifo"]).write_text(" ".join(map(str, [os.getpid(), *pids])))


def note(body: dict[str, Any], text: str) -> None:
    """Add a line to the file of the test."""
    with Path(body["notes"]).open("a") as file:
        file.write(text + "\n")


@app.task("noop")
def noop(body: dict[str, Any], job: Job) -> None:
    tell(body)


@app.task("job", body=str, tries=5, timeout_s=60)
def tell_job(body: str, job: Job) -> Any:
    remaining = 0 < job.deadline_s <= 60
    numbers = (job.attempt, job.tries, job.epoch)
    return [body, job.app, job.type, job.task_id, numbers, remaining, job.cancelled]


@app.task("size", body=bytes)
def size(body: bytes, job: Job) -> int:
    return len(body)


@app.task("sleep", timeout_s=30)
def sleep(body: dict[str, Any], job: Job) -> str:
    tell(body)
    while True:
        threading.Event().wait(30)


@app.task("wait", timeout_s=30)
async def wait(body: dict[str, Any], job: Job) -> None:
    tell(body)
    await asyncio.Event().wait()


@app.task("spin", timeout_s=30)
def spin(body: dict[str, Any], job: Job) -> None:
    tell(body)
    while True:
        pass


@app.task("hold_lock", timeout_s=30)
def hold_lock(body: dict[str, Any], job: Job) -> None:
    """Hangs in C code with the interpreter's lock held."""
    tell(body)
    sum(itertools.repeat(0))


@app.task("read_pipe", timeout_s=30)
def read_pipe(body: dict[str, Any], job: Job) -> None:
    """Hangs in a system call that is begun again whenever it is interrupted."""
    tell(body)
    libc = ctypes.CDLL(None)
    end, _ = os.pipe()
    while True:
        libc.read(end, ctypes.create_string_buffer(1), 1)


@app.task("deaf", timeout_s=30)
def deaf(body: dict[str, Any], job: Job) -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    tell(body)
    while True:
        pass


@app.task("stubborn", timeout_s=30)
def stubborn(body: dict[str, Any], job: Job) -> None:
    child = subprocess.Popen(DEAF_SLEEPER, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    tell(body, child.pid)
    while True:
        try:
            threading.Event().wait(30)
        except Cancelled:
            note(body, "told to end")


@app.task("children", timeout_s=30)
def children(body: dict[str, Any], job: Job) -> None:
    pids = [subprocess.Popen(SLEEPER).pid]
    if (pid := os.fork()) == 0:
        while True:
            threading.Event().wait(30)
    tell(body, *pids, pid)
    threading.Event().wait()


@app.task("leave_daemon")
def leave_daemon(body: dict[str, Any], job: Job) -> int:
    return subprocess.Popen(SLEEPER, start_new_session=True).pid


@app.task("fork_and_return")
def fork_and_return(body: dict[str, Any], job: Job) -> str:
    """Returns twice."""
    return "child" if os.fork() == 0 else "parent"


@app.task("crash")
def crash(body: dict[str, Any], job: Job) -> None:
    ctypes.string_at(0)


@app.task("leave")
def leave(body: dict[str, Any], job: Job) -> None:
    os._exit(3)


@app.task("exit_politely")
def exit_politely(body: dict[str, Any], job: Job) -> None:
    sys.exit("so long")


@app.task("close_all", timeout_s=30)
def close_all(body: dict[str, Any], job: Job) -> None:
    os.closerange(3, 256)
    while body.get("stay"):
        threading.Event().wait(30)


@app.task("hoard", memory_mb=150)
def hoard(body: dict[str, Any], job: Job) -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


@app.task("hoard_shared", memory_mb=150)
def hoard_shared(body: dict[str, Any], job: Job) -> None:
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(bytes(1 << 20))


@app.task("hoard_by_children", memory_mb=150)
def hoard_by_children(body: dict[str, Any], job: Job) -> None:
    hoard = "import signal\nkept = b'x' * (80 << 20)\nsignal.pause()"
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", hoard])
    threading.Event().wait()


@app.task("flood", timeout_s=30)
def flood(body: dict[str, Any], job: Job) -> str:
    line = b"flood " * 1000
    for _ in range(body["lines"]):
        os.write(1, line)
        os.write(2, b"and noise\n")
    return "done"


@app.task("speak")
def speak(body: dict[str, Any], job: Job) -> None:
    job.log.info("written", event_="no", event=body.get("event"), odd={1, 2})
    print("printed", end="")  # noqa: T201
    subprocess.run(["/bin/sh", "-c", "echo shouted >&2"], check=True)


@app.task("log", tries=2)
def log(body: dict[str, Any], job: Job) -> None:
    job.log.info("said", **body)


@app.task("log_and_stay", timeout_s=300)
def log_and_stay(body: dict[str, Any], job: Job) -> None:
    job.log.info("said")
    threading.Event().wait()


@app.task("junk")
def junk(body: dict[str, Any], job: Job) -> Any:
    return {"object": object, "cycle": None, "bytes": b"\xff", "huge": "x" * 200_000}[body["kind"]]


@app.task("raise", permanent=(PermissionError, KeyError))
def raise_it(body: dict[str, Any], job: Job) -> None:
    kinds = {"permission": PermissionError, "value": ValueError, "cancelled": Cancelled}
    raise kinds[body["kind"]]("as told")


@app.task("steps", timeout_s=30)
def steps(body: dict[str, Any], job: Job) -> None:
    for n in range(body["steps"]):
        job.progress((n + 1) / body["steps"], f"step {n + 1}", rows=n)
    if body.get("stay"):
        tell(body)
        threading.Event().wait()


@app.task("tidy", timeout_s=30)
class Tidy:
    """Ends as it is told, with all its hooks."""

    def run(self, body: dict[str, Any], job: Any) -> None:
        job.body = body
        job.on_terminate(lambda: note(body, "hook"))
        try:
            tell(body)
            threading.Event().wait(30)
        except Cancelled as reason:
            note(body, f"cancelled: {reason}")
            raise

    def terminate(self, job: Any) -> None:
        note(job.body, f"terminate: {job.cancelled}")


@app.task("quick_or_not", timeout_s=30)
def quick_or_not(body: dict[str, Any], job: Job) -> str:
    if "fifo" in body:
        tell(body)
        sum(itertools.repeat(0))
    return "done"


@app.task("reporting", timeout_s=30)
def reporting(body: dict[str, Any], job: Job) -> None:
    while True:
        threading.Event().wait(0.01)
        job.progress()


@app.task("printing", timeout_s=30)
def printing(body: dict[str, Any], job: Job) -> None:
    tell(body)
    while True:
        threading.Event().wait(0.01)
        print(".")  # noqa: T201


@app.task("send", timeout_s=30)
def send(body: dict[str, Any], job: Job) -> None:
    for size in body["sizes"]:
        job.send("https://alerts.example", "x" * size, key="k")
    job.send("noop", {}, delay_s=1.5)
    if body.get("fails"):
        raise ValueError("as told")


def leave_open() -> None:
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) < (
        resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ) // 2:
        os.set_inheritable(descriptor, False)


def close_output() -> None:
    os.close(1)
    os.open(os.devnull, os.O_WRONLY)


SPOILS: dict[str, Callable[[], object]] = {
    "the environment": lambda: os.environ.update(HOME="/nowhere", DEEDS="left"),
    "the working directory": lambda: os.chdir("/"),
    "the standard streams": close_output,
    "the umask": lambda: os.umask(0o777),
    "the recursion limit": lambda: sys.setrecursionlimit(150),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "the default timeout of sockets": lambda: socket.setdefaulttimeout(0.001),
    "handlers of signals": lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "timers": lambda: signal.alarm(1000),
    "the priority": lambda: os.nice(1),
    "limits of resources": lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    ),
    "descriptors": leave_open,
}
"""What a task may change of its process, each by its name."""


@app.task("spoil", timeout_s=30)
def spoil(body: dict[str, Any], job: Job) -> list[Any]:
    SPOILS[body["what"]]()
    return _process()


@app.task("process", timeout_s=30)
def process(body: dict[str, Any], job: Job) -> list[Any]:
    return _process()


def _process() -> list[Any]:
    """The process as its tasks find it, its id first."""
    os.umask(umask := os.umask(0))
    return [
        os.getpid(),
        sorted(os.environ.items()),
        str(Path.cwd()),
        os.fstat(1).st_ino,
        umask,
        sys.getrecursionlimit(),
        locale.setlocale(locale.LC_ALL),
        socket.getdefaulttimeout(),
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        os.getpriority(os.PRIO_PROCESS, 0),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    ]
