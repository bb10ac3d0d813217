"""The files that pages load: scripts, styles, the icon. Each is served under a path with its digest, so
browsers keep it until it changes."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from aiohttp import web

FOLDER = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KEPT = "public, max-age=31536000, immutable"


class Asset(msgspec.Struct, frozen=True):
    """One file, ready to be sent."""

    path: str
    content_type: str
    body: bytes
    packed: bytes


class Assets:
    """All files, read once. ``more`` has folders of products, by the first segment of their files' names."""

    def __init__(self, more: Mapping[str, Path] | None = None) -> None:
        self._by_name: dict[str, Asset] = {}
        self._by_path: dict[str, Asset] = {}
        for prefix, folder in {"": FOLDER, **(more or {})}.items():
            self._read(folder, f"{prefix}/" if prefix else "")

    def _read(self, folder: Path, prefix: str) -> None:
        for file in sorted(folder.rglob("*")):
            if file.suffix not in TYPES:
                continue
            body, name = file.read_bytes(), prefix + file.relative_to(folder).as_posix()
            path = f"/static/{hashlib.sha256(body).hexdigest()[:16]}/{name}"
            asset = Asset(path, TYPES[file.suffix], body, gzip.compress(body, mtime=0))
            self._by_name[name] = self._by_path[path] = asset

    def path(self, name: str) -> str:
        """Return the path under which a file is served."""
        return self._by_name[name].path

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a request for a file."""
        asset = self._by_path.get(request.path)
        if asset is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": KEPT, "Vary": "Accept-Encoding"}
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        if packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(
            body=asset.packed if packed else asset.body,
            headers=headers,
            content_type=asset.content_type,
            charset="utf-8",
        )
