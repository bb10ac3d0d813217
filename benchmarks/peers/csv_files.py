"""Parquet to a CSV file on disk, by three libraries at their defaults; uploads of such a file, or zeros."""

from __future__ import annotations

import ftplib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import boto3
import duckdb
import polars as pl
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

PIECE_BYTES = 1_000_000
PIECE = bytes(PIECE_BYTES)
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
    with _ftp(url) as ftp, Path(target).open("rb") as file:
        ftp.storbinary("STOR peer.csv.part", file, blocksize=1 << 18)
        ftp.rename("peer.csv.part", "peer.csv")
    Path(target).unlink()


def write_then_s3(writer: str, source: str, target: str, url: str) -> None:
    """A temporary file, sent by boto3 when it is complete."""
    WRITERS[writer](source, target)
    parts = urlsplit(url)
    boto3.client("s3").upload_file(target, parts.netloc, parts.path.strip("/") + "/peer.csv")
    Path(target).unlink()


def bytes_to_ftp(size: str, url: str) -> None:
    """So many bytes and nothing else: what the server takes at most."""
    with _ftp(url) as ftp, ftp.transfercmd("STOR bytes.part") as connection:
        for _ in range(int(size) // PIECE_BYTES):
            connection.sendall(PIECE)
        connection.close()
        ftp.voidresp()
        ftp.delete("bytes.part")


def bytes_to_s3(size: str, url: str) -> None:
    """The same, in parts of 8 MB, four at a time."""
    bucket = urlsplit(url).netloc
    s3 = boto3.client("s3")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="bytes")["UploadId"]

    def put(number: int) -> None:
        s3.upload_part(Bucket=bucket, Key="bytes", UploadId=upload, PartNumber=number, Body=PIECE * 8)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(1, int(size) // (8 * PIECE_BYTES) + 1)))
    s3.abort_multipart_upload(Bucket=bucket, Key="bytes", UploadId=upload)


def _ftp(url: str) -> ftplib.FTP:
    parts = urlsplit(url)
    ftp = ftplib.FTP()
    ftp.connect(parts.hostname or "", parts.port or 21)
    ftp.login(unquote(parts.username or ""), unquote(parts.password or ""))
    ftp.voidcmd("TYPE I")
    return ftp
