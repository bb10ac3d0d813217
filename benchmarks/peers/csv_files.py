"""Parquet to a CSV file on disk, by three libraries at their defaults; and uploads of such a file."""

from __future__ import annotations

import ftplib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import boto3
import duckdb
import polars as pl
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

SETTINGS = {
    "polars": "scan_parquet(…).sink_csv(…)",
    "duckdb": "COPY (SELECT * FROM …) TO …, order kept",
    "pyarrow": "ParquetFile.iter_batches() into csv.CSVWriter",
}


def polars(source: str, target: str) -> None:
    """The streaming engine."""
    pl.scan_parquet(source).sink_csv(target)


def duckdb_copy(source: str, target: str) -> None:
    """COPY, in the order of the source."""
    duckdb.sql(f"COPY (SELECT * FROM '{source}') TO '{target}' (FORMAT csv)")


def pyarrow(source: str, target: str) -> None:
    """Batch by batch."""
    file = pq.ParquetFile(source)
    with pacsv.CSVWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch)


WRITERS: dict[str, Callable[[str, str], None]] = {"polars": polars, "duckdb": duckdb_copy, "pyarrow": pyarrow}


def write_then_ftp(writer: str, source: str, target: str, url: str) -> None:
    """A temporary file, sent by ftplib when it is complete."""
    WRITERS[writer](source, target)
    parts = urlsplit(url)
    with ftplib.FTP() as ftp, Path(target).open("rb") as file:
        ftp.connect(parts.hostname or "", parts.port or 21)
        ftp.login(unquote(parts.username or ""), unquote(parts.password or ""))
        ftp.storbinary("STOR peer.csv.part", file, blocksize=1 << 18)
        ftp.rename("peer.csv.part", "peer.csv")
    Path(target).unlink()


def write_then_s3(writer: str, source: str, target: str, url: str) -> None:
    """A temporary file, sent by boto3 when it is complete."""
    WRITERS[writer](source, target)
    parts = urlsplit(url)
    boto3.client("s3").upload_file(target, parts.netloc, parts.path.strip("/") + "/peer.csv")
    Path(target).unlink()
