"""A store that takes files as S3 does, and little else: what a benchmark measures must not be its limit.

It stores each part in a file on disk, and refuses a body that doesn't match its signature. It
checks no signatures, and gives nothing back but sizes.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from pathlib import Path
from typing import ClassVar, cast
from urllib.parse import parse_qsl, urlsplit

from simulator.servers.aws import FauxqsServer
from simulator.servers.loopback import HOST

CHUNK_BYTES = 1 << 20


class S3Store(FauxqsServer):
    """The store in a process of its own."""

    name: ClassVar[str] = "s3_store"

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-P", __file__, str(self.port), str(self.data)]


class _Handler(BaseHTTPRequestHandler):
    """One connection, which has a thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: ClassVar[Path]
    sizes: ClassVar[dict[str, int]] = {}
    """Of objects by path, and of parts by upload and number."""

    lock: ClassVar[threading.Lock] = threading.Lock()

    def setup(self) -> None:
        super().setup()
        self._buffer = memoryview(bytearray(CHUNK_BYTES))

    def do_PUT(self) -> None:
        """A part, an object, or a bucket."""
        path, query = self._asked()
        name = f"{query['uploadId']}/{int(query['partNumber']):05}" if "uploadId" in query else path
        size, digest = self._keep(name)
        if digest != self.headers.get("x-amz-content-sha256", digest):
            self._answer(400, b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>")
            return
        with self.lock:
            self.sizes[name] = size
        self._answer(200, tag=digest[:32])

    def do_POST(self) -> None:
        """The begin and the end of an upload in parts, whose id is the path with its slashes turned."""
        path, query = self._asked()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "uploadId" not in query:
            upload = path.replace("/", "\\")
            self._answer(200, f"<Result><UploadId>{upload}</UploadId></Result>".encode())
            return
        with self.lock:
            parts = [name for name in self.sizes if name.startswith(f"{query['uploadId']}/")]
            self.sizes[path] = sum(self.sizes.pop(name) for name in parts)
        self._answer(200, b"<CompleteMultipartUploadResult><ETag>-</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        """An upload is given up."""
        self._answer(204)

    def do_HEAD(self) -> None:
        """An object's size."""
        size = self.sizes.get(self._asked()[0])
        self._answer(404 if size is None else 200, length=size or 0)

    def do_GET(self) -> None:
        """Whether it is up."""
        self._answer(200)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by the base)
        """Nothing is logged."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path.strip("/"), dict(parse_qsl(parts.query, keep_blank_values=True))

    def _keep(self, name: str) -> tuple[int, str]:
        """Write the body to a file; its size and SHA-256."""
        left = size = int(self.headers.get("Content-Length", 0))
        digest = hashlib.sha256()
        body = cast("BufferedReader", self.rfile)
        with (self.folder / name.replace("/", "\\")).open("wb", buffering=0) as file:
            while left:
                read = body.readinto1(self._buffer[:left])
                if not read:
                    raise ConnectionError
                file.write(self._buffer[:read])
                digest.update(self._buffer[:read])
                left -= read
        return size, digest.hexdigest()

    def _answer(self, status: int, body: bytes = b"", *, tag: str = "-", length: int = 0) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Length", str(len(body) or length))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    """Serve for ever: port and folder are arguments."""
    _Handler.folder = Path(sys.argv[2])
    server = ThreadingHTTPServer((HOST, int(sys.argv[1])), _Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    serve()
