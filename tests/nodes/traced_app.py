"""An app whose handlers trace what they do, with OpenTelemetry's API alone."""

import os
import signal
from pathlib import Path
from typing import Any

from opentelemetry import trace

from holdfast import App, Context, Job, StreamHandler

HOOK = os.environ.get("TRACED_HOOK", "http://127.0.0.1:9/hook")
SHARED = Path(os.environ.get("TRACED_PLACE", "."))

app = App("traced")
tracer = trace.get_tracer("traced_app")


@app.stream("frames", key="key", timeout_s=60.0)
class Frames(StreamHandler[dict[str, Any]]):
    """Reads each frame and calls a webhook. If the message says so, it waits once until its node is
    killed."""

    def process(self, message: dict[str, Any], context: Context) -> Any:
        with tracer.start_as_current_span("look", attributes={"n": message["n"]}) as span:
            span.add_event("seen")
            if message.get("do") == "hold" and not (SHARED / "killed").exists():
                (SHARED / "held").write_text(os.environ["CHAOS_PLACE"])
                signal.pause()
            if message.get("do") == "die" and context.attempt == 1 and not (SHARED / "died").exists():
                (SHARED / "died").touch()
                os.kill(os.getpid(), 9)
        context.send(HOOK, {"n": message["n"]})
        context.send("report", {"n": message["n"]}, key="")
        return {"traceparent": context.traceparent}


@app.task("report")
def report(body: dict[str, Any], job: Job) -> str:
    with tracer.start_as_current_span("write"):
        job.log.info("a report is written", n=body["n"])
    return job.traceparent
