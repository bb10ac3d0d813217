"""The cameras that ``holdfast ingest`` pulls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.extend.commands import exits, output, signals
from holdfast.extend.products import Services
from holdfast.extend.tools import redact_url

if TYPE_CHECKING:
    from holdfast.vision.live import Camera, CameraRun


def counting() -> Progress:
    description = TextColumn("{task.description}", markup=False)  # an address may hold brackets
    columns = SpinnerColumn(), description, TextColumn("{task.completed} frames")
    return Progress(*columns, TimeElapsedColumn(), console=output.error_console())


async def pull(
    services: Services,
    urls: Mapping[str, str],
    stream: str,
    fps: float | None,
    seconds: float | None,
    *,
    json: bool,
) -> int:
    """Pull the camera at each key's URL until a signal, or for ``seconds``; return the exit code."""
    from holdfast.vision.live import Camera, CameraSource  # noqa: PLC0415 (an extra)

    def camera(key: str, url: str) -> Camera:
        name = f"{stream}/{key}"
        task = progress.add_task(f"{redact_url(url)} → {name}", total=None)

        def on_run(run: CameraRun) -> None:
            progress.update(
                task, description=f"{redact_url(url)} → {name}, run {run.number}", completed=run.frames
            )
            if run.over and json:
                place = {"video": redact_url(url), "stream": stream, "key": key, "run": run.number}
                output.json_line(place | {"frames": run.frames, "left_out": run.left_out, "lost": run.lost})
            elif run.over:
                left_out = f", {run.left_out} left out" if run.left_out else ""
                output.say(
                    f"{run.frames} frames{left_out} of {redact_url(url)} sent to {name}, run {run.number}"
                )

        def on_trouble(why: str, again_s: float) -> None:
            output.complain(f"{name}: {why}; trying again in {again_s:.1f} s")

        return Camera(
            CameraSource(url, key, fps),
            objects=services.objects(),
            queue=services.queue(stream),
            clock=services.clock,
            on_run=on_run,
            on_trouble=on_trouble,
        )

    ending_signal, over = signals()
    with counting() as progress:
        cameras = [camera(key, url) for key, url in urls.items()]
        works = asyncio.gather(*(camera.run() for camera in cameras))
        ending = asyncio.ensure_future(services.clock.wait(ending_signal, seconds))
        await asyncio.wait((works, ending), return_when=asyncio.FIRST_COMPLETED)
        for each in cameras:
            each.stop()
        at_once = asyncio.ensure_future(over.wait())
        await asyncio.wait((works, at_once), return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, at_once):
            task.cancel()
        if not works.done():
            works.cancel()
            return exits.INTERRUPTED
        works.result()
    return exits.OK
