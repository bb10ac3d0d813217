"""ORC: stripe by stripe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as paorc

from holdfast.reports.faults import UnreadableSource
from holdfast.reports.sources.files import FileHead, Piece, rows_a_batch
from holdfast.reports.sources.places import SourceFile


class OrcFiles:
    """ORC files. Arrow decodes a whole stripe, so its size (usually 64 MB) bounds memory. Timestamps become
    nanoseconds, which reach from 1678 to 2262."""

    def head(self, place: SourceFile) -> FileHead:
        with place.open() as file:
            orc = paorc.ORCFile(file)
            return FileHead(orc.schema, orc.nrows)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        with place.open() as file:
            orc = paorc.ORCFile(file)
            for at in range(orc.nstripes):
                try:
                    stripe = orc.read_stripe(at, columns=list(columns))
                except pa.ArrowInvalid:
                    _refuse_column(place, orc, at, columns)
                    raise
                rows = rows_a_batch(stripe.num_rows, stripe.nbytes)
                share = place.size / orc.nstripes / max(1, stripe.num_rows)
                for start in range(0, stripe.num_rows, rows):
                    batch = stripe.slice(start, rows)
                    yield Piece(batch, share * batch.num_rows)


def _refuse_column(place: SourceFile, orc: paorc.ORCFile, stripe: int, columns: Sequence[str]) -> None:
    """Raise UnreadableSource for the first column that can't be decoded: Arrow's error doesn't name it."""
    for name in columns:
        try:
            orc.read_stripe(stripe, columns=[name])
        except pa.ArrowInvalid as error:
            raise UnreadableSource(
                f"column {name!r} of {place.url} can't be read: {error};"
                " leave it out, or cast it in the query"
            ) from error
