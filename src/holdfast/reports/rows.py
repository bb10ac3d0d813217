"""The rows of a table, for the files and sheets of a report."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pyarrow as pa


class TableRows:
    """The batches of one table."""

    def __init__(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self._batches = batches
        self._held: pa.RecordBatch | None = None

    def peek(self) -> pa.RecordBatch | None:
        """Return the next batch without taking it; None at the end."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return None
        return self._held

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next batches, up to ``rows`` rows together."""
        while rows and (batch := self.peek()) is not None:
            taken = batch.slice(0, rows)
            self._held = batch.slice(taken.num_rows)
            rows -= taken.num_rows
            yield taken

    def all(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.peek()) is not None:
            self._held = None
            yield batch

    def close(self) -> None:
        self._batches.close()
