"""A table of ten mixed columns in a Parquet file, the same for the same number of rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

STEP = 250_000
GROUP_ROWS = 122_880
WORDS = ["alpha", "beta", "gamma, inc", 'delta "q"', "epsilon", "zeta & co", "eta", "théta"]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("customer", pa.string()),
        ("name", pa.string()),
        ("amount", pa.decimal128(14, 2)),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("flag", pa.bool_()),
        ("note", pa.string()),
    ]
)


def make(path: Path, rows: int) -> Path:
    """Write the file, if it isn't there."""
    if not path.exists():
        with pq.ParquetWriter(path, SCHEMA) as writer:
            for start in range(0, rows, STEP):
                table = _rows(start, min(rows, start + STEP)).to_arrow().cast(SCHEMA)
                writer.write_table(table, row_group_size=GROUP_ROWS)
    return path


def _rows(start: int, end: int) -> pl.DataFrame:
    n = pl.int_range(start, end, dtype=pl.Int64, eager=True).alias("id")

    def drawn(seed: int, below: int) -> pl.Expr:
        return (pl.col("id").hash(seed) % below).cast(pl.Int64)

    words = pl.Series(WORDS)
    frame = n.to_frame()
    picked = frame.select(drawn(1, len(WORDS)).alias("a"), drawn(2, len(WORDS)).alias("b"))
    return frame.select(
        "id",
        (1_700_000_000_000_000 + pl.col("id") * 1_234_567).cast(pl.Datetime("us", "UTC")).alias("at"),
        (19_000 + pl.col("id") % 2000).cast(pl.Int32).cast(pl.Date).alias("day"),
        words.gather(picked["a"]).alias("customer"),
        pl.concat_str(drawn(3, 10**9).cast(pl.String), pl.lit("-user")).alias("name"),
        ((drawn(4, 2 * 10**9) - 10**9).cast(pl.Decimal(14, 0)) / 100).cast(pl.Decimal(14, 2)).alias("amount"),
        ((drawn(5, 2**53) - 2**52) / 2**42).alias("price"),
        drawn(6, 1000).cast(pl.Int32).alias("quantity"),
        (drawn(7, 2) == 1).alias("flag"),
        pl.concat_str(drawn(8, 10**6).cast(pl.String), words.gather(picked["b"])).alias("note"),
    )
