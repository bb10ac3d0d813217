"""Through how many files the way of a frame, and of a task, leads: ``python tools/trace_message.py``.

A node runs in this process, on SQLite, with the profiler of Python on. What it does while nothing is sent
is left out. Calls between files are counted a thread at a time; the processes of slots are not seen.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import App
from holdfast.testing import node_for_tests

PACKAGE = str(Path(holdfast.__file__).parent) + os.sep
IDLE_S = 14.0
"""Longer than most of what a node does at intervals takes to come round: it would count as a part of the
way."""

WAY_S = 1.0
"""Longer than any way takes."""

TIMES = 3
"""How many messages are traced. What only some of them called came round by chance."""


class Trace:
    """The calls of Holdfast's functions, by thread, in order."""

    def __init__(self) -> None:
        self.calls: dict[int, list[tuple[str, str]]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            place = code.co_filename.removeprefix(PACKAGE), code.co_qualname
            self.calls.setdefault(threading.get_ident(), []).append(place)

    def take(self) -> dict[int, list[tuple[str, str]]]:
        """What was called since the last time."""
        taken, self.calls = self.calls, {}
        return taken


def told(name: str, calls: dict[int, list[tuple[str, str]]], idle: set[tuple[str, str]]) -> None:
    """Print one line on a way."""
    files, changes, count = Counter[str](), 0, 0
    for made in calls.values():
        before = ""
        for file, function in made:
            if (file, function) in idle:
                continue
            count += 1
            files[file] += 1
            changes += file != before
            before = file
    print(f"{name}: {len(files)} files, {count} calls, {changes} changes of file")
    if "-v" in sys.argv:
        for file, times in sorted(files.items()):
            print(f"  {times:4} {file}")


def main() -> None:
    app = App("traced")

    @app.stream("frames", seq="seq", first_seq=0)
    def frame(message: dict[str, Any], context: Any) -> dict[str, int]:
        return {"seq": message["seq"]}

    @app.task("published")
    def published(body: dict[str, Any], job: Any) -> dict[str, bool]:
        return {"done": True}

    trace = Trace()
    threading.setprofile(trace)
    with tempfile.TemporaryDirectory() as folder, node_for_tests(app, folder=Path(folder)) as node:
        frames, client = node.stream("frames"), node.client

        def send_frame(seq: int) -> Callable[[], object]:
            frames.send({"key": "cam", "seq": seq})
            return lambda: node.results("frames", seq + 1)

        def send_task(_: int) -> Callable[[], object]:
            trace_id = client.send("published", {})
            return lambda: node.outcome(trace_id)

        sends: dict[str, Callable[[int], Callable[[], object]]] = {"a frame": send_frame, "a task": send_task}
        for name, send in sends.items():
            send(0)()  # what is done once for a key or a type is no part of the way
            time.sleep(IDLE_S)
            trace.take()
            time.sleep(IDLE_S)
            idle = {place for made in trace.take().values() for place in made}
            ways = []
            for number in range(1, TIMES + 1):
                sys.setprofile(trace)
                look = send(number)
                sys.setprofile(None)
                time.sleep(WAY_S)
                ways.append(trace.take())
                look()  # it has come to its end
                trace.take()
            called = [{place for made in way.values() for place in made} for way in ways]
            told(name, ways[-1], idle | (called[0].union(*called) - called[0].intersection(*called)))


main()
