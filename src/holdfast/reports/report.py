"""From an order to the bytes of its files."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa

from holdfast.extend import Machine
from holdfast.reports.formats.compress import Workers, gzip, zstd
from holdfast.reports.formats.csv import CsvFormat
from holdfast.reports.formats.styles import Styles
from holdfast.reports.formats.xlsx import SheetFormat, SheetSource, Workbook, too_many
from holdfast.reports.formats.zip import ZipStream
from holdfast.reports.memory import limit_kept_memory
from holdfast.reports.names import remote_name
from holdfast.reports.order import Csv, ReportOrder, Xlsx, check, encode
from holdfast.reports.pipeline import in_order, read_ahead
from holdfast.reports.rows import TableRows
from holdfast.reports.sources.places import Secrets
from holdfast.reports.sources.table import TableReader, open_table

READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Bytes of decoded rows that may wait to be formatted."""

THREADS_MAX = 4


class ReportProgress(NamedTuple):
    """The progress of a report. Unknown totals are None.

    ``rows``, ``source_bytes``: read so far. ``bytes_out``: made so far, of all files.
    """

    rows: int
    rows_total: int | None
    source_bytes: int
    source_bytes_total: int
    bytes_out: int

    @property
    def fraction(self) -> float:
        """The share of the work that is done, from 0 to 1."""
        if self.rows_total:
            return min(1.0, self.rows / self.rows_total)
        return min(1.0, self.source_bytes / max(1, self.source_bytes_total))


