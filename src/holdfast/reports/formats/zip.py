"""A ZIP archive written to a stream that can't seek (APPNOTE 6.3.10).

Sizes and checksums follow each entry's data (section 4.3.9), and stand in the directory at the end, as ZIP64
beyond 4 GiB. There are no times: equal entries give equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from holdfast.reports.formats.compress import Deflate, Workers

SIZE_MAX = 0xFFFFFFFF
_VERSION, _VERSION_ZIP64 = 20, 45
_FLAGS = 1 << 3 | 1 << 11  # sizes follow the data; names are UTF-8
_DEFLATED = 8
_DATE = 0x0021  # 1980-01-01, the first date of ZIP
_UNIX = 3 << 8
_MODE = 0o100644 << 16


class ZipStream:
    """One archive. Read each entry to its end, one after the other, then call :meth:`end`."""

    def __init__(self, level: int, workers: Workers) -> None:
        self._level = level
        self._workers = workers
        self._position = 0
        self._directory: list[bytes] = []

    def entry(self, name: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
        start, encoded = self._position, name.encode()
        deflate = Deflate(self._level, self._workers)
        head = struct.pack(
            "<IHHHHHIIIHH", 0x04034B50, _VERSION, _FLAGS, _DEFLATED, 0, _DATE, 0, 0, 0, len(encoded), 0
        )
        yield self._count(head + encoded)
        for data in deflate.run(chunks):
            yield self._count(data)
        sizes = "II" if max(deflate.size, deflate.compressed) <= SIZE_MAX else "QQ"
        yield self._count(
            struct.pack(f"<II{sizes}", 0x08074B50, deflate.crc, deflate.compressed, deflate.size)
        )
        self._directory.append(_directory_entry(encoded, deflate, start))

    def end(self) -> bytes:
        start, count = self._position, len(self._directory)
        directory = b"".join(self._directory)
        size = len(directory)
        if start > SIZE_MAX or size > SIZE_MAX or count > 0xFFFF:
            directory += struct.pack(
                "<IQHHIIQQQQ", 0x06064B50, 44, _VERSION_ZIP64, _VERSION_ZIP64, 0, 0, count, count, size, start
            )
            directory += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
        shown = min(count, 0xFFFF)
        return directory + struct.pack(
            "<IHHHHIIH", 0x06054B50, 0, 0, shown, shown, min(size, SIZE_MAX), min(start, SIZE_MAX), 0
        )

    def _count(self, data: bytes) -> bytes:
        self._position += len(data)
        return data


def _directory_entry(name: bytes, deflate: Deflate, start: int) -> bytes:
    numbers = (deflate.size, deflate.compressed, start)
    large = [number for number in numbers if number >= SIZE_MAX]
    extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    size, compressed, offset = (min(number, SIZE_MAX) for number in numbers)
    version = _VERSION_ZIP64 if large else _VERSION
    return (
        struct.pack(
            "<IHHHHHHIIIHHHHHII",
            0x02014B50,
            _UNIX | version,
            version,
            _FLAGS,
            _DEFLATED,
            0,
            _DATE,
            deflate.crc,
            compressed,
            size,
            len(name),
            len(extra),
            0,
            0,
            0,
            _MODE,
            offset,
        )
        + name
        + extra
    )
