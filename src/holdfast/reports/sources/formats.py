"""The choice of a file's reader."""

from __future__ import annotations

from holdfast.reports.faults import UnreadableSource
from holdfast.reports.order import Table
from holdfast.reports.sources.arrow import ArrowFiles
from holdfast.reports.sources.files import FormatReader
from holdfast.reports.sources.orc import OrcFiles
from holdfast.reports.sources.parquet import ParquetFiles
from holdfast.reports.sources.text import COMPRESSED, CsvFiles, JsonFiles

_SUFFIXES = {
    "parquet": "parquet",
    "pq": "parquet",
    "orc": "orc",
    "csv": "csv",
    "tsv": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "arrow": "arrow",
    "arrows": "arrow",
    "ipc": "arrow",
    "feather": "arrow",
}


def files_for(url: str, table: Table, field: str) -> FormatReader:
    """Return the reader of a file, by the order's format or the file's suffix."""
    suffixes = url.lower().rpartition("/")[2].split(".")
    suffix = suffixes[-2] if suffixes[-1] in COMPRESSED and len(suffixes) > 1 else suffixes[-1]
    match table.source_format if table.source_format != "auto" else _SUFFIXES.get(suffix):
        case "parquet":
            return ParquetFiles()
        case "orc":
            return OrcFiles()
        case "arrow":
            return ArrowFiles()
        case "csv":
            tabs = suffix == "tsv" and table.delimiter == ","
            return CsvFiles(table.types, "\t" if tabs else table.delimiter, field)
        case "jsonl":
            return JsonFiles(table.types, field)
    raise UnreadableSource(f"{url} has a suffix of no known format; name the format in {field}.source_format")
