"""The vision handler in a bare loop: no queue, no stored state, no order. One process of several.

Reads a JSON object from standard input: ``frames`` is a list of lists, the URL of each frame of each video.
Says ``ready``, waits for a line, then processes all videos and writes their results as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from holdfast import Context
from holdfast.vision.handler import Frame, Tracking


class Files:
    """What the handler asks of its context, straight from the files."""

    def fetch(self, url: str) -> bytes:
        """The frame's bytes."""
        return Path(unquote(urlsplit(url).path)).read_bytes()


def track(video: str, urls: list[str]) -> list[Any]:
    """The results of one video's frames."""
    context, handler = cast("Context", Files()), Tracking()
    handler.open(context, None)
    return [
        handler.process(Frame(video, 0, number, number * 40, url), context) for number, url in enumerate(urls)
    ]


def main() -> None:
    """Warm up, wait, work."""
    videos: dict[str, list[str]] = json.loads(sys.stdin.readline())
    for video, urls in videos.items():
        track(video, urls[:5])
    print("ready", flush=True)
    sys.stdin.readline()
    results = {video: track(video, urls) for video, urls in videos.items()}
    print("done", flush=True)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
