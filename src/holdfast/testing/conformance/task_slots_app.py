"""The app that slots for tasks are held to their promises with."""

from __future__ import annotations

import asyncio

from holdfast.app import App
from holdfast.tasks.handler import Job

app = App("conformance")


@app.task("echo", body=str)
def echo(body: str, job: Job) -> str:
    """Returns what it gets."""
    return body


@app.task("fail", body=str)
async def fail(body: str, job: Job) -> None:
    """Raises."""
    raise ValueError(body)


@app.task("wait", body=str)
async def wait(body: str, job: Job) -> None:
    """Says that it has begun, and waits until it is told to end."""
    job.on_terminate(lambda: job.log.warning("told to end", again=job.cancelled))
    job.progress(0.5, "waiting", rows=7)
    await asyncio.Event().wait()
