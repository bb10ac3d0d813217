"""``holdfast ingest``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.errors import ConfigError
from holdfast.wiring import Services


async def ingest(
    videos: Annotated[tuple[Path, ...], Parameter(negative=())],
    /,
    *,
    key: tuple[str, ...] = (),
    stream: str = "frames",
    run: Annotated[int | None, Parameter(show_default=False)] = None,
    fps: float | None = None,
    seconds: float | None = None,
    realtime: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Put videos' frames into the object store as JPEG, and a message for each into the queue.

    If it is cut short, do it again with the run it named: frames already there are not handled twice.

    ```
    holdfast ingest lobby.mp4 --key cam-1
    holdfast ingest *.mp4 --fps 5 --seconds 60
    ```

    Args:
        videos: Video files.
        key: The stream's key, one for each file; without it, the file's name without suffix.
        stream: The stream that handles the frames.
        run: Which numbering of frames this is; must grow. Without it, the time in seconds.
        fps: Take so many frames of each second at most.
        seconds: Take only the beginning of each video.
        realtime: Send each frame when its time has come, all videos side by side.
        json: Print JSON lines, one a video.
    """
    try:
        from holdfast.apps.vision.ingest import UnreadableVideo  # noqa: PLC0415 (an extra)
        from holdfast.apps.vision.ingest import ingest as ingest_video  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"ingest needs the extra 'vision' ({error}): pip install 'holdfast[vision]'"
        ) from None
    if not videos:
        raise ConfigError("name at least one video file")
    if key and len(key) != len(videos):
        raise ConfigError(f"{len(key)} keys for {len(videos)} videos; give one --key a video, or none")
    keys = key or tuple(video.stem for video in videos)
    if len(set(keys)) < len(keys):
        raise ConfigError(f"two videos would share a key ({', '.join(keys)}); give each its own with --key")
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed} frames")
    async with Services(options.load()) as services:
        this_run = int(services.clock.wall()) if run is None else run

        async def put(video: Path, name: str) -> dict[str, Any]:
            task = progress.add_task(f"{video.name} → {stream}/{name}, run {this_run}", total=None)
            record = {
                "video": str(video),
                "stream": stream,
                "key": name,
                "run": this_run,
                "frames": 0,
                "error": "",
            }

            def sent(frames: int) -> None:
                record["frames"] = frames
                progress.update(task, completed=frames)

            try:
                await ingest_video(
                    video,
                    name,
                    this_run,
                    objects=services.objects(),
                    queue=services.queue(stream),
                    clock=services.clock,
                    fps=fps,
                    seconds=seconds,
                    realtime=realtime,
                    progress=sent,
                )
            except UnreadableVideo as error:
                record["error"] = str(error)
            return record

        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            records = await asyncio.gather(*map(put, videos, keys))
    for record in records:
        if json:
            output.json_line(record)
        else:
            output.say("{frames} frames of {video} sent to {stream}/{key}, run {run}".format(**record))
        if record["error"]:
            output.complain(record["error"])
    return exits.FAILED if any(record["error"] for record in records) else exits.OK
