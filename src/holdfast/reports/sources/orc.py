"""ORC: stripe by stripe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as paorc

from holdfast.reports.faults import UnreadableSource
from holdfast.reports.sources.files import Piece, Shape, rows_a_batch
from holdfast.reports.sources.places import SourceFile


class OrcFiles:
    """ORC files. Arrow decodes a stripe at once, so its size (64 MB as a rule) bounds memory; timestamps
    become nanoseconds, which reach from 1678 to 2262."""

    def shape(self, place: SourceFile) -> Shape:
        """From the footer."""
        with place.open() as file:
            orc = paorc.ORCFile(file)
            return Shape(orc.schema, orc.nrows)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        """Stripe by stripe, in batches."""
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
    """Raise UnreadableSource for the first column that can't be decoded: Arrow doesn't name it."""
    for name in columns:
        try:
            orc.read_stripe(stripe, columns=[name])
        except pa.ArrowInvalid as error:
            raise UnreadableSource(
                f"column {name!r} of {place.url} can't be read: {error};"
                " leave it out, or cast it in the query"
            ) from error
