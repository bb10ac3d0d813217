"""Compression of a stream on several cores, in blocks of fixed size: equal input gives equal output."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor

import pyarrow as pa

from holdfast.reports.pipeline import in_order

BLOCK_BYTES = 1024 * 1024
ZSTD_BLOCK_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 32 * 1024
_RAW = -zlib.MAX_WBITS
_DEFLATE_END = b"\x03\x00"
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""A header without time and name, which would change the bytes of an unchanged report."""


class Workers:
    """Threads for compression and formatting. ``ahead``: the tasks in the pool at once."""

    def __init__(self, pool: Executor, threads: int) -> None:
        self.pool = pool
        self.ahead = threads + 1


class Deflate:
    """One deflate stream. As pigz does, blocks are compressed separately, with the end of the previous block
    as dictionary. ``crc``, ``size`` and ``compressed`` count all bytes so far."""

    def __init__(self, level: int, workers: Workers) -> None:
        self._level = level
        self._workers = workers
        self.crc = 0
        self.size = 0
        self.compressed = 0

    def run(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for data in in_order(self._workers.pool, self._block, self._pairs(chunks), self._workers.ahead):
            self.compressed += len(data)
            yield data
        self.compressed += len(_DEFLATE_END)
        yield _DEFLATE_END

    def _pairs(self, chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        before = b""
        for block in blocks(chunks, BLOCK_BYTES):
            self.crc = zlib.crc32(block, self.crc)
            self.size += len(block)
            yield block, before
            before = block[-_WINDOW_BYTES:]

    def _block(self, pair: tuple[bytes, bytes]) -> bytes:
        block, before = pair
        deflate = zlib.compressobj(self._level, zlib.DEFLATED, _RAW, zdict=before)
        return deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)


def gzip(chunks: Iterable[bytes], level: int, workers: Workers) -> Iterator[bytes]:
    """Yield a gzip file (RFC 1952)."""
    deflate = Deflate(level, workers)
    yield _GZIP_HEAD
    yield from deflate.run(chunks)
    yield struct.pack("<II", deflate.crc, deflate.size & 0xFFFFFFFF)


def zstd(chunks: Iterable[bytes], level: int, workers: Workers) -> Iterator[bytes]:
    """Yield a zstd file (RFC 8878), whose frames can be decompressed separately."""
    codec = pa.Codec("zstd", compression_level=level)

    def frame(block: bytes) -> bytes:
        compressed = codec.compress(block, asbytes=True)
        assert isinstance(compressed, bytes)
        return compressed

    empty = True
    for data in in_order(workers.pool, frame, blocks(chunks, ZSTD_BLOCK_BYTES), workers.ahead):
        empty = False
        yield data
    if empty:
        yield frame(b"")


def blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of ``size``; the last may be shorter."""
    held: list[bytes | memoryview] = []
    length = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while length + len(view) >= size:
            taken, view = view[: size - length], view[size - length :]
            yield b"".join([*held, taken])
            held, length = [], 0
        if view:
            held.append(view)
            length += len(view)
    if held:
        yield b"".join(held)
