"""The body of a large request."""

from __future__ import annotations

from typing import Any

from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

PIECE_BYTES = 1 << 18


class UploadBody(payload.BytesPayload):
    """A body that is written to the socket in pieces, so that other work in the event loop isn't blocked."""

    def __init__(self, data: bytes | memoryview, *args: Any, **kwargs: Any) -> None:
        super().__init__(b"", *args, **kwargs)  # which warns of data that is large
        self._whole = memoryview(data)
        self._size = len(data)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        whole = self._whole[:content_length]
        for at in range(0, len(whole), PIECE_BYTES):
            await writer.write(whole[at : at + PIECE_BYTES])

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)