class ReportFile:
    """One file of a report: its number from 1 and its remote name.

    Read ``chunks`` once, to their end, before the next file. ``rows``, ``bytes`` and ``replaced`` (values
    with characters that the format lacks) are final then.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.chunks: Iterator[bytes] = iter(())
        self.rows = 0
        self.bytes = 0
        self.replaced = 0
        self.ended = False


class Report:
    """An order whose sources are found and checked; as a context manager it ends its threads.

    The constructor raises all errors that are known before the first byte: InvalidMessage, which names the
    order's field, UnwritableColumn, UnreadableSource, TooManyRows, Unavailable.

    Args:
        ordered_at: the time of the order, with a zone. It dates the files' names if the order names no date.
        secrets: finds the secret of a name.
        roots: URLs that sources must lie below; without any, all sources are allowed.
        on_progress: called after each chunk, in the caller's thread.
        threads: for formatting and compression; by default one for each core, up to four.

    Attributes:
        cut: whether ``files`` left out rows after its sample.
        id: an identity of the bytes: it follows from the order and the sources alone.
    """

    def __init__(
        self,
        order: ReportOrder,
        *,
        ordered_at: dt.datetime,
        secrets: Secrets = lambda _: {},
        roots: Sequence[str] = (),
        on_progress: Callable[[ReportProgress], None] = lambda _: None,
        threads: int | None = None,
    ) -> None:
        check(order)
        limit_kept_memory()
        self.order = order
        self._ordered_at = ordered_at
        self._on_progress = on_progress
        self._stack = ExitStack()
        self.tables = [
            open_table(table, secrets, f"tables[{at}]", roots) for at, table in enumerate(order.tables)
        ]
        self._formats = self._make_formats()
        self._refuse_early()
        remote_name(order, ordered_at)
        counts = [table.rows for table in self.tables]
        self.rows_total = None if None in counts else sum(count or 0 for count in counts)
        self.source_bytes_total = sum(table.source_bytes for table in self.tables)
        versions = "".join(table.version for table in self.tables)
        content = encode(msgspec.structs.replace(order, delivery=None)) + versions.encode()
        self.id = hashlib.sha256(content + remote_name(order, ordered_at).encode()).hexdigest()
        self._threads = threads or min(THREADS_MAX, Machine().whole_cores)
        self.cut = False
        self._rows = 0
        self._source_bytes = 0.0
        self._bytes_out = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def progress(self) -> ReportProgress:
        return ReportProgress(
            self._rows, self.rows_total, int(self._source_bytes), self.source_bytes_total, self._bytes_out
        )

    def files(self, sample_bytes: float = math.inf) -> Iterator[ReportFile]:
        """Yield the files, one after the other; none for an empty result, if the order says so.

        Of each table, only the first rows are read, up to about ``sample_bytes``. Another call begins again
        and ends the earlier one. Raises UnreadableSource, UnwritableColumn, TooManyRows and Unavailable.
        """
        self.close()
        self._rows = self._bytes_out = 0
        self._source_bytes = 0.0
        self.cut = False
        pool = self._stack.enter_context(ThreadPoolExecutor(self._threads, "format"))
        workers = Workers(pool, self._threads)
        sources = [TableRows(self._batches(table, sample_bytes)) for table in self.tables]
        for rows in sources:
            self._stack.callback(rows.close)
        if self.order.empty == "nothing" and all(rows.peek() is None for rows in sources):
            return
        number = 1
        while True:
            file = ReportFile(number, remote_name(self.order, self._ordered_at, number))
            file.chunks = self._counted(file, self._chunks(file, sources, workers))
            yield file
            if not file.ended:
                raise RuntimeError(f"the chunks of {file.name} weren't read to their end")
            if all(rows.peek() is None for rows in sources):
                return
            number += 1

    def chunks(self, number: int = 1) -> Iterator[bytes]:
        """Yield the bytes of one file, the same at each call. Earlier files are made and dropped. There are
        no bytes if the report has no such file. Raises the errors of ``files``."""
        for file in self.files():
            if file.number == number:
                yield from file.chunks
                return
            for _ in file.chunks:
                pass

    def preview(self, rows: int) -> list[bytes]:
        """Return the header, if the format has one, and the first rows as CSV lines. Progress isn't
        counted."""
        table = self.tables[0]
        options = self.order.format if isinstance(self.order.format, Csv) else Csv(unfit="replace")
        options = msgspec.structs.replace(options, compression="none", encoding="utf-8", line_end="\n")
        shown = CsvFormat(options, table.columns, table.schema, self.order.time_zone, "tables[0]")
        lines = [shown.header.data]
        pieces = table.pieces()
        try:
            for batch, _ in pieces:
                lines.append(shown.lines(batch.slice(0, rows)).data)
                rows -= min(rows, batch.num_rows)
                if not rows:
                    break
        finally:
            pieces.close()
        return lines

    # --- reading

    def _batches(self, table: TableReader, sample_bytes: float) -> Generator[pa.RecordBatch, None, None]:
        pieces = read_ahead(table.pieces(), lambda piece: piece.batch.nbytes, READ_AHEAD_BYTES)
        taken = 0.0
        try:
            for batch, spent in pieces:
                if taken > sample_bytes:
                    self.cut = True
                    return
                taken += max(batch.nbytes, spent)
                self._rows += batch.num_rows
                self._source_bytes += spent
                yield batch
        finally:
            pieces.close()

    # --- formatting

    def _make_formats(self) -> CsvFormat | list[SheetFormat]:
        options, zone = self.order.format, self.order.time_zone
        if isinstance(options, Csv):
            (table,) = self.tables
            return CsvFormat(options, table.columns, table.schema, zone, "tables[0]")
        self._styles = Styles()
        return [
            SheetFormat(options, table.columns, table.schema, zone, f"tables[{at}]", self._styles)
            for at, table in enumerate(self.tables)
        ]

    def _refuse_early(self) -> None:
        options = self.order.format
        if isinstance(options, Xlsx) and options.overflow == "refuse":
            for ordered, table in zip(self.order.tables, self.tables, strict=True):
                if table.rows is not None and table.rows + options.header > options.rows_per_sheet:
                    raise too_many(ordered.name, options)

    def _chunks(self, file: ReportFile, sources: Sequence[TableRows], workers: Workers) -> Iterator[bytes]:
        options = self.order.format
        if isinstance(options, Csv):
            assert isinstance(self._formats, CsvFormat)
            (rows,) = sources
            return _compressed(options, file.name, self._csv(file, self._formats, rows, workers), workers)
        assert isinstance(self._formats, list)
        return self._workbook(file, options, self._formats, sources, workers)

    def _csv(
        self, file: ReportFile, shape: CsvFormat, rows: TableRows, workers: Workers
    ) -> Generator[bytes, None, None]:
        header = shape.header
        file.replaced += header.replaced
        yield header.data
        for lines in in_order(workers.pool, shape.lines, rows.all(), workers.ahead):
            file.rows += lines.rows
            file.replaced += lines.replaced
            yield lines.data

    def _workbook(
        self,
        file: ReportFile,
        options: Xlsx,
        formats: Sequence[SheetFormat],
        sources: Sequence[TableRows],
        workers: Workers,
    ) -> Iterator[bytes]:
        book = Workbook(options, self._styles, workers)
        sheets = [
            SheetSource(table.name, shape, rows)
            for table, shape, rows in zip(self.order.tables, formats, sources, strict=True)
        ]
        for chunk in book.chunks(sheets):
            file.rows, file.replaced = book.rows, book.replaced
            yield chunk

    def _counted(self, file: ReportFile, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if chunk:
                file.bytes += len(chunk)
                self._bytes_out += len(chunk)
                yield chunk
                self._on_progress(self.progress)
        file.ended = True


def _compressed(options: Csv, name: str, chunks: Iterator[bytes], workers: Workers) -> Iterator[bytes]:
    match options.compression:
        case "gzip":
            return gzip(chunks, options.compression_level, workers)
        case "zstd":
            return zstd(chunks, options.compression_level, workers)
        case "zip":
            return _zipped(options, name, chunks, workers)
    return chunks


def _zipped(options: Csv, name: str, chunks: Iterator[bytes], workers: Workers) -> Iterator[bytes]:
    archive = ZipStream(options.compression_level, workers)
    inside = name.rpartition("/")[2].removesuffix(".zip")
    yield from archive.entry(inside if "." in inside else f"{inside}.csv", chunks)
    yield archive.end()
