"""``holdfast ingest``."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.errors import ConfigError
from holdfast.extend.commands import DEFAULTS, Json, Options, exits, output
from holdfast.extend.tools import redact

if TYPE_CHECKING:
    from holdfast.extend.products import Services


async def ingest(
    videos: Annotated[tuple[str, ...], Parameter(negative=())],
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

    If a file is truncated, repeat the command with the run that it printed: frames already sent are not
    handled twice. A camera is pulled until Ctrl-C. A lost camera is tried again, and begins a new run once it
    is back.

    ```
    holdfast ingest lobby.mp4 --key cam-1
    holdfast ingest *.mp4 --fps 5 --seconds 60
    holdfast ingest rtsp://user:password@10.0.0.7/live --key cam-1
    ```

    Args:
        videos: Video files; or cameras, as URLs: `rtsp://…`, or any live source that FFmpeg reads.
        key: The stream's key, one for each; by default the file's name without suffix.
        stream: The stream that handles the frames.
        run: The number of the run; must grow. By default the time in milliseconds.
        fps: The limit of frames of each second.
        seconds: Take only the first seconds of each video, or pull a camera for this time.
        realtime: Send each frame of a file at its time, all videos side by side.
        json: Print JSON lines, one for a file, or one for a camera's run.
    """
    try:
        importlib.import_module("holdfast.vision.ingest")
    except ImportError as error:
        raise ConfigError(
            f"ingest needs the extra 'vision' ({error}): pip install 'holdfast-streams[vision]'"
        ) from None
    if not videos:
        raise ConfigError("name at least one video file or camera")
    live = ["://" in video for video in videos]
    if any(live) != all(live):
        raise ConfigError("files come to an end and cameras don't; ingest each kind by itself")
    if any(live) and (run is not None or realtime):
        raise ConfigError("a camera numbers its runs itself, in real time; leave --run and --realtime out")
    if any(live) and not key:
        raise ConfigError("a camera has no name of its own; give each one a --key")
    if key and len(key) != len(videos):
        raise ConfigError(f"{len(key)} keys for {len(videos)} videos; give one --key a video, or none")
    keys = key or tuple(Path(video).stem for video in videos)
    if len(set(keys)) < len(keys):
        raise ConfigError(f"two videos would share a key ({', '.join(keys)}); give each its own with --key")
    # Imported late: a page of help doesn't need them.
    from holdfast.extend.commands import warn_of_undeclared  # noqa: PLC0415
    from holdfast.vision.commands.cameras import pull  # noqa: PLC0415

    output.go_on_unread()
    async with options.services() as services:
        await warn_of_undeclared(services, stream)
        if any(live):
            return await pull(services, dict(zip(keys, videos, strict=True)), stream, fps, seconds, json=json)
        files = {name: Path(video) for name, video in zip(keys, videos, strict=True)}
        return await _put(services, files, stream, run, fps, seconds, realtime=realtime, json=json)


async def _put(
    services: Services,
    files: dict[str, Path],
    stream: str,
    run: int | None,
    fps: float | None,
    seconds: float | None,
    *,
    realtime: bool,
    json: bool,
) -> int:
    from holdfast.vision.commands.cameras import counting  # noqa: PLC0415
    from holdfast.vision.ingest import UnreadableVideo, ingest  # noqa: PLC0415

    this_run = round(services.clock.wall() * 1000) if run is None else run

    async def put(name: str, video: Path) -> dict[str, Any]:
        task = progress.add_task(f"{video.name} → {stream}/{name}, run {this_run}", total=None)
        record: dict[str, Any] = {"video": str(video), "stream": stream, "key": name, "run": this_run}
        record |= {"frames": 0, "error": ""}

        def sent(frames: int) -> None:
            record["frames"] = frames
            progress.update(task, completed=frames)

        try:
            await ingest(
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
            record["error"] = redact(str(error))
        return record

    with counting() as progress:
        records = await asyncio.gather(*(put(name, video) for name, video in files.items()))
    for record in records:
        if json:
            output.json_line(record)
        else:
            output.say("{frames} frames of {video} sent to {stream}/{key}, run {run}".format(**record))
        if record["error"]:
            output.complain(record["error"])
    return exits.FAILED if any(record["error"] for record in records) else exits.OK
