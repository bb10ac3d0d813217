"""Parquet to an XLSX file on disk, by four libraries."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow.parquet as pq
import pyexcelerate as excelerate
import xlsxwriter as xlsx
from rustpy_xlsxwriter import FastExcel

SETTINGS = {
    "rustpy": "rustpy-xlsxwriter: FastExcel.sheet(DataFrame)",
    "xlsxwriter": "XlsxWriter: constant_memory, row by row",
    "polars": "polars: DataFrame.write_excel",
    "pyexcelerate": "PyExcelerate: new_sheet(rows)",
}


def rustpy(source: str, target: str) -> None:
    """All rows in memory; the sheet in a temporary file."""
    FastExcel(target).sheet("Report", pl.read_parquet(source)).save()


def xlsxwriter(source: str, target: str) -> None:
    """Rows go to a temporary file as they come."""
    options = {"constant_memory": True, "remove_timezone": True}
    with xlsx.Workbook(target, options) as book:
        sheet = book.add_worksheet("Report")
        formats = {
            dt.datetime: book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
            dt.date: book.add_format({"num_format": "yyyy-mm-dd"}),
        }
        file = pq.ParquetFile(source)
        sheet.write_row(0, 0, file.schema_arrow.names)
        row = 1
        for batch in file.iter_batches(10_000):
            columns = [column.to_pylist() for column in batch.columns]
            for values in zip(*columns, strict=True):
                for at, value in enumerate(values):
                    sheet.write(row, at, value, formats.get(type(value)))
                row += 1


def polars(source: str, target: str) -> None:
    """XlsxWriter behind a frame."""
    frame = pl.read_parquet(source).with_columns(pl.col("at").dt.replace_time_zone(None))
    frame.write_excel(target)


def pyexcelerate(source: str, target: str) -> None:
    """All rows in memory, as lists."""
    frame = pl.read_parquet(source).with_columns(pl.col("at").dt.replace_time_zone(None))
    book = excelerate.Workbook()
    book.new_sheet("Report", data=[frame.columns, *frame.rows()])
    book.save(target)
