"""The app of a pilot that moves to other services: its streams hold gaps, wait, park, send and set timers."""

import os
from typing import Any

from holdfast import App, Context, Job, StreamHandler
from holdfast.common.retry import Backoff

HOOK = os.environ.get("PILOT_HOOK", "http://127.0.0.1:9/hook")

app = App("pilot")
numbered = App("numbered")


@app.stream("steps", seq="n", first_seq=0, on_gap="hold", max_tries=1, backoff=Backoff(0.02, 0.1))
class Steps(StreamHandler[dict[str, Any]]):
    """Sums up its messages, in order, and sends each to another stream."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.total = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        if message.get("do") == "fail":
            raise ValueError("it must fail")
        self.total += message["n"]
        context.send("echoes", {"key": context.key, "of": message["n"]})
        if message.get("do") == "hook":
            context.send(HOOK, {"of": f"{context.key}:{message['n']}"})
        if message.get("do") == "timer":
            context.wake("later", after_s=8.0, body={"of": message["n"]})
        return {"n": message["n"], "total": self.total}

    def wake(self, name: str, body: Any, context: Context) -> Any:
        return {"woken": name, "of": body["of"], "total": self.total}

    def snapshot(self) -> bytes:
        return b"%d" % self.total


@app.stream("echoes")
def echoes(message: dict[str, Any], context: Context) -> Any:
    return message


@app.stream("strict", seq="n", first_seq=0, on_failure="park", max_tries=1)
def strict(message: dict[str, Any], context: Context) -> Any:
    if message["n"] == 1 and os.environ.get("PILOT_STRICT") != "mended":
        raise ValueError("parks the stream")
    return message


@numbered.stream("tickets", seq="queue")
def tickets(message: dict[str, Any], context: Context) -> Any:
    return message


@app.task("add")
def add(body: dict[str, Any], job: Job) -> Any:
    if body.get("do") == "fail":
        raise ValueError("it must fail")
    return body["n"] + 1
