"""The camera wall: for each camera the newest handled frame, with the boxes and ids of its tracks.

Twice a second the browser asks for the visible cameras, gets results and the paths of pictures, and draws
them. Results and pictures are read once for all viewers. Pictures are read from below ``objects_url`` only,
where ``holdfast ingest`` puts frames, and from no place that a message or a browser names.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.extend.pages import (
    ConsoleParts,
    Group,
    Question,
    RequestRefused,
    SharedReads,
    caller_of,
    latest_results,
    stream_path,
    whole_number,
)
from holdfast.extend.tools import redact
from holdfast.vision.places import object_name

TILES = 64
"""Cameras on a page of the wall."""

OFFSET_MAX = 10**9 - 1
PLACE_MAX = 10**19 - 1
"""The largest number of a run or a frame."""

AT_ONCE = 16
"""Cameras of one request: the visible ones."""

NEWS_KEPT_S = 0.45
"""Seconds that a result is kept for other viewers: less than the half second between a browser's requests."""

PICTURE_KEPT_S, PICTURES_MAX = 60.0, 32
"""Seconds that pictures are kept for other viewers, and their number."""

PICTURE_BYTES_MAX = 2_000_000
TYPES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png"}
"""Types of pictures by their first bytes. Other data isn't shown."""


class SeenTrack(msgspec.Struct, frozen=True):
    """A track in a result."""

    id: int
    box: tuple[float, float, float, float]


class SeenFrame(msgspec.Struct, frozen=True):
    """The result of a frame, as :class:`holdfast.vision.handler.Tracking` returns it."""

    video: str
    run: int
    frame: int
    tracks: list[SeenTrack]


class CameraWall:
    """The wall of one console."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        now = parts.clock.monotonic
        self._news: SharedReads[SeenFrame | None] = SharedReads(now, NEWS_KEPT_S, 4 * TILES)
        self._pictures: SharedReads[bytes] = SharedReads(now, PICTURE_KEPT_S, PICTURES_MAX)

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the page: the cameras of a stream, by key."""
        self._parts.attention.asked()
        index = self._parts.index
        names = sorted(index.names)
        chosen = request.query.get("stream", "") or await self._first(names)
        text = request.query.get("text", "").strip()[:200]
        offset = whole_number(request.query.get("from", ""), OFFSET_MAX) or 0
        found = index.find(Question(text=text, stream=chosen), offset, TILES) if chosen else None
        return self._parts.renderer.page(
            request,
            "vision/cameras.html",
            title="Cameras",
            names=names,
            chosen=chosen,
            text=text,
            cameras=[(each.key, stream_path(each.key)) for each in found.streams] if found else [],
            total=found.total if found else 0,
            first=found.offset + 1 if found else 0,
            earlier=_page(chosen, text, found.offset - TILES) if found and found.offset else "",
            later=_page(chosen, text, found.offset + TILES)
            if found and found.offset + TILES < found.total
            else "",
            sees=caller_of(request).may("pictures"),
        )

    async def news(self, request: web.Request) -> web.Response:
        """Answer with the newest results of the requested cameras. Unknown cameras are left out."""
        self._parts.attention.asked()
        keys = request.query.getall("key", [])
        if len(keys) > AT_ONCE:
            raise RequestRefused(400, "cameras", "Too many cameras", f"ask for {AT_ONCE} at once at most")
        # Unknown keys aren't read: else a browser could send any key to the state store.
        keys = [key for key in keys if self._parts.index.get(key) is not None]
        sees = caller_of(request).may("pictures")
        seen = await asyncio.gather(*map(self._seen, keys))
        return web.json_response(
            [
                _record(key, frame, sees=sees)
                for key, frame in zip(keys, seen, strict=True)
                if frame is not None
            ]
        )

    async def picture(self, request: web.Request) -> web.Response:
        query = request.query
        run, frame = (whole_number(query.get(name, ""), PLACE_MAX) for name in ("run", "frame"))
        if run is None or frame is None:
            raise RequestRefused(400, "picture", "No such picture", "run and frame must be numbers")
        name = object_name(query.get("video", ""), run, frame)
        try:
            data = await self._pictures.get(name, lambda: self._read(name))
        except (FileNotFoundError, HoldfastError) as error:
            raise RequestRefused(404, "picture", "No such picture", redact(str(error))) from None
        return web.Response(body=data, content_type=_kind(data))

    async def _read(self, name: str) -> bytes:
        objects = self._parts.services.objects()
        data = await objects.get(objects.url(name))
        if not _kind(data) or len(data) > PICTURE_BYTES_MAX:
            raise InvalidMessage(f"it isn't a JPEG or PNG of up to {PICTURE_BYTES_MAX} bytes")
        return data

    async def _first(self, names: list[str]) -> str:
        """Return the first stream whose latest result is that of a frame; else an empty text."""
        for name in names:
            for stream in self._parts.index.find(Question(stream=name), 0, 1).streams:
                if await self._seen(stream.key) is not None:
                    return name
        return ""

    async def _seen(self, key: str) -> SeenFrame | None:
        return await self._news.get(key, lambda: self._latest(key))

    async def _latest(self, key: str) -> SeenFrame | None:
        """Return the newest result of a camera; None if it isn't a frame's, or can't be read."""
        services = self._parts.services
        try:
            checkpoint = await services.state().peek(key)
            found = await latest_results(services, checkpoint, 1) if checkpoint is not None else ()
        except HoldfastError:  # the other cameras are still shown
            return None
        for logged in found:
            try:
                return msgspec.json.decode(logged.result.body, type=SeenFrame)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
        return None


def _kind(data: bytes) -> str:
    return next((kind for begin, kind in TYPES.items() if data.startswith(begin)), "")


def _record(key: str, frame: SeenFrame, *, sees: bool) -> dict[str, Any]:
    place = {"video": frame.video, "run": frame.run, "frame": frame.frame}
    return {
        "key": key,
        "run": frame.run,
        "frame": frame.frame,
        "tracks": [{"id": track.id, "box": track.box} for track in frame.tracks],
        "picture": f"/cameras/picture?{urlencode(place)}" if sees else "",
    }


def _page(stream: str, text: str, offset: int) -> str:
    return f"/cameras?{urlencode({'stream': stream, 'text': text, 'from': max(0, offset)})}"


def groups(parts: ConsoleParts) -> list[Group]:
    wall = CameraWall(parts)
    return [
        ("read", [web.get("/cameras", wall.show), web.get("/cameras/news", wall.news)]),
        ("pictures", [web.get("/cameras/picture", wall.picture)]),
    ]
